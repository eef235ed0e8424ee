"""Scores of any number of items as counts in bins, by group, and the NDKL that they imply.

Within a bin the order of the items is lost. NDKL of a whole ranking therefore comes with bounds
that hold for every order; the narrower the bins, the closer they are (docs/scale.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.special import exp1, expi

from tiltmeter.errors import InputError
from tiltmeter.metrics.numpy_kernels import in_rows, jit, ndkl_of_labels
from tiltmeter.metrics.ranking import log_shares
from tiltmeter.metrics.summary import TopItems
from tiltmeter.types import Floats, Ints

BINS = 2048
WIDTH = 6.0  # standard deviations on either side that the inner bins cover
LISTED = 1 << 16  # ranks whose discounts are added one by one; the others by a formula
AT_ONCE = 8  # queries worked on together: intermediate results are many times their bins
ABSENT = -1e30  # for the logarithm of 0: infinity would turn into NaN
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class HistogramGrid:
    """Bins of equal width for each query; the first and the last are open-ended."""

    low: Floats  # queries
    scale: Floats  # queries: bins in a score of 1
    bins: int = BINS

    @classmethod
    def around(cls, sample: Floats, bins: int = BINS) -> HistogramGrid:
        """Bins that fit scores like those of a sample, queries x items.

        All blocks must share one grid. It decides how close bounds are, never whether they hold.
        """
        sample = np.asarray(sample, np.float64)
        mean, spread = sample.mean(axis=1), sample.std(axis=1)
        spread = np.where(spread > 0, spread, np.maximum(np.abs(mean), 1.0) * 1e-3)
        return cls(mean - WIDTH * spread, bins / (2 * WIDTH * spread), bins)

    def same(self, other: HistogramGrid) -> bool:
        """Whether two grids have the same bins."""
        return self.bins == other.bins and bool(
            np.array_equal(self.low, other.low) and np.array_equal(self.scale, other.scale)
        )


@dataclass(frozen=True, eq=False)
class Histogram:
    """Number of items of each group in each bin; the best bin comes first."""

    grid: HistogramGrid
    counts: Ints  # queries x bins x groups

    @classmethod
    def empty(cls, grid: HistogramGrid, groups: int) -> Histogram:
        return cls(grid, np.zeros((len(grid.low), grid.bins, groups), np.int64))

    @classmethod
    def of(cls, scores: Floats, codes: Ints, groups: int, grid: HistogramGrid) -> Histogram:
        """The counts of one block: scores are queries x items."""
        return cls.empty(grid, groups).add(scores, codes)

    def add(self, scores: Floats, codes: Ints) -> Histogram:
        """Count one more block in place: a histogram is far larger than what a block adds."""
        grid, counts = self.grid, self.counts

        def work(part: slice) -> None:
            _count(scores[part], codes, grid.low[part], grid.scale[part], counts[part])

        in_rows(work, len(scores))
        return self

    def merge(self, other: Histogram) -> Histogram:
        """The counts of two blocks of items together."""
        return self.unpacked().absorb(other)

    def absorb(self, other: Histogram) -> Histogram:
        """`merge` in place, where counts have full width: no copy for each of many parts."""
        if not self.grid.same(other.grid):
            raise InputError("histograms of different bins cannot be merged: use one HistogramGrid")
        np.add(self.counts, other.counts, out=self.counts)
        return self

    def packed(self) -> Histogram:
        """The same in as few bytes as the counts need, for sending."""
        kind = np.min_scalar_type(self.counts.max(initial=0))
        return Histogram(self.grid, self.counts.astype(kind))

    def unpacked(self) -> Histogram:
        """A copy in full width, to which others can be added."""
        return Histogram(self.grid, self.counts.astype(np.int64))

    def regroup(self, codes: Ints, groups: int) -> Histogram:
        """The counts of coarser groups: group `g` becomes part of group `codes[g]`."""
        counts = np.zeros((*self.counts.shape[:2], groups), np.int64)
        for g, code in enumerate(codes):
            counts[:, :, code] += self.counts[:, :, g]
        return Histogram(self.grid, counts)


@jit
def _count(scores: Floats, codes: Ints, low: Floats, scale: Floats, counts: Ints) -> None:
    bins = counts.shape[1]
    for q in range(scores.shape[0]):
        for i in range(scores.shape[1]):
            at = (np.float64(scores[q, i]) - low[q]) * scale[q]
            # compared as a float: a far score would not fit an integer
            bin_ = bins - 1 if at >= bins else (0 if at < 0 else int(at))
            counts[q, bins - 1 - bin_, codes[i]] += 1


class BoundedValue(NamedTuple):
    """A value, and bounds that hold for any order within bins."""

    value: Floats
    low: Floats
    high: Floats


def ndkl_of_histogram(histogram: Histogram, shares: Floats, top: TopItems) -> BoundedValue:
    """NDKL of the whole ranking, one per query: exact in the first k, within bounds beyond.

    With counts c among the first i items, F(c) = i KL(c/i || q) = sum_g c_g ln(c_g / (i q_g)) is
    convex and grows with c: F(a + b) <= F(a) + F(b). At the edges of bins c is known; between them
    F is below the chord, except for what an uneven order adds, and above the tangents.
    """
    log_q = log_shares(shares)
    starts = range(0, len(histogram.counts), AT_ONCE)
    parts = [
        _sums(histogram.counts[at : at + AT_ONCE], top.codes[at : at + AT_ONCE], log_q)
        for at in starts
    ]
    total = discounts(histogram.counts[0].sum(keepdims=True))[0].item()
    value, low, high = (np.concatenate(part) / total for part in zip(*parts, strict=True))
    low, high = np.maximum(low - ROUNDING, 0.0), high + ROUNDING
    return BoundedValue(np.clip(value, low, high), low, high)


def _sums(counts: Ints, codes: Ints, log_q: Floats) -> tuple[Floats, Floats, Floats]:
    """Sums of discounted KL over all ranks, by query: an estimate, the minimum, the maximum."""
    groups = counts.shape[2]
    first = np.stack([np.bincount(row, minlength=groups) for row in codes])[:, None]
    ends = counts.cumsum(axis=1)
    # the order of the first k is known: bins begin after them
    ends = np.where(ends.sum(axis=2, keepdims=True) > codes.shape[1], ends, first)
    starts = np.concatenate([first, ends[:, :-1]], axis=1)
    inside = (ends - starts).astype(float)
    walk = _walk(np.concatenate([first, ends], axis=1), log_q)
    n, each, later, end = walk.n, walk.each, walk.later, ends.sum(axis=2)
    divisor = np.where(n > 0, n, 1.0)
    # by how many items an order can differ from the even one: n s (1 - s), where groups that
    # have the share s of the bin come first
    largest = np.maximum(inside.max(axis=2) / divisor, 0.5)
    displaced = n * largest * (1 - largest)
    present = inside > 0
    steepest = np.where(present, -log_q, 0.0).max(axis=2)  # F of one item is at most this

    # F(c) <= F(even) + F'(c) (c - even), and F(even) is below the chord
    slopes = _log_ratio(ends, end, log_q)
    uneven = displaced * _spread(present, _log_ratio(starts, end, log_q), slopes)
    high = np.minimum(walk.chord + uneven * each, walk.f[:, :-1] * each + steepest * later)

    # F(c) >= sum_g c_g ln(p_g / q_g) for any shares p: here those at the bin's end
    at_start = np.where(starts > 0, starts * slopes, 0.0).sum(axis=2)
    along = np.where(present, inside * slopes, 0.0).sum(axis=2) / divisor
    low = (at_start - displaced * _spread(present, slopes, slopes)) * each + along * later
    low = np.maximum(low, (walk.f[:, 1:] - n * steepest) * each + steepest * later)
    low = np.maximum(low, 0.0)

    first_weight = discounts(np.array([codes.shape[1]]))[0]
    exact = ndkl_of_labels(np.ascontiguousarray(codes), log_q) * first_weight
    estimate, least, most = (exact + part.sum(axis=1) for part in (walk.chord, low, high))
    return estimate, least, most


class _Walk(NamedTuple):
    """Rankings from one edge to the next, rankings x stretches; d_i is 1 / log2(i + 1)."""

    n: Floats  # ranks of the stretch
    each: Floats  # their sum of d_i / i
    later: Floats  # ... of d_i j / i, j being how far into the stretch i is
    f: Floats  # F at the edges, one more than there are stretches
    chord: Floats  # the sum of d_i F / i, if F goes straight from edge to edge
    weight: Floats  # the sum of d_i over all ranks up to the last, one per ranking


def _walk(edges: Ints, log_q: Floats) -> _Walk:
    """`edges` are the counts of groups up to each edge, rankings x edges x groups."""
    rank = edges.sum(axis=2)
    w_sum, v_sum = discounts(rank)
    n, each = np.diff(rank, axis=1).astype(float), np.diff(v_sum, axis=1)
    later = np.diff(w_sum, axis=1) - rank[:, :-1] * each
    f = _divergence(edges, log_q)
    chord = f[:, :-1] * each + np.diff(f, axis=1) / np.where(n > 0, n, 1.0) * later
    return _Walk(n, each, later, f, chord, w_sum[:, -1])


def ndkl_of_stretches(counts: Ints, shares: Floats) -> Floats:
    """NDKL of whole rankings whose groups are evenly mixed within stretches of ranks.

    Parameters
    ----------
    counts : array of int of shape (rankings, stretches, groups)
        Items of each group in each stretch; exact where stretches are single ranks.
    shares : array of shape (groups,)
        Desired shares.

    Returns
    -------
    array of shape (rankings,)
        NDKL in nats.

    Examples
    --------
    >>> ndkl_of_stretches(np.array([[[1, 0], [1, 0], [0, 1], [0, 1]]]), np.array([0.5, 0.5]))
    array([0.45...])
    """
    edges = np.concatenate([np.zeros_like(counts[:, :1]), counts.cumsum(axis=1)], axis=1)
    walk = _walk(edges, log_shares(shares))
    return np.asarray(walk.chord.sum(axis=1) / walk.weight)


def discounts(ranks: Ints) -> tuple[Floats, Floats]:
    """Sums over i = 1 .. rank of 1 / log2(i + 1), and of 1 / (i log2(i + 1)).

    Beyond the first they are integrals with the Euler-Maclaurin correction, exact to 1e-13.
    """
    far = ranks > LISTED
    x = np.array([LISTED + 1.0]), ranks[far] + 1.0
    out = []
    for power, listed in enumerate(_listed()):
        sums = listed[np.minimum(ranks, LISTED)]
        (from_, half0, slope0), (to, half1, slope1) = (_integral(end, power) for end in x)
        tail = to - from_ + (half1 - half0) / 2 + (slope1 - slope0) / 12
        sums[far] += np.log(2) * tail
        out.append(sums)
    return out[0], out[1]


@cache
def _listed() -> tuple[Floats, Floats]:
    i = np.arange(1.0, LISTED + 1)
    each = 1 / np.log2(i + 1)
    first, second = (np.concatenate([[0.0], np.cumsum(terms)]) for terms in (each, each / i))
    return first, second


def _integral(x: Floats, power: int) -> tuple[Floats, Floats, Floats]:
    """The integral of 1 / (ln x (x - 1)^power) up to x, its value and its slope there."""
    log, y = np.log(x), (x - 1) ** power
    slope = -1 / (x * log**2 * y) - power / (log * (x - 1) ** 2)
    if power == 0:
        return expi(log), 1 / log, slope
    # 1 / ((x - 1) ln x) = sum_m x^-m / ln x
    return np.log(log) - exp1(log) - exp1(2 * log) - exp1(3 * log), 1 / (log * y), slope


def _divergence(counts: Ints, log_q: Floats) -> Floats:
    """F: i KL(c/i || q), over the last axis."""
    total = counts.sum(axis=-1)
    gain = (counts * (np.log(np.maximum(counts, 1)) - log_q)).sum(axis=-1)
    return np.asarray(np.maximum(gain - total * np.log(np.maximum(total, 1)), 0.0))


def _log_ratio(counts: Ints, total: Ints, log_q: Floats) -> Floats:
    """ln(c_g / (total q_g)); far below any other for an absent group."""
    logs = np.where(counts > 0, np.log(np.maximum(counts, 1)), ABSENT)
    return np.asarray(logs - np.log(np.maximum(total, 1))[..., None] - log_q)


def _spread(present: Ints, least: Floats, most: Floats) -> Floats:
    """The largest `most` minus the smallest `least` of the groups present; 0 for one group."""
    high = np.where(present, most, -np.inf).max(axis=2)
    low = np.where(present, least, np.inf).min(axis=2)
    several = present.sum(axis=2) > 1
    return np.where(several, np.where(several, high, 0.0) - np.where(several, low, 0.0), 0.0)
