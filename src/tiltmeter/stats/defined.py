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


def mean_and_std(draws: Floats, observed: Floats | None = None) -> tuple[Floats, Floats]:
    """Mean and standard deviation (n - 1) over the first axis, without NaN.

    `observed` is one more draw, for which the others are not copied.
    """
    moments = _moments(draws)
    return _mean_and_std(*moments) if observed is None else _with_one_more(*moments, observed)


def mean_and_scale(draws: Floats, observed: Floats) -> tuple[Floats, tuple[Floats, Floats]]:
    """`mean`, and `mean_and_std` with `observed`, in one pass."""
    moments = _moments(draws)
    return moments[0], _with_one_more(*moments, observed)


def _mean_and_std(average: Floats, squares: Floats, count: Ints) -> tuple[Floats, Floats]:
    return average, np.sqrt(squares / np.where(count > 1, count - 1, np.nan))


def _with_one_more(
    average: Floats, squares: Floats, count: Ints, observed: Floats
) -> tuple[Floats, Floats]:
    known = ~np.isnan(observed)
    before = np.where(count > 0, average, observed)
    gap, count = np.where(known, observed - before, 0.0), count + known
    average = before + gap / np.maximum(count, 1)
    squares = squares + gap * np.where(known, observed - average, 0.0)
    return _mean_and_std(average, squares, count)


def _moments(draws: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean, sum of squared differences from it, and number of defined draws."""
    from tiltmeter.metrics.numpy_kernels import moments_of_draws

    shape = draws.shape[1:]
    average, squares, count = moments_of_draws(_by_unit(draws))
    return average.reshape(shape), squares.reshape(shape), count.reshape(shape)


def quantile(draws: Floats, at: Sequence[float], method: str = "linear") -> Floats:
    """Quantiles over the first axis, without NaN; `linear` or `weibull`, as NumPy names them."""
    from tiltmeter.metrics.numpy_kernels import quantiles_of_draws

    spread = {"linear": -1, "weibull": 1}[method]
    found = quantiles_of_draws(_by_unit(draws), np.asarray(at, float), spread)
    return found.reshape(len(at), *draws.shape[1:])


def tails(draws: Floats, low: Floats, high: Floats) -> tuple[Ints, Ints, Ints]:
    """Over the first axis: how many draws are at least `low`, at most `high`, and defined."""
    from tiltmeter.metrics.numpy_kernels import tails_of_draws

    by_unit, shape = _by_unit(draws), np.broadcast_shapes(draws.shape[1:], np.shape(low))
    bounds = [np.broadcast_to(edge, shape).reshape(len(by_unit), -1) for edge in (low, high)]
    above, below, known = tails_of_draws(by_unit, *bounds)
    return above.reshape(shape), below.reshape(shape), known.reshape(shape)


def _by_unit(draws: Floats) -> Floats:
    """Units x draws x columns of draws x units x ...; a view."""
    units = draws.shape[1] if draws.ndim > 1 else 1
    return draws.reshape(len(draws), units, -1).swapaxes(0, 1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Where everything is NaN the result is NaN, which is no reason for a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
