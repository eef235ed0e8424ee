"""Means, spreads and quantiles over draws, of which some may be undefined (NaN)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from tiltmeter.types import Floats


def mean(draws: Floats) -> Floats:
    """Mean over the first axis of what is defined."""
    with _quiet():
        return np.asarray(np.nanmean(draws, axis=0, dtype=np.float64))


def std(draws: Floats) -> Floats:
    """Standard deviation (n - 1) over the first axis of what is defined."""
    with _quiet():
        return np.asarray(np.nanstd(draws, axis=0, ddof=1, dtype=np.float64))


def quantile(draws: Floats, at: Sequence[float], method: str = "linear") -> Floats:
    """Quantiles over the first axis of what is defined."""
    # the general function is far slower: only where it is needed
    of = np.nanquantile if np.isnan(draws).any() else np.quantile
    with _quiet():
        return np.asarray(of(draws, at, axis=0, method=method))  # type: ignore[call-overload]


@contextmanager
def _quiet() -> Iterator[None]:
    """Where nothing at all is defined the answer is NaN, and that is no reason to warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
