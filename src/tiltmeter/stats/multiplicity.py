"""Many words, one audit: p-values that hold for all of them together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tiltmeter.stats import defined
from tiltmeter.stats.null import TOLERANCE, stretches, tolerance
from tiltmeter.types import Floats


def max_t(observed: Floats, draws: Floats, slack: float = TOLERANCE) -> Floats:
    """Westfall and Young's step-down maxT: family-wise p-values under any dependence.

    `observed` are statistics that are large when extreme, `draws` (draws x statistics) the same
    under relabellings that all of them share, so that their dependence is kept. Statistics must
    be on one scale (divide by each one's null spread). NaN stays NaN and counts for nothing.
    Draws within `slack` of the observed count as ties.

    >>> draws = np.random.default_rng(0).normal(size=(999, 3))
    >>> max_t(np.array([5.0, 0.1, 0.0]), draws).round(3)
    array([0.001, 0.714, 0.714])
    """
    draws = np.asarray(draws)
    return _step_down(np.asarray(observed, float), draws.shape, lambda rows: draws[rows], slack)


def _step_down(
    observed: Floats, shape: tuple[int, ...], some: Callable[[slice], Floats], slack: float
) -> Floats:
    """maxT of draws that are looked at a few rows at a time."""
    p = np.full(observed.shape, np.nan)
    there = np.flatnonzero(~np.isnan(observed))
    order = there[np.argsort(observed[there], kind="stable")]  # weakest first
    if len(order) == 0:
        return p
    b = np.zeros(len(order), np.int64)
    for rows in stretches(shape, 0):
        draws = some(rows)[:, order]
        draws = np.where(np.isnan(draws), -np.inf, draws)
        # for each statistic the largest draw among those no stronger than it
        largest = np.maximum.accumulate(draws, axis=1)
        b += (largest >= observed[order] - slack).sum(axis=0)
    adjusted = (b + 1) / (shape[0] + 1)
    p[order] = np.maximum.accumulate(adjusted[::-1])[::-1]
    return p


def family_wise(values: Floats, draws: Any, side: str) -> Floats:
    """maxT p-values of all `values` (any shape), each on the scale of its own null draws.

    The observed value counts as one of the draws when their centre and spread are taken: under
    the null it is one, and left out it would look more extreme than they do. `draws` is an array,
    or what gives slices of draws and of values like one, made when they are asked for.
    """
    centre, spread = np.empty(values.shape), np.empty(values.shape)
    for at in stretches(draws.shape, 1):
        points = np.concatenate([values[None, at], draws[:, at]])
        centre[at], spread[at] = defined.mean(points), defined.std(points)
    spread = np.where(spread > 1e-12, spread, np.nan)
    sign = -1.0 if side == "less" else 1.0

    def scaled(some: Floats) -> Floats:
        away = sign * (some - centre) / spread
        return (np.abs(away) if side == "two" else away).reshape(-1, values.size)

    shape = (len(draws), values.size)
    slack = 10 * tolerance(draws)
    p = _step_down(scaled(values)[0], shape, lambda rows: scaled(draws[rows]), slack)
    return p.reshape(values.shape)


def benjamini_hochberg(p: Floats) -> Floats:
    """False discovery rate of each p-value (Benjamini and Hochberg 1995); NaN stays NaN.

    >>> benjamini_hochberg(np.array([0.01, 0.04, np.nan])).round(3)
    array([0.02, 0.04,  nan])
    """
    return _fdr(p, "bh")


def benjamini_yekutieli(p: Floats) -> Floats:
    """False discovery rate under any dependence (Benjamini and Yekutieli 2001); NaN stays NaN.

    >>> benjamini_yekutieli(np.array([0.01, 0.04])).round(3)
    array([0.03, 0.06])
    """
    return _fdr(p, "by")


def _fdr(p: Floats, method: str) -> Floats:
    from scipy.stats import false_discovery_control

    p = np.asarray(p, dtype=float)
    there = ~np.isnan(p)
    q = np.full(p.shape, np.nan)
    if there.any():
        q[there] = false_discovery_control(p[there], method=method)
    return q


def holm(p: Floats) -> Floats:
    """Holm's step-down p-values, family-wise under any dependence (Holm 1979); NaN stays NaN.

    >>> holm(np.array([0.01, 0.04, np.nan, 0.03]))
    array([0.03, 0.06,  nan, 0.06])
    """
    p = np.asarray(p, dtype=float)
    found = np.full(p.size, np.nan)
    there = np.flatnonzero(~np.isnan(p.ravel()))
    order = there[np.argsort(p.ravel()[there], kind="stable")]
    steps = p.ravel()[order] * np.arange(len(order), 0, -1)
    found[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return found.reshape(p.shape)
