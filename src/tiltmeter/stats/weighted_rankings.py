"""Top-k counts and NDKL of rankings for many bootstrap resamples at once.

Weights of `LANES` resamples are neighbours in memory, so one pass over a ranking counts the groups
for all of them. For NDKL a ranking is cut into stretches of ranks (`whole_ranking.cuts`), and NDKL
is computed where they end, as if groups were evenly mixed within them. Resamples are the same for
all queries, as they are where every rank is visited.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiltmeter.metrics.numpy_kernels import in_rows, jit
from tiltmeter.metrics.ranking import log_shares
from tiltmeter.stats.permuted_labels import ndkl_sums
from tiltmeter.stats.whole_ranking import SINGLE, cuts
from tiltmeter.types import Floats, Ints

LANES = 64  # draws processed together
ROWS = 248  # items counted together: they fit the first-level cache
ITEMS = 16  # items after which to look whether all resamples have k of them


@dataclass(frozen=True, eq=False)
class WeightLanes:
    """Bootstrap weights, draws x items, and a copy in which neighbours are draws of an item.

    Parameters
    ----------
    weights : array of uint8 of shape (draws, items)
        How often each resample contains each item.
    lanes : array of uint8 of shape (blocks of draws, items, LANES)
        The same, filled up with weights of 1.
    """

    weights: Ints
    lanes: Ints

    @classmethod
    def pack(cls, weights: Ints) -> WeightLanes:
        """Copy weights so that draws are neighbours.

        >>> weights = np.array([[2, 0, 1]], np.uint8)
        >>> WeightLanes.pack(weights).top_counts(np.array([[2, 0, 1]]), np.array([0, 0, 1]), 2, 2)
        array([[[1, 1]]], dtype=uint8)
        """
        draws, items = weights.shape
        lanes = np.ones((-(-draws // LANES), items, LANES), np.uint8)

        def work(part: slice) -> None:
            for start in range(0, draws, LANES):
                some = weights[start : start + LANES, part]
                lanes[start // LANES, part, : len(some)] = some.T

        in_rows(work, items, step=1024)
        return cls(weights, lanes)

    def __len__(self) -> int:
        return len(self.weights)

    def first(self, draws: int) -> WeightLanes:
        """The first draws."""
        return WeightLanes(self.weights[:draws], self.lanes[: -(-draws // LANES)])

    def top_counts(self, order: Ints, codes: Ints, k: int, groups: int) -> Ints:
        """Weighted counts of each group down a ranking until the weights sum to k.

        They are draws x queries x groups.
        """
        kind = np.min_scalar_type(k)
        out = np.empty((len(order), len(self.lanes) * LANES, groups), kind)
        every = np.full(LANES, k, kind)

        def work(part: slice) -> None:
            for block, weights in enumerate(self.lanes):
                at = slice(block * LANES, (block + 1) * LANES)
                _top_counts(order[part], codes, weights, every, out[part, at])

        in_rows(work, len(order))
        return out[:, : len(self)].swapaxes(0, 1)

    def ndkl(self, order: Ints, codes: Ints, shares: Floats) -> Floats:
        """NDKL of each row of `order` by stretches of ranks: draws x queries."""
        items, codes = order.shape[1], codes.astype(np.uint8)
        tables = (cuts(items), log_shares(shares), *ndkl_sums(items))
        out = np.empty((len(order), len(self.lanes) * LANES))

        def work(part: slice) -> None:
            for block, weights in enumerate(self.lanes):
                at = slice(block * LANES, (block + 1) * LANES)
                _weighted(order[part], codes, weights, *tables, out[part, at])

        in_rows(work, len(order))
        return out[:, : len(self)].T


@jit
def _top_counts(order: Ints, codes: Ints, weights: Ints, every: Ints, out: Ints) -> None:
    groups = out.shape[2]
    counts, left = np.empty((groups, LANES), every.dtype), np.empty(LANES, every.dtype)
    for q in range(order.shape[0]):
        counts[:] = 0
        left[:] = every
        for start in range(0, order.shape[1], ITEMS):
            for i in range(start, min(start + ITEMS, order.shape[1])):
                item = np.uint64(order[q, np.uint64(i)])
                code = np.uint64(codes[item])
                for d in range(LANES):
                    taken = min(weights[item, d], left[d])
                    counts[code, d] += taken
                    left[d] -= taken
            if not left.any():
                break
        for g in range(groups):
            for d in range(LANES):
                out[q, d, g] = counts[g, d]


@jit
def _weighted(
    order: Ints,
    codes: Ints,
    weights: Ints,
    ends: Ints,
    log_target: Floats,
    xlogx: Floats,
    d_sum: Floats,
    d_sum_each: Floats,
    out: Floats,
) -> None:
    groups = log_target.shape[0]
    summed = np.zeros((groups, LANES), np.uint16)  # holds 256 of the largest weights
    for q in range(order.shape[0]):
        counts, rank = np.zeros((groups, LANES), np.int32), np.zeros(LANES, np.int32)
        f, total = np.zeros(LANES), np.zeros(LANES)
        start = 0
        for end in ends:
            if end <= SINGLE:  # copies of the first items are ranks of their own
                item = np.uint64(order[q, start])
                _climb(weights[item], counts, codes[item], log_target, xlogx, d_sum_each,
                       rank, f, total)  # fmt: skip
                start = end
                continue
            while start < end:
                rows = min(ROWS, end - start)
                for i in range(start, start + rows):
                    item = np.uint64(order[q, i])
                    weight, to = weights[item], summed[np.uint64(codes[item])]
                    for d in range(LANES):
                        to[d] += weight[d]
                for g in range(groups):
                    for d in range(LANES):
                        counts[g, d] += summed[g, d]
                        summed[g, d] = 0
                start += rows
            _advance(counts, log_target, xlogx, d_sum, d_sum_each, rank, f, total)
        for d in range(LANES):
            out[q, d] = total[d] / d_sum[order.shape[1]]


@jit
def _climb(
    weight: Ints,
    counts: Ints,
    group: int,
    log_target: Floats,
    xlogx: Floats,
    d_sum_each: Floats,
    rank: Ints,
    f: Floats,
    total: Floats,
) -> None:
    """Add the copies of one item, rank by rank."""
    for d in range(LANES):
        for _ in range(weight[d]):
            counts[group, d] += 1
            rank[d] += 1
            at, gain = rank[d], 0.0
            for g in range(counts.shape[0]):
                gain += xlogx[counts[g, d]] - counts[g, d] * log_target[g]
            f[d] = max(gain - xlogx[at], 0.0)
            total[d] += f[d] * (d_sum_each[at] - d_sum_each[at - 1])


@jit
def _advance(
    counts: Ints,
    log_target: Floats,
    xlogx: Floats,
    d_sum: Floats,
    d_sum_each: Floats,
    rank: Ints,
    f: Floats,
    total: Floats,
) -> None:
    """Add a stretch: F = i KL goes straight from its beginning to its end."""
    gain, at = np.zeros(LANES), np.zeros(LANES, np.int32)
    for g in range(counts.shape[0]):
        row, log_q = counts[g], log_target[g]
        for d in range(LANES):
            at[d] += row[d]
            gain[d] += xlogx[np.uint32(row[d])] - row[d] * log_q
    for d in range(LANES):
        before, now = rank[d], at[d]
        if now > before:  # a resample may have none of these items
            f_now = max(gain[d] - xlogx[now], 0.0)
            each = d_sum_each[now] - d_sum_each[before]
            later = d_sum[now] - d_sum[before] - before * each
            total[d] += f[d] * each + (f_now - f[d]) / (now - before) * later
            f[d], rank[d] = f_now, now
