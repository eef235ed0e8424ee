"""What a model without any tilt would score: the noise floor of every ranking metric.

If the groups have nothing to do with the scores, the counts of the groups in the top k are
multivariate hypergeometric, whatever the model. So the null needs no model, only the sizes of
the groups: exact for counts, by exact draws for what is computed from them, by random rankings
for NDKL.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tiltmeter.errors import UnknownNameError
from tiltmeter.metrics.summary import check_k
from tiltmeter.stats import defined
from tiltmeter.types import Floats, Ints

SIDES = ("two", "greater", "less")
#: Absorbs rounding where a drawn value and the observed one are the same number.
TOLERANCE = 1e-9
SINGLE_TOLERANCE = 1e-5  # where draws are in single precision
AT_ONCE = 2**20  # numbers worked on at one time: draws are many, and statistics copy them


def tolerance(draws: Floats) -> float:
    """How near two values must be to count as tied."""
    return SINGLE_TOLERANCE if draws.dtype == np.float32 else TOLERANCE


def stretches(shape: tuple[int, ...], axis: int) -> Iterator[slice]:
    """Slices along an axis of draws, none with more than `AT_ONCE` numbers if that can be."""
    length = shape[axis]
    each = math.prod(shape) // max(length, 1)
    step = max(AT_ONCE // max(each, 1), 1)
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


class NullBand(NamedTuple):
    """Mean and central 95% of a null distribution."""

    mean: Floats
    lo: Floats
    hi: Floats


def band_of(draws: Floats) -> NullBand:
    """Mean, 2.5th and 97.5th percentile over the first axis."""
    if draws.ndim == 1:
        lo, hi = defined.quantile(draws, [0.025, 0.975])
        return NullBand(defined.mean(draws), lo, hi)
    band = NullBand(*np.empty((3, *draws.shape[1:])))
    for at in stretches(draws.shape, 1):
        band.lo[at], band.hi[at] = defined.quantile(draws[:, at], [0.025, 0.975])
        band.mean[at] = defined.mean(draws[:, at])
    return band


def p_of_draws(value: Any, draws: Floats, side: str = "two") -> Floats:
    """Share of the draws (first axis) at least as extreme as `value`: (b + 1) / (R + 1).

    `two` is twice the smaller of the two sides, at most 1. Undefined draws do not count.

    >>> p_of_draws(2.0, np.array([0.0, 1.0, 2.0, 3.0]), "greater")
    np.float64(0.6)
    """
    value = np.asarray(value, dtype=float)
    slack = tolerance(draws) * (1 + np.abs(value))
    # a mask a time: draws are many
    points = 1 + len(draws) - np.isnan(draws).sum(axis=0)
    above = (1 + (draws >= value - slack).sum(axis=0)) / points
    below = (1 + (draws <= value + slack).sum(axis=0)) / points
    p = np.asarray(one_p(above, below, side))
    return np.where(np.isnan(value), np.nan, p)[()]


def p_of_sample(values: Floats, draws: Floats, side: str = "two") -> Floats:
    """`p_of_draws` of many values against one sample of draws.

    >>> p_of_sample(np.array([2.0, -1.0]), np.array([0.0, 1.0, 2.0, 3.0]), "greater")
    array([0.6, 1. ])
    """
    values, ordered = np.asarray(values, dtype=float), np.sort(draws[~np.isnan(draws)])
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


def top_count_null(sizes: Ints, k: int) -> NullBand:
    """Exact null of the top-k count of each group: hypergeometric.

    >>> top_count_null([50, 50], k=10)
    NullBand(mean=array([5., 5.]), lo=array([2., 2.]), hi=array([8., 8.]))
    """
    sizes = np.asarray(sizes)
    tails = [_tails(size, sizes.sum(), k) for size in sizes]
    lo = [np.searchsorted(below, 0.025 - TOLERANCE) for _, below in tails]
    hi = [np.searchsorted(below, 0.975 - TOLERANCE) for _, below in tails]
    return NullBand(k * sizes / sizes.sum(), np.array(lo, float), np.array(hi, float))


def top_count_p(counts: Floats, sizes: Ints, k: int, side: str = "two") -> Floats:
    """Exact p-value of top-k counts (... x groups).

    A count between two whole numbers, which only expected ties produce, is given the larger
    p-value of its neighbours.

    >>> top_count_p(np.array([[10, 0], [5, 5]]), [50, 50], k=10).round(4)
    array([[0.0012, 0.0012],
           [1.    , 1.    ]])
    """
    counts, sizes = np.asarray(counts, dtype=float), np.asarray(sizes)
    p = np.empty(counts.shape)
    for group, size in enumerate(sizes):
        above, below = _tails(size, sizes.sum(), k)
        one = counts[..., group]
        p[..., group] = one_p(
            above[np.floor(one + TOLERANCE).astype(int)],
            below[np.ceil(one - TOLERANCE).astype(int)],
            side,
        )
    return p


def _tails(size: int, items: int, k: int) -> tuple[Floats, Floats]:
    """P(count >= c) and P(count <= c) for c = 0 ... k, of a group among `items`, in the top k.

    From the ratios of neighbouring probabilities, all at once: scipy's tails sum anew for each
    count, which takes seconds for a table of words.
    """
    check_k(k, int(items))
    least, most = max(0, k - (int(items) - int(size))), min(int(size), k)
    c = np.arange(least, most, dtype=float)
    ratio = (size - c) * (k - c) / ((c + 1) * (items - size - k + c + 1))
    log_mass = np.concatenate([[0.0], np.cumsum(np.log(ratio))])
    mass = np.zeros(k + 1)
    mass[least : most + 1] = np.exp(log_mass - log_mass.max())
    mass /= mass.sum()
    return np.minimum(1.0, mass[::-1].cumsum()[::-1]), np.minimum(1.0, mass.cumsum())


MOST_DRAWN_FROM = 10**9  # NumPy's limit for draws without replacement


def draw_top_counts(sizes: Ints, k: int, draws: int, rng: np.random.Generator) -> Ints:
    """Top-k counts of random rankings, exact draws: draws x groups.

    From a thousand million items on they are drawn with replacement, which then changes nothing.
    """
    sizes = np.asarray(sizes, dtype=np.int64)
    total = int(sizes.sum())
    check_k(k, total)
    if total >= MOST_DRAWN_FROM:
        return rng.multinomial(k, sizes / total, size=draws)
    return rng.multivariate_hypergeometric(sizes, k, size=draws, method="marginals")


def overlapping_null(
    shares: Floats, times: Sequence[int], sizes: Sequence[int]
) -> tuple[NullBand, Floats]:
    """Null and p-value of groups' mean shares in several top lists, some images being in many.

    Labels are dealt out anew, once for all lists. An image that stands in m lists counts m times
    (`times`, of those that are in any). So the mean share of a group of share q among n images has
    the variance q (1 - q) n / (n - 1) (sum of m^2 - (sum of m)^2 / n) / (sum of m)^2, exactly; its
    distribution is taken for normal.

    >>> band, p = overlapping_null(np.array([0.7, 0.3]), [2] * 50, [50, 50])  # one list twice
    >>> band.lo.round(3), p.round(4)
    (array([0.402, 0.402]), array([0.0001, 0.0001]))
    """
    from scipy.stats import norm

    m, size = np.array(times, float), np.array(sizes, float)
    total, n = m.sum(), size.sum()
    q = size / n
    spread = max(float((m**2).sum() - total**2 / n), 0.0)
    sd = np.sqrt(q * (1 - q) * n / (n - 1) * spread) / total
    # a top k of all images holds everybody, however labels are dealt out
    z = np.divide(shares - q, sd, out=np.zeros_like(q), where=sd > 0)
    low, high = (np.clip(q + norm.ppf(edge) * sd, 0, 1) for edge in (0.025, 0.975))
    return NullBand(q, low, high), np.asarray(2 * norm.sf(np.abs(z)))


def ndkl_null(
    sizes: Ints, shares: Floats, draws: int, rng: np.random.Generator, k: int | None = None
) -> Floats:
    """NDKL of random rankings against the desired shares: one a draw."""
    from tiltmeter.metrics.numpy_kernels import ndkl_of_labels
    from tiltmeter.metrics.ranking import log_shares

    codes = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    found = np.empty(draws)
    for draw in range(draws):  # the ranking may stay as it is when the labels are dealt out
        dealt = rng.permutation(codes)[None, :k]
        found[draw] = ndkl_of_labels(dealt, log_shares(np.asarray(shares)))[0]
    return found
