"""Means, standard deviations and quantiles of draws that may be undefined (NaN)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from tiltmeter.types import Floats, Ints


def mean(draws: Floats) -> Floats:
    """Mean over the first axis, without NaN."""
    if draws.ndim > 1:
        return _moments(draws)[0]
    means = np.nanmean if np.isnan(draws).any() else np.mean  # as for quantiles
    with _quiet():
        return np.asarray(means(draws, axis=0, dtype=np.float64))


def mean_by(values: Floats, codes: Ints, count: int) -> Floats:
    """Mean over the first axis of the values of each code, without NaN."""
    known, shape = ~np.isnan(values), (count, *values.shape[1:])
    total, number = np.zeros(shape), np.zeros(shape)
    np.add.at(total, codes, np.where(known, values, 0.0))
    np.add.at(number, codes, known)
    return total / np.where(number > 0, number, np.nan)


def std(draws: Floats) -> Floats:
    """Standard deviation (n - 1) over the first axis, without NaN."""
    if draws.ndim > 1:
        return mean_and_std(draws)[1]
    deviations = np.nanstd if np.isnan(draws).any() else np.std
    with _quiet():
        return np.asarray(deviations(draws, axis=0, ddof=1, dtype=np.float64))


def mean_and_std(draws: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation (n - 1) over the first axis, without NaN."""
    average, squares, count = _moments(draws)
    return average, np.sqrt(squares / np.where(count > 1, count - 1, np.nan))


def _moments(draws: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean, sum of squared differences from it, and number of defined draws."""
    from tiltmeter.metrics.numpy_kernels import moments_of_draws

    shape = draws.shape[1:]
    by_unit = draws.reshape(len(draws), shape[0], -1).swapaxes(0, 1)  # units x draws x columns
    average, squares, count = moments_of_draws(by_unit)
    return average.reshape(shape), squares.reshape(shape), count.reshape(shape)


def quantile(draws: Floats, at: Sequence[float], method: str = "linear") -> Floats:
    """Quantiles over the first axis, without NaN."""
    # nanquantile is far slower: only where it is needed
    quantiles = np.nanquantile if np.isnan(draws).any() else np.quantile
    with _quiet():
        return np.asarray(quantiles(draws, at, axis=0, method=method))  # type: ignore[call-overload]


@contextmanager
def _quiet() -> Iterator[None]:
    """Where everything is NaN the result is NaN, which is no reason for a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
