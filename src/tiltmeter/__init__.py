"""Tiltmeter measures the social tilt of vision-language models.

>>> import tiltmeter as tm
>>> tm.metrics.c_asc([[1.0, 2.0, 3.0, 4.0]], [0, 0, 1, 1]).round(3)
array([[-1.549,  1.549]])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiltmeter import metrics, stats, stimuli
    from tiltmeter.auditing.audit import audit
    from tiltmeter.catalogue import (
        list_conventions,
        list_datasets,
        list_debiasers,
        list_metrics,
        list_models,
        list_papers,
        list_probes,
        list_stimuli,
    )
    from tiltmeter.corpus import audit_captions
    from tiltmeter.datasets import load_data
    from tiltmeter.datasets.in_memory import faces
    from tiltmeter.debiasers.fitting import debias
    from tiltmeter.judge.calibration import calibrate
    from tiltmeter.judge.gate import compare
    from tiltmeter.judge.leaderboard import leaderboard
    from tiltmeter.models import load_model
    from tiltmeter.results import Run
    from tiltmeter.types import Faces, Groups

__version__ = "0.2.0"
__all__ = [
    "Faces", "Groups", "Run", "audit", "audit_captions", "calibrate", "compare", "debias", "faces",
    "leaderboard",
    "list_conventions", "list_datasets", "list_debiasers", "list_metrics", "list_models",
    "list_papers", "list_probes", "list_stimuli", "load_data", "load_model", "metrics",
    "stats", "stimuli",
]  # fmt: skip

_WHERE = {
    "Faces": "types",
    "Groups": "types",
    "Run": "results",
    "audit": "auditing.audit",
    "audit_captions": "corpus",
    "calibrate": "judge.calibration",
    "compare": "judge.gate",
    "debias": "debiasers.fitting",
    "faces": "datasets.in_memory",
    **{f"list_{kind}": "catalogue" for kind in (
        "conventions", "datasets", "debiasers", "metrics", "models", "papers", "probes",
        "stimuli",
    )},
    "leaderboard": "judge.leaderboard",
    "load_data": "datasets",
    "load_model": "models",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    # nothing is imported before it is used: numba, pyarrow and torch take their time
    if name in ("metrics", "stats", "stimuli"):
        return import_module(f"tiltmeter.{name}")
    if name in _WHERE:
        return getattr(import_module(f"tiltmeter.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'tiltmeter' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
