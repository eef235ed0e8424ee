"""Names of all components: for `tiltmeter list`, `tm.list_models()`, completion and hints."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from itertools import chain
from typing import Any

from tiltmeter.datasets import DATASETS
from tiltmeter.debiasers import DEBIASERS
from tiltmeter.metrics import METRICS
from tiltmeter.metrics.convention import CONVENTIONS
from tiltmeter.models import MODELS
from tiltmeter.probes import PROBES
from tiltmeter.registry import Registry
from tiltmeter.reproduce import PAPERS
from tiltmeter.stimuli import DEFAULT, STIMULI, load

#: Names by kind; reading them imports no component.
KINDS: dict[str, Mapping[str, Any]] = {
    "models": MODELS,
    "datasets": DATASETS,
    "probes": PROBES,
    "debiasers": DEBIASERS,
    "metrics": METRICS,
    "conventions": CONVENTIONS,
    "stimuli": STIMULI,
    "papers": PAPERS,
}


def entries(kind: str) -> dict[str, str]:
    """Names of one kind, each with a one-line summary.

    Parameters
    ----------
    kind
        A key of `KINDS`.
    """
    colon = ":" if kind in ("models", "datasets") else ""
    return {f"{name}{colon}": _summary(kind, name) for name in KINDS[kind]}


def stimuli_contents(name: str) -> dict[str, str]:
    """What a word list contains: its version and source, templates, and words by category.

    Parameters
    ----------
    name
        A name of `STIMULI`.
    """
    stimuli = load(name)
    found = {"version": stimuli.version, "source": stimuli.source.strip()}
    found |= {f"templates: {use}": " | ".join(texts) for use, texts in stimuli.templates.items()}
    if stimuli.pairs:
        found["pairs"] = ", ".join("/".join(pair) for pair in stimuli.pairs)
    else:
        for category in stimuli.categories:
            words = [word.text for word in stimuli.words if word.category == category]
            found[f"{category} ({len(words)})"] = ", ".join(words)
    for test in stimuli.tests:
        x, y, a, b = test.X, test.Y, test.A, test.B
        found[test.name] = f"{x.name}, {y.name} with {a.name}, {b.name}"
        found |= {one.name: ", ".join(one.words) for one in (x, y, a, b)}
    return found | {
        key: ", ".join(map(str, entry)) if isinstance(entry, list | dict) else str(entry)
        for key, entry in stimuli.table.items()
    }


def debiaser_contents(name: str) -> dict[str, str]:
    """What a debiaser does, and its options with their defaults.

    Parameters
    ----------
    name
        A name of `DEBIASERS`.

    Examples
    --------
    >>> debiaser_contents("bend")["neighbours=100"][:24]
    'Nearest reference images'
    """
    made = DEBIASERS[name]
    parameters = (inspect.getdoc(made) or "").partition("Parameters\n----------\n")[2]
    parameters = re.split(r"\n\w+\n-{3,}\n", parameters)[0]
    told = {
        one.strip(): " ".join(lines.split())
        for names, lines in re.findall(r"^(\S[^\n:]*).*\n((?: +.*\n?)*)", parameters, re.M)
        for one in names.split(",")
    }
    options = {f"{one.name}={_default(one)}": told.get(one.name, "")
               for one in dataclasses.fields(made) if one.init}  # fmt: skip
    return {"method": _summary("debiasers", name), **options}


def _default(one: dataclasses.Field[Any]) -> str:
    """A default as one types it; nothing where it is none, or made anew."""
    value = one.default
    if value is None or value is dataclasses.MISSING or value == ():
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


#: What `tiltmeter list KIND NAME` prints.
CONTENTS = {"stimuli": stimuli_contents, "debiasers": debiaser_contents}


def _summary(kind: str, name: str) -> str:
    if kind == "probes":
        return str(PROBES[name].about)
    if kind == "conventions":
        c = CONVENTIONS[name]
        return (
            f"{c.target}, {c.empty}, {c.skew}, {c.ties}, {c.images}, {c.balance}, "
            f"k = {' and '.join(map(str, c.k))} ({c.source})"
        )
    if kind == "stimuli":
        stimuli = load(name)
        sizes = {"words": stimuli.words, "classes": stimuli.words, "pairs": stimuli.pairs,
                 "weat": stimuli.tests, "templates": [*chain(*stimuli.templates.values())],
                 "table": stimuli.table}  # fmt: skip
        unit = {"weat": "tests", "table": "entries"}
        size = f"{len(sizes[stimuli.kind])} {unit.get(stimuli.kind, stimuli.kind)}"
        return f"{stimuli.title} ({size}{'; the default of an audit' * (name == DEFAULT)})"
    if kind == "papers":
        return f"{PAPERS[name].title} ({PAPERS[name].source})"
    registry = KINDS[kind]
    assert isinstance(registry, Registry)
    return registry.summary(name)


def list_models() -> dict[str, str]:
    """Schemes of models, such as `hf:`, each with what it is."""
    return entries("models")


def list_datasets() -> dict[str, str]:
    """Schemes of datasets, such as `fairface:`, each with what it is."""
    return entries("datasets")


def list_probes() -> dict[str, str]:
    """Probes, which an audit can run, each with what it is."""
    return entries("probes")


def list_debiasers() -> dict[str, str]:
    """Debiasers, for `debias` and `frontier`, each with what it is."""
    return entries("debiasers")


def list_metrics() -> dict[str, str]:
    """Metrics, functions in `tiltmeter.metrics`, each with what it is."""
    return entries("metrics")


def list_conventions() -> dict[str, str]:
    """Conventions, which answer what metrics leave open, each with what it is."""
    return entries("conventions")


def list_stimuli() -> dict[str, str]:
    """Word lists, which `words=` takes, each with what it is."""
    return entries("stimuli")


def list_papers() -> dict[str, str]:
    """Papers, which `tiltmeter reproduce` takes, each with what it is."""
    return entries("papers")
