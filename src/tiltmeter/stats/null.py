"""Null distributions: what an unbiased model would score on every ranking metric.

If scores do not depend on the groups, the counts of the groups in the top k are multivariate
hypergeometric for any model. So the null needs no model, only the sizes of the groups: exact for
counts, by exact draws for what is computed from them, by random rankings for NDKL.
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
CENTRAL = (0.025, 0.975)  # quantiles of the central 95%
#: Absorbs rounding where a drawn value and the observed one are equal.
TOLERANCE = 1e-9
SINGLE_TOLERANCE = 1e-5  # where draws are in single precision
AT_ONCE = 2**19  # numbers per core processed at one time: draws are many, and statistics copy them


def tie_tolerance(draws: Floats) -> float:
    """How close two values must be to count as tied."""
    return SINGLE_TOLERANCE if draws.dtype == np.float32 else TOLERANCE


def slices_of_draws(shape: tuple[int, ...], axis: int) -> Iterator[slice]:
    """Slices along an axis of draws, of at most `AT_ONCE` numbers per core where possible."""
    from tiltmeter.metrics.numpy_kernels import cores

    length = shape[axis]
    each = math.prod(shape) // max(length, 1)
    step = max(AT_ONCE * cores() // max(each, 1), 1)
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


class NullBand(NamedTuple):
    """Mean and central 95% of a null distribution.

    Attributes
    ----------
    mean, low, high : array
        Mean, 2.5th and 97.5th percentile.
    """

    mean: Floats
    low: Floats
    high: Floats


def null_band(draws: Floats) -> NullBand:
    """Null band of draws.

    Parameters
    ----------
    draws : array of shape (draws, ...)
        Values under the null.

    Returns
    -------
    NullBand
        Mean, 2.5th and 97.5th percentile over the first axis.

    Examples
    --------
    >>> [float(part) for part in null_band(np.arange(101.0))]
    [50.0, 2.5, 97.5]
    """
    return NullBand(defined.mean(draws), *defined.quantile(draws, CENTRAL))


def null_band_and_scale(draws: Floats, observed: Floats) -> tuple[NullBand, tuple[Floats, Floats]]:
    """`null_band`, and the scale that `standardised_max_t` takes, in one pass over the draws.

    Parameters
    ----------
    draws : array of shape (draws, ...)
        Values under the null.
    observed : array of shape (...)
        The observed values.

    Returns
    -------
    band : NullBand
        Mean, 2.5th and 97.5th percentile over the first axis.
    scale : tuple of two arrays
        Mean and standard deviation of the draws and the observed value together.

    Examples
    --------
    >>> band, (centre, spread) = null_band_and_scale(np.array([[1.0], [3.0]]), np.array([5.0]))
    >>> band.mean, centre, spread
    (array([2.]), array([3.]), array([2.]))
    """
    mean, scale = defined.mean_and_scale(draws, observed)
    return NullBand(mean, *defined.quantile(draws, CENTRAL)), scale


def p_from_null_draws(value: Any, draws: Floats, side: str = "two") -> Floats:
    """P-value of a value against its null draws: (b + 1) / (R + 1), b of R at least as extreme.

    Parameters
    ----------
    value : array of shape (...)
        The observed value; NaN has no p-value.
    draws : array of shape (draws, ...)
        Null draws of each value; NaN does not count.
    side : {"two", "greater", "less"}
        What is extreme. `two` is twice the smaller of the two tails, at most 1.

    Returns
    -------
    array of shape (...)
        P-values.

    Raises
    ------
    UnknownNameError
        `side` is another string.

    Examples
    --------
    >>> p_from_null_draws(2.0, np.array([0.0, 1.0, 2.0, 3.0]), "greater")
    np.float64(0.6)
    """
    value = np.asarray(value, dtype=float)
    slack = tie_tolerance(draws) * (1 + np.abs(value))
    above, below, points = defined.tails(draws, value - slack, value + slack)
    p = np.asarray(p_from_two_tails((above + 1) / (points + 1), (below + 1) / (points + 1), side))
    return np.where(np.isnan(value), np.nan, p)[()]


def p_from_shared_null(values: Floats, draws: Floats, side: str = "two") -> Floats:
    """P-values of many values against one sample of null draws.

    Parameters
    ----------
    values : array
        The observed values; NaN has no p-value.
    draws : array of shape (draws,)
        Null draws that serve all values; NaN does not count.
    side : {"two", "greater", "less"}
        What is extreme.

    Returns
    -------
    array
        P-values, of the shape of `values`.

    Raises
    ------
    UnknownNameError
        `side` is another string.

    Examples
    --------
    >>> p_from_shared_null(np.array([2.0, -1.0]), np.array([0.0, 1.0, 2.0, 3.0]), "greater")
    array([0.6, 1. ])
    """
    values, ordered = np.asarray(values, dtype=float), np.sort(draws[~np.isnan(draws)])
    slack = TOLERANCE * (1 + np.abs(values))
    above = 1 + len(ordered) - np.searchsorted(ordered, values - slack, side="left")
    below = 1 + np.searchsorted(ordered, values + slack, side="right")
    p = p_from_two_tails(above / (len(ordered) + 1), below / (len(ordered) + 1), side)
    return np.where(np.isnan(values), np.nan, p)


def p_from_two_tails(above: Any, below: Any, side: str) -> Any:
    """Combine the p-values of two tails.

    Parameters
    ----------
    above, below : float or array
        P-values of the upper and the lower tail.
    side : {"two", "greater", "less"}
        `two` is twice the smaller of the two, at most 1.

    Returns
    -------
    float or array
        The p-value.

    Raises
    ------
    UnknownNameError
        `side` is another string.

    Examples
    --------
    >>> float(p_from_two_tails(0.02, 0.99, "two"))
    0.04
    """
    if side not in SIDES:
        raise UnknownNameError("side", side, SIDES)
    if side == "two":
        return np.minimum(1.0, 2 * np.minimum(above, below))
    return above if side == "greater" else below


def top_count_null(sizes: Ints, k: int) -> NullBand:
    """Exact null of the top-k count of each group: hypergeometric.

    Parameters
    ----------
    sizes : array of int of shape (groups,)
        Sizes of the groups.
    k : int
        Size of the top.

    Returns
    -------
    NullBand
        Mean and central 95% of each count.

    Raises
    ------
    InputError
        `k` is out of range.

    Examples
    --------
    >>> top_count_null([50, 50], k=10)
    NullBand(mean=array([5., 5.]), low=array([2., 2.]), high=array([8., 8.]))
    """
    sizes = np.asarray(sizes)
    tails = [_tails(size, sizes.sum(), k) for size in sizes]
    lo = [np.searchsorted(below, 0.025 - TOLERANCE) for _, below in tails]
    hi = [np.searchsorted(below, 0.975 - TOLERANCE) for _, below in tails]
    return NullBand(k * sizes / sizes.sum(), np.array(lo, float), np.array(hi, float))


def top_count_p(counts: Floats, sizes: Ints, k: int, side: str = "two") -> Floats:
    """Exact p-value of top-k counts.

    Parameters
    ----------
    counts : array of shape (..., groups)
        Top-k counts. One between two integers, which only expected ties produce, gets the larger
        p-value of its neighbours.
    sizes : array of int of shape (groups,)
        Sizes of the groups.
    k : int
        Size of the top.
    side : {"two", "greater", "less"}
        What is extreme.

    Returns
    -------
    array of shape (..., groups)
        P-values.

    Raises
    ------
    InputError
        `k` is out of range.
    UnknownNameError
        `side` is another string.

    Examples
    --------
    >>> top_count_p(np.array([[10, 0], [5, 5]]), [50, 50], k=10).round(4)
    array([[0.0012, 0.0012],
           [1.    , 1.    ]])
    """
    counts, sizes = np.asarray(counts, dtype=float), np.asarray(sizes)
    p = np.empty(counts.shape)
    for group, size in enumerate(sizes):
        above, below = _tails(size, sizes.sum(), k)
        count = counts[..., group]
        p[..., group] = p_from_two_tails(
            above[np.floor(count + TOLERANCE).astype(int)],
            below[np.ceil(count - TOLERANCE).astype(int)],
            side,
        )
    return p


def _tails(size: int, items: int, k: int) -> tuple[Floats, Floats]:
    """P(count >= c) and P(count <= c) for c = 0 ... k, of a group among `items`, in the top k.

    From the ratios of neighbouring probabilities, all at once: scipy's tails sum again for each
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
    """Exact draws of the top-k counts of random rankings.

    Parameters
    ----------
    sizes : array of int of shape (groups,)
        Sizes of the groups.
    k : int
        Size of the top.
    draws : int
        Number of draws.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    array of int of shape (draws, groups)
        Rows sum to k. From a billion items on they are drawn with replacement, which makes no
        difference there.

    Raises
    ------
    InputError
        `k` is out of range.

    Examples
    --------
    >>> draw_top_counts([50, 50], 10, 3, np.random.default_rng(0)).sum(axis=1).tolist()
    [10, 10, 10]
    """
    sizes = np.asarray(sizes, dtype=np.int64)
    total = int(sizes.sum())
    check_k(k, total)
    if total >= MOST_DRAWN_FROM:
        return rng.multinomial(k, sizes / total, size=draws)
    return rng.multivariate_hypergeometric(sizes, k, size=draws, method="marginals")


