"""Many tests in one audit: p-values adjusted for all of them."""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np

from tiltmeter.metrics.numpy_kernels import in_rows, jit, light, plain
from tiltmeter.stats import defined
from tiltmeter.stats.null import TOLERANCE, slices_of_draws, tie_tolerance
from tiltmeter.types import Floats, Ints


def max_t(observed: Floats, draws: Floats, slack: float = TOLERANCE) -> Floats:
    """Westfall and Young's step-down maxT: family-wise p-values under any dependence.

    Parameters
    ----------
    observed : array of shape (statistics,)
        Statistics that are large when extreme, on one scale (divide each by its null standard
        deviation). NaN stays NaN and counts for nothing.
    draws : array of shape (draws, statistics)
        The same under permuted labels that all statistics share, so that their dependence is kept.
    slack : float
        Draws within this distance of the observed statistic count as ties.

    Returns
    -------
    array of shape (statistics,)
        Adjusted p-values.

    Examples
    --------
    >>> draws = np.random.default_rng(0).normal(size=(999, 3))
    >>> max_t(np.array([5.0, 0.1, 0.0]), draws).round(3)
    array([0.001, 0.714, 0.714])
    """
    observed, draws = np.asarray(observed, float), np.asarray(draws)
    scale = np.zeros(observed.shape), np.ones(observed.shape)
    return _step_down(observed, draws[:, None], scale, "greater", slack)


def _step_down(
    values: Floats, draws: Any, scale: tuple[Floats, Floats], side: str, slack: float
) -> Floats:
    """maxT of values and their draws as differences from a centre, in units of a spread.

    `draws` are draws x units x columns, read a few at a time; values, centre and spread are flat.
    """
    centre, spread = scale
    sign, two = -1.0 if side == "less" else 1.0, side == "two"
    observed = sign * (values - centre) / spread
    observed = np.abs(observed) if two else observed
    p = np.full(observed.shape, np.nan)
    known = np.flatnonzero(~np.isnan(observed))
    order = known[np.argsort(observed[known], kind="stable")]  # weakest first
    if len(order) == 0:
        return p
    least, centre, spread = observed[order] - slack, centre[order], spread[order]
    reached, adding = np.zeros(len(order), np.int64), Lock()
    for rows in slices_of_draws((len(draws), len(values)), 0):
        read = draws[rows]
        at = np.divmod(order, read.shape[2])

        def work(part: slice, read: Floats = read, at: tuple[Ints, Ints] = at) -> None:
            some = np.zeros(len(order), np.int64)
            _count_reached(plain(read[part]), *at, centre, spread, sign, two, least, some)
            with adding:
                np.add(reached, some, out=reached)

        in_rows(work, len(read), light(len(read), read.size))
    adjusted = (reached + 1) / (len(draws) + 1)
    p[order] = np.maximum.accumulate(adjusted[::-1])[::-1]
    return p


@jit
def _count_reached(
    draws: Floats,
    units: Ints,
    columns: Ints,
    centre: Floats,
    spread: Floats,
    sign: float,
    two: bool,
    least: Floats,
    reached: Ints,
) -> None:
    """Count draws in which a statistic, or one that is weaker, is at least so large."""
    for r in range(draws.shape[0]):
        largest = -np.inf
        for j in range(len(units)):
            value = sign * (draws[r, units[j], columns[j]] - centre[j]) / spread[j]
            if two:
                value = abs(value)
            if value > largest:  # not so for NaN
                largest = value
            reached[j] += largest >= least[j]


def standardised_max_t(
    values: Floats, draws: Any, side: str, scale: tuple[Floats, Floats] | None = None
) -> Floats:
    """maxT p-values of values on the scale of their own null draws.

    The observed value is included in the mean and standard deviation of the draws: under the null
    it is one of them, and otherwise it would look more extreme than they do.

    Parameters
    ----------
    values : array
        All statistics of the family, of any shape.
    draws : array of shape (draws, *values.shape) or BootstrapDraws
        Their null draws.
    side : {"two", "greater", "less"}
        What is extreme.
    scale : tuple of two arrays, optional
        Mean and standard deviation of the draws and the observed value, where they are known
        (`null_band_and_scale`).

    Returns
    -------
    array
        Adjusted p-values, of the shape of `values`.

    Examples
    --------
    >>> draws = np.random.default_rng(0).normal(size=(999, 2))
    >>> standardised_max_t(np.array([5.0, 0.1]), draws, "two").round(3)
    array([0.001, 0.902])
    """
    centre, spread = scale or (np.empty(values.shape), np.empty(values.shape))
    for at in slices_of_draws(draws.shape, 1) if scale is None else ():
        centre[at], spread[at] = defined.mean_and_std(draws[:, at], values[at])
    spread = np.where(spread > 1e-12, spread, np.nan)
    if values.ndim != 2:  # an array, of any shape
        draws = np.asarray(draws).reshape(len(draws), 1, -1)
    flat = centre.ravel(), spread.ravel()
    p = _step_down(values.ravel(), draws, flat, side, 10 * tie_tolerance(draws))
    return p.reshape(values.shape)


def benjamini_hochberg(p: Floats) -> Floats:
    """False discovery rate of each p-value (Benjamini and Hochberg 1995).

    Parameters
    ----------
    p : array
        P-values of one family; NaN stays NaN.

    Returns
    -------
    array
        Adjusted p-values.

    Examples
    --------
    >>> benjamini_hochberg(np.array([0.01, 0.04, np.nan])).round(3)
    array([0.02, 0.04,  nan])
    """
    return _fdr(p, "bh")


def benjamini_yekutieli(p: Floats) -> Floats:
    """False discovery rate under any dependence (Benjamini and Yekutieli 2001).

    Parameters
    ----------
    p : array
        P-values of one family; NaN stays NaN.

    Returns
    -------
    array
        Adjusted p-values.

    Examples
    --------
    >>> benjamini_yekutieli(np.array([0.01, 0.04])).round(3)
    array([0.03, 0.06])
    """
    return _fdr(p, "by")


def _fdr(p: Floats, method: str) -> Floats:
    from scipy.stats import false_discovery_control

    p = np.asarray(p, dtype=float)
    known = ~np.isnan(p)
    q = np.full(p.shape, np.nan)
    if known.any():
        q[known] = false_discovery_control(p[known], method=method)
    return q


def holm(p: Floats) -> Floats:
    """Holm's step-down p-values, family-wise under any dependence (Holm 1979).

    Parameters
    ----------
    p : array
        P-values of one family; NaN stays NaN.

    Returns
    -------
    array
        Adjusted p-values.

    Examples
    --------
    >>> holm(np.array([0.01, 0.04, np.nan, 0.03]))
    array([0.03, 0.06,  nan, 0.06])
    """
    p = np.asarray(p, dtype=float)
    adjusted = np.full(p.size, np.nan)
    known = np.flatnonzero(~np.isnan(p.ravel()))
    order = known[np.argsort(p.ravel()[known], kind="stable")]
    steps = p.ravel()[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return adjusted.reshape(p.shape)
