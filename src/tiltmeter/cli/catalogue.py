"""Names of all components: for `tiltmeter list`, shell completion and hints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiltmeter.datasets import DATASETS
from tiltmeter.debiasers import DEBIASERS
from tiltmeter.metrics import METRICS
from tiltmeter.metrics.convention import CONVENTIONS
from tiltmeter.models import MODELS
from tiltmeter.probes import PROBES
from tiltmeter.registry import Registry
from tiltmeter.stimuli import STIMULI, load

#: Names by kind; reading them imports no component.
KINDS: dict[str, Mapping[str, Any]] = {
    "models": MODELS,
    "datasets": DATASETS,
    "probes": PROBES,
    "debiasers": DEBIASERS,
    "metrics": METRICS,
    "conventions": CONVENTIONS,
    "stimuli": STIMULI,
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
        return f"{stimuli.title} ({stimuli.kind})"
    registry = KINDS[kind]
    assert isinstance(registry, Registry)
    return registry.summary(name)