def null_of_shares_in_lists(
    shares: Floats, times: Sequence[int], sizes: Sequence[int]
) -> tuple[NullBand, Floats]:
    """Null and p-value of groups' mean shares in several top lists that share images.

    Labels are permuted once for all lists. An image in m lists counts m times, so the mean share of
    a group of share q among n images has exactly the variance
    q (1 - q) n / (n - 1) (sum of m^2 - (sum of m)^2 / n) / (sum of m)^2. Its distribution is taken
    to be normal.

    Parameters
    ----------
    shares : array of shape (groups,)
        Observed mean shares.
    times : sequence of int
        How many lists each image is in, for images in any.
    sizes : sequence of int
        Sizes of the groups.

    Returns
    -------
    band : NullBand
        Null of each group's share.
    p : array of shape (groups,)
        Two-sided p-values.

    Examples
    --------
    >>> band, p = null_of_shares_in_lists(np.array([0.7, 0.3]), [2] * 50, [50, 50])
    >>> band.low.round(3), p.round(4)
    (array([0.402, 0.402]), array([0.0001, 0.0001]))
    """
    from scipy.stats import norm

    m, size = np.array(times, float), np.array(sizes, float)
    total, n = m.sum(), size.sum()
    q = size / n
    spread = max(float((m**2).sum() - total**2 / n), 0.0)
    sd = np.sqrt(q * (1 - q) * n / (n - 1) * spread) / total
    # a top k of all images contains everybody, whatever the labels
    z = np.divide(shares - q, sd, out=np.zeros_like(q), where=sd > 0)
    low, high = (np.clip(q + norm.ppf(edge) * sd, 0, 1) for edge in (0.025, 0.975))
    return NullBand(q, low, high), np.asarray(2 * norm.sf(np.abs(z)))


def ndkl_null(
    sizes: Ints, shares: Floats, draws: int, rng: np.random.Generator, k: int | None = None
) -> Floats:
    """NDKL of random rankings.

    Parameters
    ----------
    sizes : array of int of shape (groups,)
        Sizes of the groups.
    shares : array of shape (groups,)
        Desired shares.
    draws : int
        Number of random rankings.
    rng : numpy.random.Generator
        Source of randomness.
    k : int, optional
        Of the first k ranks instead of the whole ranking.

    Returns
    -------
    array of shape (draws,)
        One NDKL per random ranking.

    Examples
    --------
    >>> null = ndkl_null([50, 50], [0.5, 0.5], 99, np.random.default_rng(0))
    >>> bool(0 < null.mean() < 0.2)
    True
    """
    from tiltmeter.metrics.numpy_kernels import ndkl_of_labels
    from tiltmeter.metrics.ranking import log_shares

    codes = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    null = np.empty(draws)
    for draw in range(draws):  # permuting labels is the same as permuting the ranking
        permuted = rng.permutation(codes)[None, :k]
        null[draw] = ndkl_of_labels(permuted, log_shares(np.asarray(shares)))[0]
    return null
