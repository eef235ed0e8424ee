"""What a model without any tilt would score: the noise floor of every ranking metric.

If the groups have nothing to do with the scores, the counts of the groups in the top k are
multivariate hypergeometric, whatever the model. So the null needs no model, only the sizes of
the groups: exact for counts, by exact draws for what is computed from them, by random rankings
for NDKL.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tiltmeter.errors import UnknownNameError
from tiltmeter.metrics.summary import check_k
from tiltmeter.types import Floats, Ints

SIDES = ("two", "greater", "less")
#: Absorbs rounding where a drawn value and the observed one are the same number.
TOLERANCE = 1e-9


class Band(NamedTuple):
    """Mean and central 95% of a null distribution."""

    mean: Floats
    lo: Floats
    hi: Floats


def band_of(draws: Floats, axis: int = 0) -> Band:
    """Mean, 2.5th and 97.5th percentile of draws."""
    lo, hi = np.quantile(draws, [0.025, 0.975], axis=axis)
    return Band(draws.mean(axis=axis), lo, hi)


def p_of_draws(value: Any, draws: Floats, side: str = "two") -> Floats:
    """Share of the draws (first axis) at least as extreme as `value`: (b + 1) / (R + 1).

    `two` is twice the smaller of the two sides, at most 1.

    >>> p_of_draws(2.0, np.array([0.0, 1.0, 2.0, 3.0]), "greater")
    np.float64(0.6)
    """
    value = np.asarray(value, dtype=float)
    slack = TOLERANCE * (1 + np.abs(value))
    above = (1 + (draws >= value - slack).sum(axis=0)) / (1 + len(draws))
    below = (1 + (draws <= value + slack).sum(axis=0)) / (1 + len(draws))
    p = np.asarray(one_p(above, below, side))
    return np.where(np.isnan(value), np.nan, p)[()]


def p_of_sample(values: Floats, draws: Floats, side: str = "two") -> Floats:
    """`p_of_draws` of many values against one sample of draws.

    >>> p_of_sample(np.array([2.0, -1.0]), np.array([0.0, 1.0, 2.0, 3.0]), "greater")
    array([0.6, 1. ])
    """
    values, ordered = np.asarray(values, dtype=float), np.sort(draws)
    slack = TOLERANCE * (1 + np.abs(values))
    above = 1 + len(ordered) - np.searchsorted(ordered, values - slack, side="left")
    below = 1 + np.searchsorted(ordered, values + slack, side="right")
    p = one_p(above / (len(ordered) + 1), below / (len(ordered) + 1), side)
    return np.where(np.isnan(values), np.nan, p)


def one_p(above: Any, below: Any, side: str) -> Any:
    """The p-value of a side, from those of the two tails."""
    if side not in SIDES:
        raise UnknownNameError("side", side, SIDES)
    if side == "two":
        return np.minimum(1.0, 2 * np.minimum(above, below))
    return above if side == "greater" else below


def top_count_null(sizes: Ints, k: int) -> Band:
    """Exact null of the top-k count of each group: hypergeometric.

    >>> top_count_null([50, 50], k=10).mean
    array([5., 5.])
    """
    dist = _hypergeometric(sizes, k)
    return Band(dist.mean(), dist.ppf(0.025), dist.ppf(0.975))


def top_count_p(counts: Floats, sizes: Ints, k: int, side: str = "two") -> Floats:
    """Exact p-value of top-k counts (... x groups).

    A count between two whole numbers, which only expected ties produce, is given the larger
    p-value of its neighbours.

    >>> top_count_p(np.array([[10, 0], [5, 5]]), [50, 50], k=10).round(4)
    array([[0.0012, 0.0012],
           [1.    , 1.    ]])
    """
    dist = _hypergeometric(sizes, k)
    above = dist.sf(np.floor(counts + TOLERANCE) - 1)
    below = dist.cdf(np.ceil(counts - TOLERANCE))
    p: Floats = one_p(above, below, side)
    return p


def draw_top_counts(sizes: Ints, k: int, draws: int, rng: np.random.Generator) -> Ints:
    """Top-k counts of random rankings, exact draws: draws x groups."""
    check_k(k, int(np.sum(sizes)))
    sizes = np.asarray(sizes, dtype=np.int64)
    return rng.multivariate_hypergeometric(sizes, k, size=draws, method="marginals")


def ndkl_null(
    sizes: Ints, shares: Floats, draws: int, rng: np.random.Generator, k: int | None = None
) -> Floats:
    """NDKL of random rankings against the desired shares: one a draw."""
    from tiltmeter.metrics.numpy_kernels import ndkl
    from tiltmeter.metrics.ranking import log_shares

    codes = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    found = np.empty(draws)
    step = max(1, 4_000_000 // len(codes))  # rankings held at one time
    for start in range(0, draws, step):
        ranked = np.stack([rng.permutation(codes) for _ in range(min(step, draws - start))])
        found[start : start + step] = ndkl(ranked[:, :k], log_shares(np.asarray(shares)))
    return found


def _hypergeometric(sizes: Ints, k: int) -> Any:
    from scipy.stats import hypergeom

    sizes = np.asarray(sizes, dtype=np.int64)
    check_k(k, int(sizes.sum()))
    return hypergeom(sizes.sum(), sizes, k)
