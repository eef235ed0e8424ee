"""Null distributions, tests, intervals and power: how sure a result is.

>>> from tiltmeter import stats
>>> stats.power.smallest_effect([5162, 5792]).round(3)
array([0.054, 0.054])
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = [
    "bootstrap", "intervals", "multiplicity", "null", "paired", "permutation", "placebo", "power",
    "significance", "variance",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
