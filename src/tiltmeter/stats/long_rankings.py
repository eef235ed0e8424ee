"""NDKL of long rankings for many permutations or bootstrap resamples at once.

A ranking is cut into stretches of ranks (`whole_ranking.cuts`). Labels or weights of `LANES` draws
are neighbours in memory, so one pass over the items of a stretch counts its groups for all of them,
and NDKL is computed where stretches end, as if groups were evenly mixed within them. Draws are the
same for all queries, as they are where every rank is visited.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from tiltmeter.metrics.numpy_kernels import in_rows, jit
from tiltmeter.metrics.ranking import log_shares
from tiltmeter.stats.whole_ranking import SINGLE, cuts
from tiltmeter.types import Floats, Ints

LONG = 2048  # items of a ranking from which stretches are faster than single ranks
LANES = 64  # draws processed together
ROWS = 248  # items counted together: their number fits a byte, and they fit the first-level cache
_NOBODY = 255  # the label of no group
#: Computes the values of some queries (queries x draws) from labels or weights (items x draws).
LaneWork: TypeAlias = Callable[[slice, Ints, Floats], None]


def relabelled_ndkl(order: Ints, codes: Ints, of: Ints, shares: Floats) -> Floats:
    """NDKL of each row of `order`, for each row of `codes`: draws x queries.

    `codes` are labels, draws x items, and `of` the group of each label.
    """
    tables = _tables(order.shape[1], shares)

    def work(queries: slice, lanes: Ints, out: Floats) -> None:
        _relabelled(order[queries], lanes, *tables, out)

    return _in_lanes(work, lambda part: of[codes[part]], codes.shape, len(order))


def weighted_ndkl(order: Ints, codes: Ints, weights: Ints, shares: Floats) -> Floats:
    """NDKL of each row of `order`, for each row of `weights` (draws x items): draws x queries."""
    tables, codes = _tables(order.shape[1], shares), codes.astype(np.uint8)

    def work(queries: slice, lanes: Ints, out: Floats) -> None:
        _weighted(order[queries], codes, lanes, *tables, out)

    return _in_lanes(work, lambda part: weights[part], weights.shape, len(order))


def _tables(items: int, shares: Floats) -> tuple[Ints, Floats, Floats, Floats, Floats]:
    """Ends of stretches, ln of shares, x ln x, and sums of d_i and d_i / i up to each rank."""
    x = np.arange(items + 1.0)
    discount = 1 / np.log2(x[1:] + 1)
    d_sum, d_sum_each = (np.append(0.0, np.cumsum(d)) for d in (discount, discount / x[1:]))
    return cuts(items), log_shares(shares), x * np.log(np.maximum(x, 1.0)), d_sum, d_sum_each


def _in_lanes(
    work: LaneWork,
    read: Callable[[slice], Ints],
    shape: tuple[int, ...],
    queries: int,
) -> Floats:
    """Call `work` for `LANES` draws at a time, which are given to it as items x draws."""
    draws, items = shape
    out = np.empty((draws, queries))
    for start in range(0, draws, LANES):
        part = read(slice(start, start + LANES))
        lanes = np.ones((items, LANES), np.uint8)
        lanes[:, : len(part)] = part.T
        values = np.empty((queries, LANES))
        in_rows(partial(_in_rows_of, work, lanes, values), queries)
        out[start : start + LANES] = values[:, : len(part)].T
    return out


def _in_rows_of(work: LaneWork, lanes: Ints, values: Floats, queries: slice) -> None:
    work(queries, lanes, values[queries])


@jit
def _relabelled(
    order: Ints,
    labels: Ints,
    ends: Ints,
    log_target: Floats,
    xlogx: Floats,
    d_sum: Floats,
    d_sum_each: Floats,
    out: Floats,
) -> None:
    groups = log_target.shape[0]
    near = np.empty((ROWS, LANES), np.uint8)
    words, label_words = near.view(np.uint64), labels.view(np.uint64)  # of eight draws each
    counted = np.empty(LANES, np.uint8)
    for q in range(order.shape[0]):
        counts, rank = np.zeros((groups, LANES), np.int32), np.zeros(LANES, np.int32)
        f, total = np.zeros(LANES), np.zeros(LANES)
        start = 0
        for end in ends:
            while start < end:
                rows = min(ROWS, end - start)
                for i in range(rows):
                    item = np.uint64(order[q, start + i])
                    for w in range(LANES // 8):
                        words[i, w] = label_words[item, w]
                padded = (rows + 7) // 8 * 8
                for i in range(rows, padded):
                    for d in range(LANES):
                        near[i, d] = _NOBODY
                for g in range(groups):
                    _count(near, padded, np.uint8(g), counted)
                    for d in range(LANES):
                        counts[g, d] += counted[d]
                start += rows
            _advance(counts, log_target, xlogx, d_sum, d_sum_each, rank, f, total)
        for d in range(LANES):
            out[q, d] = total[d] / d_sum[order.shape[1]]


@jit
def _count(labels: Ints, rows: int, group: Any, counted: Ints) -> None:
    """How many of the rows have this label, for each draw; eight rows at a time."""
    one, zero = np.uint8(1), np.uint8(0)
    for d in range(LANES):
        counted[d] = zero
    for i in range(0, rows, 8):
        a, b, c, e = labels[i], labels[i + 1], labels[i + 2], labels[i + 3]
        k, m, n, p = labels[i + 4], labels[i + 5], labels[i + 6], labels[i + 7]
        for d in range(LANES):
            counted[d] = np.uint8(
                counted[d]
                + (one if a[d] == group else zero)
                + (one if b[d] == group else zero)
                + (one if c[d] == group else zero)
                + (one if e[d] == group else zero)
                + (one if k[d] == group else zero)
                + (one if m[d] == group else zero)
                + (one if n[d] == group else zero)
                + (one if p[d] == group else zero)
            )


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
