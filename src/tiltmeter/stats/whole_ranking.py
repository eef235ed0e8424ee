"""NDKL of rankings that are too long to be drawn image by image: null and bootstrap resamples.

Rankings are cut into stretches of ranks, single ranks first, then each a little longer than the one
before. How many images of each group are in a stretch has a known distribution: hypergeometric
under permuted labels, multinomial where the images of each group are resampled. NDKL of the counts
is NDKL of the ranking, except for the order within stretches.
"""

from __future__ import annotations

import numpy as np

from tiltmeter.metrics.histogram import ndkl_of_stretches
from tiltmeter.stats.null import MOST_DRAWN_FROM, slices_of_draws
from tiltmeter.types import Floats, Ints

LONG = 2048  # items of a ranking from which stretches are faster than single ranks
SINGLE, GROWTH = 32, 1.06  # single ranks; each later end is this multiple of the one before


def cuts(items: int) -> Ints:
    """The last rank of each stretch.

    >>> cuts(40)[-5:], len(cuts(10**9))
    (array([31, 32, 34, 37, 40]), 325)
    """
    ends = list(range(1, min(SINGLE, items) + 1))
    while ends[-1] < items:
        ends.append(min(int(np.ceil(ends[-1] * GROWTH)), items))
    return np.array(ends)


def ndkl_by_chance(sizes: Ints, shares: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """NDKL of random rankings of any length.

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

    Returns
    -------
    array of shape (draws,)
        One NDKL per random ranking.

    Examples
    --------
    >>> null = ndkl_by_chance([10**9, 10**9], np.array([0.5, 0.5]), 9, np.random.default_rng(0))
    >>> bool(null.max() < 1e-6)
    True
    """
    lengths = np.diff(cuts(int(np.sum(sizes))), prepend=0)
    null = []
    for part in slices_of_draws((draws, len(lengths), len(sizes)), 0):
        left = np.tile(np.asarray(sizes, np.int64), (part.stop - part.start, 1))
        counts = np.empty((len(left), len(lengths), len(sizes)), np.int64)
        for at, length in enumerate(lengths):
            counts[:, at] = _draw_counts(left, int(length), rng)
            left -= counts[:, at]
        null.append(ndkl_of_stretches(counts, shares))
    return np.concatenate(null)


def _draw_counts(left: Ints, length: int, rng: np.random.Generator) -> Ints:
    """Number of images of each group among the next `length`, of those left: draws x groups."""
    taken = np.empty_like(left)
    need, rest = np.full(len(left), length), left.sum(axis=1)
    for group in range(left.shape[1] - 1):
        own = left[:, group]
        rest = rest - own
        taken[:, group] = _hypergeometric(own, rest, need, rng)
        need = need - taken[:, group]
    taken[:, -1] = need
    return taken


def _hypergeometric(good: Ints, bad: Ints, sample: Ints, rng: np.random.Generator) -> Ints:
    if max(good.max(), bad.max()) < MOST_DRAWN_FROM:
        return np.asarray(rng.hypergeometric(good, bad, sample))
    # beyond NumPy's limit; with so many images a rounded normal is as good
    total = np.maximum(good + bad, 1)
    share = good / total
    spread = np.sqrt(sample * share * (1 - share) * (total - sample) / np.maximum(total - 1, 1))
    drawn = np.rint(sample * share + spread * rng.standard_normal(len(good))).astype(np.int64)
    few = spread < 100
    drawn[few] = rng.binomial(sample[few], share[few])
    return np.asarray(np.clip(drawn, np.maximum(sample - bad, 0), np.minimum(sample, good)))


def stretch_counts(codes: Ints, bins: Ints) -> Ints:
    """Images of each group by stretch: single ranks, then bins.

    Parameters
    ----------
    codes : array of int of shape (ranks,)
        Groups of the first ranks, whose order is known.
    bins : array of int of shape (bins, groups)
        Images of each group in each bin of scores, best first.

    Returns
    -------
    array of int of shape (stretches, groups)
        Counts that sum to those of the bins.

    Examples
    --------
    >>> stretch_counts(np.array([0, 1]), np.array([[1, 1], [0, 2], [3, 0]])).tolist()
    [[1, 0], [0, 1], [0, 2], [3, 0]]
    """
    first, along = len(codes), bins.cumsum(axis=0)
    ends = cuts(int(bins.sum()))
    near = np.append(ends[ends < first], first)
    head = (codes[:, None] == np.arange(bins.shape[1])).cumsum(axis=0)[near - 1]
    # later cuts are moved to the end of their bin
    at = np.unique(np.searchsorted(along.sum(axis=1), ends[ends > first]))
    return np.diff(np.concatenate([head, along[at]]), axis=0, prepend=0)


def resampled_ndkl(counts: Ints, shares: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """NDKL of bootstrap resamples of the images of each group.

    Parameters
    ----------
    counts : array of int of shape (stretches, groups)
        As `stretch_counts` returns them.
    shares : array of shape (groups,)
        Desired shares.
    draws : int
        Number of resamples.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    array of shape (draws,)
        One NDKL per resample.

    Examples
    --------
    >>> counts = np.array([[1, 0], [0, 1], [0, 2], [3, 0]])
    >>> resampled_ndkl(counts, np.array([0.5, 0.5]), 3, np.random.default_rng(0)).shape
    (3,)
    """
    columns = [
        rng.multinomial(size, column / size, draws) if (size := column.sum()) else
        np.zeros((draws, len(column)), np.int64)
        for column in counts.T
    ]  # fmt: skip
    return ndkl_of_stretches(np.stack(columns, axis=2), shares)
