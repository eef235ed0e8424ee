"""All that has a name, for `tiltmeter list`."""

from __future__ import annotations

from collections.abc import Callable

from tiltmeter.datasets import DATASETS
from tiltmeter.debiasers import DEBIASERS
from tiltmeter.metrics import METRICS
from tiltmeter.metrics.convention import CONVENTIONS
from tiltmeter.models import MODELS
from tiltmeter.probes import PROBES
from tiltmeter.registry import Registry
from tiltmeter.stimuli import STIMULI, load

Entries = dict[str, str]


def _summaries(registry: Registry, mark: str = "") -> Callable[[], Entries]:
    return lambda: {f"{name}{mark}": registry.summary(name) for name in registry}


def _probes() -> Entries:
    return {name: PROBES[name].about for name in PROBES}


def _conventions() -> Entries:
    return {
        name: f"{c.target}, {c.empty}, {c.skew}, {c.ties}, {c.images}, {c.balance}, "
        f"k = {' and '.join(map(str, c.k))} ({c.source})"
        for name, c in CONVENTIONS.items()
    }


def _stimuli() -> Entries:
    return {name: f"{(found := load(name)).title} ({found.kind})" for name in STIMULI}


KINDS: dict[str, Callable[[], Entries]] = {
    "models": _summaries(MODELS, ":"),
    "datasets": _summaries(DATASETS, ":"),
    "probes": _probes,
    "debiasers": _summaries(DEBIASERS),
    "metrics": _summaries(METRICS),
    "conventions": _conventions,
    "stimuli": _stimuli,
}


def entries(kind: str) -> Entries:
    """Names of one kind, each with one line on what it is."""
    return KINDS[kind]()
