"""Intervals of shares and ratios, for which bootstrap percentiles are wrong.

Those of a share are wrong where a group is nearly absent, those of a ratio where its denominator is
noisy.
"""

from __future__ import annotations

import numpy as np

from tiltmeter.stats import defined
from tiltmeter.types import Floats, Ints

Z = 1.959963984540054  # 97.5th percentile of the normal distribution


def wilson(successes: Floats | Ints, n: Floats | Ints) -> tuple[Floats, Floats]:
    """Wilson's 95% interval of a share (Wilson 1927).

    Parameters
    ----------
    successes : array
        Number of successes.
    n : array
        Number of trials.

    Returns
    -------
    low, high : array
        From 0 to 1; NaN for n = 0.

    Examples
    --------
    >>> [edge.round(3) for edge in wilson(np.array([0, 5]), np.array([10, 10]))]
    [array([0.   , 0.237]), array([0.278, 0.763])]
    """
    n = np.where(np.asarray(n) > 0, n, np.nan).astype(float)
    p = np.asarray(successes) / n
    middle = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * np.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    return np.clip(middle - half, 0, 1), np.clip(middle + half, 0, 1)


def wilson_of_top_k_shares(counts: Floats, draws: Floats | None, k: int) -> tuple[Floats, Floats]:
    """Wilson's interval of top-k shares, with an effective number of trials.

    Images of the top k are not independent trials: n is p (1 - p) / var, where var is the variance
    of the share over bootstrap resamples. Where that is 0, n is k.

    Parameters
    ----------
    counts : array of shape (..., groups)
        Top-k counts.
    draws : array of shape (draws, ..., groups), optional
        Shares of the top k in bootstrap resamples.
    k : int
        Size of the top.

    Returns
    -------
    low, high : array of shape (..., groups)
        From 0 to 1.

    Examples
    --------
    >>> [edge.round(3) for edge in wilson_of_top_k_shares(np.array([0.0, 10.0]), None, 10)]
    [array([0.   , 0.722]), array([0.278, 1.   ])]
    """
    p = counts / k
    if draws is None:
        return wilson(counts, np.full(counts.shape, k))
    variance = defined.std(draws) ** 2
    spread = p * (1 - p)
    varies = (variance > 0) & (spread > 0)
    n = np.where(varies, spread / np.where(varies, variance, 1.0), k)
    return wilson(p * n, n)


def fieller(
    top: float, bottom: float, top_draws: Floats, bottom_draws: Floats, quantile: float = Z
) -> tuple[float, float]:
    """Fieller's (1954) interval of a ratio, from bootstrap resamples of both parts.

    All ratios r for which top - r * bottom is within `quantile` standard errors of 0; the estimate
    is one of them.

    Parameters
    ----------
    top, bottom : float
        Estimates of the numerator and the denominator.
    top_draws, bottom_draws : array of shape (draws,)
        Their bootstrap resamples.
    quantile : float
        Number of standard errors.

    Returns
    -------
    low, high : float
        NaN where the denominator is not distinguishable from 0: then no interval is bounded.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> top, bottom = rng.normal(4, 1, 999), rng.normal(2, 0.1, 999)
    >>> [round(edge, 1) for edge in fieller(4.0, 2.0, top, bottom)]
    [1.0, 3.0]
    >>> fieller(4.0, 2.0, top, 20 * (bottom - 2))
    (nan, nan)
    """
    draws = np.stack([top_draws, bottom_draws])
    spread = quantile**2 * np.cov(draws[:, ~np.isnan(draws).any(axis=0)])
    a, b, c = bottom**2 - spread[1, 1], top * bottom - spread[0, 1], top**2 - spread[0, 0]
    if not a > 0:
        return np.nan, np.nan
    root = np.sqrt(max(b**2 - a * c, 0.0))
    return float((b - root) / a), float((b + root) / a)
