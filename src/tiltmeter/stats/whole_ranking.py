"""NDKL of a ranking too long to be drawn image by image: by chance, and in another sample.

Rankings are cut into stretches of ranks, single ones first, then each a little longer than the one
before. How many images of each group fall into a stretch has a known distribution: hypergeometric
where labels are dealt out anew, multinomial where the images of each group are resampled. NDKL of
the counts is what NDKL of the ranking is, but for the order within stretches.
"""

from __future__ import annotations

import numpy as np

from tiltmeter.metrics.histogram import ndkl_of_stretches
from tiltmeter.stats.null import MOST_DRAWN_FROM, stretches
from tiltmeter.types import Floats, Ints

SINGLE, GROWTH = 32, 1.06  # ranks that stand alone; each later end is so many times the one before


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
    """NDKL of random rankings of groups of these sizes, one a draw."""
    lengths = np.diff(cuts(int(np.sum(sizes))), prepend=0)
    found = []
    for part in stretches((draws, len(lengths), len(sizes)), 0):
        left = np.tile(np.asarray(sizes, np.int64), (part.stop - part.start, 1))
        counts = np.empty((len(left), len(lengths), len(sizes)), np.int64)
        for at, length in enumerate(lengths):
            counts[:, at] = _dealt(left, int(length), rng)
            left -= counts[:, at]
        found.append(ndkl_of_stretches(counts, shares))
    return np.concatenate(found)


def _dealt(left: Ints, length: int, rng: np.random.Generator) -> Ints:
    """How many of `length` images are of each group, of those left: draws x groups."""
    taken = np.empty_like(left)
    need, rest = np.full(len(left), length), left.sum(axis=1)
    for group in range(left.shape[1] - 1):
        mine = left[:, group]
        rest = rest - mine
        taken[:, group] = _hypergeometric(mine, rest, need, rng)
        need = need - taken[:, group]
    taken[:, -1] = need
    return taken


def _hypergeometric(good: Ints, bad: Ints, sample: Ints, rng: np.random.Generator) -> Ints:
    if max(good.max(), bad.max()) < MOST_DRAWN_FROM:
        return np.asarray(rng.hypergeometric(good, bad, sample))
    # beyond NumPy's limit; with so many images whole numbers do not show in a normal one
    total = np.maximum(good + bad, 1)
    share = good / total
    spread = np.sqrt(sample * share * (1 - share) * (total - sample) / np.maximum(total - 1, 1))
    drawn = np.rint(sample * share + spread * rng.standard_normal(len(good))).astype(np.int64)
    few = spread < 100
    drawn[few] = rng.binomial(sample[few], share[few])
    return np.asarray(np.clip(drawn, np.maximum(sample - bad, 0), np.minimum(sample, good)))


def stretch_counts(codes: Ints, bins: Ints) -> Ints:
    """Images of each group by stretch: of ranks known one by one, then of bins, bins x groups.

    >>> stretch_counts(np.array([0, 1]), np.array([[1, 1], [0, 2], [3, 0]])).tolist()
    [[1, 0], [0, 1], [0, 2], [3, 0]]
    """
    first, along = len(codes), bins.cumsum(axis=0)
    ends = cuts(int(bins.sum()))
    near = np.append(ends[ends < first], first)
    head = (codes[:, None] == np.arange(bins.shape[1])).cumsum(axis=0)[near - 1]
    # a cut beyond is moved to the end of its bin
    at = np.unique(np.searchsorted(along.sum(axis=1), ends[ends > first]))
    return np.diff(np.concatenate([head, along[at]]), axis=0, prepend=0)


def resampled_ndkl(counts: Ints, shares: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """NDKL where the images of each group are resampled; `counts` is stretches x groups."""
    columns = [
        rng.multinomial(size, column / size, draws) if (size := column.sum()) else
        np.zeros((draws, len(column)), np.int64)
        for column in counts.T
    ]  # fmt: skip
    return ndkl_of_stretches(np.stack(columns, axis=2), shares)
