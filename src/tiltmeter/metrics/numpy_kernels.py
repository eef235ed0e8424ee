"""Loops that are too slow in NumPy, compiled by numba; one thread per block of queries.

Each row is worked on by one thread from left to right, so the result does not depend on the number
of threads. `torch_kernels` has the same functions for tensors.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, TypeVar

import numba
import numpy as np

from tiltmeter.types import Floats, Ints

F = TypeVar("F", bound=Callable[..., Any])
ROWS = 8  # per task: few enough to balance threads, enough to outweigh the call
LITTLE = 2**18  # numbers per task: waking a thread takes as long as processing some of these
STRIDE = 32  # scores compared together
COLUMNS = 64  # columns of values summed together
_limit: int | None = None  # cores that loops may use; None: all that this process may


def jit(function: F) -> F:
    """Compile with numba, without the global lock (threads run in parallel), cached on disk."""
    compiled: Any = numba.njit(nogil=True, cache=True)(function)
    return compiled  # type: ignore[no-any-return]


def in_rows(work: Callable[[slice], None], rows: int, step: int = ROWS) -> None:
    """Call `work` on slices that cover `range(rows)`, on all cores that this process may use."""
    slices = [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
    if len(slices) == 1 or cores() == 1:
        for part in slices:
            work(part)
        return
    left = iter(slices)  # shared by the threads: handing each slice to a pool costs more than many

    def work_off() -> None:
        for part in left:
            work(part)

    # threads are kept: starting some for each of thousands of calls takes longer than many of them
    others = [_threads().submit(work_off) for _ in range(min(cores(), len(slices)) - 1)]
    work_off()
    for other in others:
        if not other.cancel():  # one that has not started has nothing left to do
            other.result()


def plain(x: Floats) -> Floats:
    """Double precision, row by row, copied unless it is so already; only to be read.

    Loops are compiled once for each kind of array, which takes longer than copying a part.
    """
    return np.require(x, np.float64, ["C", "W"])


def light(rows: int, numbers: int) -> int:
    """Rows per task: a few tasks per core, but none with few numbers, and none with very many."""
    tasks = max(min(4 * cores(), numbers // LITTLE), numbers // (16 * LITTLE))
    return max(1, -(-rows // max(1, tasks)))


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(os.cpu_count() or 1, 2))


if hasattr(os, "register_at_fork"):  # threads do not exist in a forked process
    os.register_at_fork(after_in_child=_threads.cache_clear)


def cores() -> int:
    """Number of cores that loops use."""
    present = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(min(present or 1, _limit or present or 1), 1)


def use_cores(limit: int | None) -> int | None:
    """Limit the cores that loops use (None: no limit); returns the limit before."""
    global _limit
    before, _limit = _limit, limit
    return before


def rank(scores: Floats) -> Ints:
    """Items of each row, best first; equal scores keep the order of the rows."""
    queries, items = scores.shape
    order = np.empty((queries, items), np.int32)

    def work(part: slice) -> None:
        order[part] = rank_rows(scores[part])

    in_rows(work, queries)
    return order


def rank_rows(scores: Floats) -> Ints:
    """`rank` in the calling thread."""
    if scores.dtype == np.float32:
        return _rank_float32(scores)
    return np.argsort(-scores, axis=1, kind="stable").astype(np.int32)


def _rank_float32(scores: Floats) -> Ints:
    order = np.empty(scores.shape, np.int32)
    _radix_rank(scores, order)
    return order


@jit
def _radix_rank(scores: Floats, order: Ints) -> None:
    """Radix sort of score and position in one number: many times as fast as a stable argsort.

    The bits of a float, with the sign bit flipped (or all bits, for negatives), sort like it. They
    are sorted by the last eleven of them first; what is equal keeps its order.
    """
    items = scores.shape[1]
    keys, sorted_keys = np.empty(items, np.uint64), np.empty(items, np.uint64)
    starts = np.empty((3, 2048), np.uint32)  # of each value of eleven bits among the sorted
    first, second, third = starts
    low, one, digit = np.uint64(0xFFFFFFFF), np.uint32(1), np.uint64(2047)
    for q in range(scores.shape[0]):
        bits = (np.float32(0) - scores[q]).view(np.uint32)  # 0 - x, not -x, which would give -0
        starts[:] = 0
        for i in range(items):
            flip = np.uint32(0xFFFFFFFF) if bits[i] >> np.uint32(31) else np.uint32(0x80000000)
            key = np.uint64(bits[i] ^ flip)
            keys[i] = key << np.uint64(32) | np.uint64(i)
            first[key & digit] += one
            second[key >> np.uint64(11) & digit] += one
            third[key >> np.uint64(22)] += one
        for counts in (first, second, third):
            below = np.uint32(0)
            for d in range(2048):
                count = counts[d]
                counts[d] = below
                below += count
        for i in range(items):
            d = keys[i] >> np.uint64(32) & digit
            sorted_keys[first[d]] = keys[i]
            first[d] += one
        for i in range(items):
            d = sorted_keys[i] >> np.uint64(43) & digit
            keys[second[d]] = sorted_keys[i]
            second[d] += one
        for i in range(items):
            d = keys[i] >> np.uint64(54)
            order[q, third[d]] = np.int32(keys[i] & low)
            third[d] += one


def select(scores: Floats, k: int) -> Ints:
    """The top `k` items of each row, best first; of equal scores the earlier ones."""
    queries, items = scores.shape
    chosen = np.empty((queries, k), np.int32)

    def work(part: slice) -> None:
        block = scores[part]
        edge = np.partition(block, items - k, axis=1)[:, items - k]
        _collect(block, edge, chosen[part])
        best = np.take_along_axis(block, chosen[part], axis=1)
        chosen[part] = np.take_along_axis(chosen[part], rank_rows(best), axis=1)

    in_rows(work, queries)
    return chosen


@jit
def _collect(scores: Floats, edge: Floats, chosen: Ints) -> None:
    for q in range(scores.shape[0]):
        above = 0
        for i in range(scores.shape[1]):
            above += scores[q, i] > edge[q]
        ties = chosen.shape[1] - above  # places left for items equal to the edge
        at = 0
        for i in range(scores.shape[1]):
            if scores[q, i] > edge[q]:
                chosen[q, at] = i
                at += 1
            elif scores[q, i] == edge[q] and ties > 0:
                chosen[q, at] = i
                at += 1
                ties -= 1


def take(x: Floats, ids: Ints) -> Floats:
    """The items `ids` of each row."""
    return np.take_along_axis(x, ids, axis=1)


def equal_counts(scores: Floats, edge: Floats, codes: Ints, groups: int) -> Floats:
    """Number of items of each group with a score of exactly `edge`, for each row."""
    counts = np.zeros((len(scores), groups))
    in_rows(lambda part: _equal_counts(scores[part], edge[part], codes, counts[part]), len(scores))
    return counts


@jit
def _equal_counts(scores: Floats, edge: Floats, codes: Ints, counts: Floats) -> None:
    for q in range(scores.shape[0]):
        for i in range(scores.shape[1]):
            if scores[q, i] == edge[q]:
                counts[q, codes[i]] += 1.0


def group_counts(codes: Ints, groups: int, weights: Floats | None = None) -> Floats:
    """How often (or with what weight) each group occurs in each row of group codes."""
    rows = codes.shape[0]
    cells = (codes + np.arange(rows, dtype=np.int64)[:, None] * groups).ravel()
    share = None if weights is None else weights.astype(float).ravel()
    return np.bincount(cells, share, rows * groups).reshape(rows, groups).astype(float)


def tied_ranks(scores: Floats, order: Ints) -> Floats:
    """Share of the ranks of each row whose score is not unique."""
    share = np.empty(len(order))
    in_rows(lambda part: _tied_ranks(scores[part], order[part], share[part]), len(order))
    return share


@jit
def _tied_ranks(scores: Floats, order: Ints, share: Floats) -> None:
    items = order.shape[1]
    for q in range(order.shape[0]):
        tied, before = 0, False
        for i in range(items):
            after = i + 1 < items and scores[q, order[q, i]] == scores[q, order[q, i + 1]]
            tied += before or after
            before = after
        share[q] = tied / items


def reorder_ties(scores: Floats, order: Ints, items: Ints) -> Ints:
    """`order` with equal scores in the order of `items`."""
    place, reordered = np.argsort(items), order.copy()
    in_rows(lambda part: _reorder_ties(scores[part], place, reordered[part]), len(order))
    return reordered


@jit
def _reorder_ties(scores: Floats, place: Ints, order: Ints) -> None:
    items = order.shape[1]
    for q in range(order.shape[0]):
        start, before = 0, scores[q, order[q, 0]]
        for i in range(1, items + 1):
            score = scores[q, order[q, i]] if i < items else before
            if i == items or score != before:
                if i - start > 1:
                    tied = order[q, start:i].copy()
                    order[q, start:i] = tied[np.argsort(place[tied])]
                start, before = i, score


def mean_ranks(x: Floats) -> Floats:
    """Ranks from 1 within each row; equal values share their mean rank."""
    ranks = np.empty(x.shape)
    in_rows(lambda part: _mean_ranks(x[part], np.argsort(x[part], 1), ranks[part]), len(x))
    return ranks


@jit
def _mean_ranks(x: Floats, order: Ints, ranks: Floats) -> None:
    items = x.shape[1]
    for q in range(x.shape[0]):
        start = 0
        while start < items:
            stop = start + 1
            while stop < items and x[q, order[q, stop]] == x[q, order[q, start]]:
                stop += 1
            for i in range(start, stop):
                ranks[q, order[q, i]] = (start + stop + 1) / 2
            start = stop


def set_gaps(x: Floats, sets: Ints) -> tuple[Floats, Floats]:
    """Mean over one part of a set minus that over the other, and the standard deviation over both.

    `sets` are columns of x, sets x 2 x columns; the results are rows of x by sets.
    """
    gap, spread = np.empty((2, len(x), len(sets)))
    in_rows(lambda part: _set_gaps(x[part], sets, gap[part], spread[part]), len(x))
    return gap, spread


@jit
def _set_gaps(x: Floats, sets: Ints, gap: Floats, spread: Floats) -> None:
    size = sets.shape[2]
    for q in range(x.shape[0]):
        for s in range(sets.shape[0]):
            first, second, squares = 0.0, 0.0, 0.0
            for i in range(size):
                first += x[q, sets[s, 0, i]]
                second += x[q, sets[s, 1, i]]
            mean = (first + second) / (2 * size)
            for part in range(2):
                for i in range(size):
                    squares += (x[q, sets[s, part, i]] - mean) ** 2
            gap[q, s] = (first - second) / size
            spread[q, s] = np.sqrt(squares / (2 * size - 1))


def column_sums(ids: Ints, values: Floats) -> Floats:
    """Sums of the rows `ids` of `values`, for each row of ids: rows x columns of values."""
    sums = np.zeros((len(ids), values.shape[1]))
    # a few columns at a time, so that the values of all items stay in the cache
    for start in range(0, values.shape[1], COLUMNS):
        columns = slice(start, start + COLUMNS)
        block = np.ascontiguousarray(values[:, columns])
        work = partial(_column_sums_of, ids, block, sums[:, columns])
        in_rows(work, len(ids), step=64)
    return sums


def _column_sums_of(ids: Ints, values: Floats, sums: Floats, part: slice) -> None:
    _column_sums(ids[part], values, sums[part])


@jit
def _column_sums(ids: Ints, values: Floats, sums: Floats) -> None:
    for q in range(ids.shape[0]):
        total = np.zeros(values.shape[1])
        for i in range(ids.shape[1]):
            row = values[ids[q, i]]
            for c in range(values.shape[1]):
                total[c] += row[c]
        sums[q] = total


def moments(scores: Floats, codes: Ints, groups: int) -> tuple[Floats, Floats]:
    """Mean and centred sum of squares of each group, for each row."""
    mean = np.zeros((len(scores), groups))
    m2 = np.zeros((len(scores), groups))
    size = np.bincount(codes, minlength=groups).astype(float)
    in_rows(lambda part: _moments(scores[part], codes, size, mean[part], m2[part]), len(scores))
    return mean, m2


@jit
def _moments(scores: Floats, codes: Ints, size: Floats, mean: Floats, m2: Floats) -> None:
    for q in range(scores.shape[0]):
        for i in range(scores.shape[1]):
            mean[q, codes[i]] += scores[q, i]
        for g in range(size.shape[0]):
            if size[g] > 0:
                mean[q, g] /= size[g]
        for i in range(scores.shape[1]):
            deviation = scores[q, i] - mean[q, codes[i]]
            m2[q, codes[i]] += deviation * deviation


def exp_sums(scores: Floats, codes: Ints, groups: int) -> tuple[Floats, Floats]:
    """Largest score of each group, and the sum of exp(score - largest), for each row."""
    peak = np.full((len(scores), groups), -np.inf)
    total = np.zeros((len(scores), groups))
    in_rows(
        lambda part: _exp_sums(plain(scores[part]), codes, peak[part], total[part]), len(scores)
    )
    return peak, total


@jit
def _exp_sums(scores: Floats, codes: Ints, peak: Floats, total: Floats) -> None:
    for q in range(scores.shape[0]):
        for i in range(scores.shape[1]):
            peak[q, codes[i]] = max(peak[q, codes[i]], scores[q, i])
        for i in range(scores.shape[1]):
            total[q, codes[i]] += math.exp(scores[q, i] - peak[q, codes[i]])


def moments_of_draws(draws: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean, centred sum of squares and number of defined draws, of units x draws x columns."""
    units, _, columns = draws.shape
    mean, m2, count = np.zeros((3, units, columns))
    in_rows(
        lambda part: _draw_moments(plain(draws[part]), mean[part], m2[part], count[part]),
        units,
        light(units, draws.size),
    )
    return mean, m2, count


@jit
def _draw_moments(draws: Floats, mean: Floats, m2: Floats, count: Floats) -> None:
    for u in range(draws.shape[0]):
        for r in range(draws.shape[1]):
            for c in range(draws.shape[2]):
                known = not np.isnan(draws[u, r, c])
                mean[u, c] += draws[u, r, c] if known else 0.0
                count[u, c] += known
        for c in range(draws.shape[2]):
            mean[u, c] = mean[u, c] / count[u, c] if count[u, c] else np.nan
        for r in range(draws.shape[1]):
            for c in range(draws.shape[2]):
                deviation = draws[u, r, c] - mean[u, c]
                m2[u, c] += deviation * deviation if not np.isnan(deviation) else 0.0


def quantiles_of_draws(draws: Floats, at: Floats, spread: int) -> Floats:
    """Quantiles of the defined draws, of units x draws x columns: one units x columns for each.

    Those of n draws are at `at * (n + spread)`, counted from where NumPy's methods count:
    -1 is its `linear`, 1 its `weibull`.
    """
    units, _, columns = draws.shape
    found = np.empty((units, columns, len(at)))
    in_rows(
        lambda part: _draw_quantiles(plain(draws[part]), at, spread, found[part]),
        units,
        light(units, draws.size),
    )
    return found.transpose(2, 0, 1)


@jit
def _draw_quantiles(draws: Floats, at: Floats, spread: int, found: Floats) -> None:
    known = np.empty(draws.shape[1])
    for u in range(draws.shape[0]):
        for c in range(draws.shape[2]):
            n = 0
            for r in range(draws.shape[1]):
                if not np.isnan(draws[u, r, c]):
                    known[n] = draws[u, r, c]
                    n += 1
            for j in range(len(at)):
                if n == 0:
                    found[u, c, j] = np.nan
                    continue
                place = min(max(at[j] * (n + spread) - (spread > 0), 0.0), n - 1.0)
                rank = int(place)
                low = _select(known, n, rank)
                high = low if rank + 1 >= n else known[rank + 1 : n].min()
                share = place - rank
                # from the nearer end, as NumPy does
                if share < 0.5:
                    found[u, c, j] = low if high == low else low + (high - low) * share
                else:
                    found[u, c, j] = low if high == low else high - (high - low) * (1 - share)


@jit
def _select(x: Floats, n: int, rank: int) -> float:
    """Hoare's selection: `x[rank]` as if x[:n] were sorted, what is smaller to its left."""
    left, right = 0, n - 1
    while left < right:
        pivot = x[(left + right) // 2]
        i, j = left, right
        while i <= j:
            while x[i] < pivot:
                i += 1
            while x[j] > pivot:
                j -= 1
            if i <= j:
                x[i], x[j] = x[j], x[i]
                i += 1
                j -= 1
        if rank <= j:
            right = j
        elif rank >= i:
            left = i
        else:
            break
    return float(x[rank])


def tails_of_draws(draws: Floats, low: Floats, high: Floats) -> tuple[Ints, Ints, Ints]:
    """How many draws are at least `low`, at most `high`, and defined: each units x columns.

    `draws` are units x draws x columns, both bounds units x columns.
    """
    above, below, defined = np.zeros((3, *low.shape), np.int64)
    in_rows(
        lambda part: _draw_tails(
            plain(draws[part]),
            plain(low[part]),
            plain(high[part]),
            above[part],
            below[part],
            defined[part],
        ),
        len(draws),
        light(len(draws), draws.size),
    )
    return above, below, defined


@jit
def _draw_tails(
    draws: Floats, low: Floats, high: Floats, above: Ints, below: Ints, defined: Ints
) -> None:
    for u in range(draws.shape[0]):
        for r in range(draws.shape[1]):
            for c in range(draws.shape[2]):
                value = draws[u, r, c]
                above[u, c] += value >= low[u, c]
                below[u, c] += value <= high[u, c]
                defined[u, c] += value == value


def weighted_means(values: Floats, weights: Floats) -> Floats:
    """Weighted means of what is defined over the third axis of four, NaN where nothing is."""
    units = values.shape[1]
    means = np.empty((units, values.shape[0], values.shape[3]))
    in_rows(
        lambda part: _weighted_means(plain(values[:, part]), weights, means[part]),
        units,
        light(units, values.size),
    )
    return means.swapaxes(0, 1)


@jit
def _weighted_means(values: Floats, weights: Floats, means: Floats) -> None:
    for u in range(values.shape[1]):
        for r in range(values.shape[0]):
            for c in range(values.shape[3]):
                total, weight = 0.0, 0.0
                for t in range(values.shape[2]):
                    value = values[r, u, t, c]
                    if not np.isnan(value):
                        total += value * weights[t]
                        weight += weights[t]
                means[u, r, c] = total / weight if weight > 0 else np.nan


def ndkl(order: Ints, codes: Ints, log_target: Floats) -> Floats:
    """Discounted mean of KL(first i || target) over all i, for each ranking in `order`."""
    return np.asarray(relabelled_ndkl(order, codes[None], log_target)[0])


def ndkl_of_labels(ranked: Ints, log_target: Floats, group_of: Ints | None = None) -> Floats:
    """`ndkl` of rows of group codes that are already in the order of their ranks.

    With `group_of`, the rows are labels, and it has the group code of each.
    """
    order, tables = np.arange(ranked.shape[1], dtype=np.int32)[None], ndkl_tables(ranked.shape[1])
    found = np.empty(len(ranked))

    def work(part: slice) -> None:
        codes = ranked[part] if group_of is None else group_of[ranked[part]]
        _ndkl(order, codes, log_target, *tables, 0, found[part])

    in_rows(work, len(ranked))
    return found


def relabelled_ndkl(order: Ints, codes: Ints, log_target: Floats) -> Floats:
    """`ndkl` of each row of `order` for each row of `codes`: permutations x queries."""
    tables = ndkl_tables(order.shape[1])
    out = np.empty((len(codes), len(order)))
    each = out.reshape(-1)
    in_rows(
        lambda part: _ndkl(order, codes, log_target, *tables, part.start, each[part]), len(each)
    )
    return out


def ndkl_tables(n: int) -> tuple[Floats, Floats, Floats]:
    """(c+1) ln (c+1) - c ln c for a count c, i ln i for rank i, and the weight of i * KL at rank i.

    The weight is 1 / (Z i log2(i+1)), Z being the sum of 1 / log2(i+1).
    """
    x = np.arange(n + 1.0)
    xlogx = x * np.log(np.maximum(x, 1.0))
    discount = 1.0 / np.log2(x[1:] + 1.0)
    return np.diff(xlogx), xlogx[1:], discount / discount.sum() / x[1:]


@jit
def _ndkl(
    order: Ints,
    codes: Ints,
    log_target: Floats,
    step: Floats,
    xlogx: Floats,
    discount: Floats,
    start: int,
    out: Floats,
) -> None:
    queries = order.shape[0]
    for at in range(len(out)):
        draw, q = divmod(start + at, queries)
        out[at] = ndkl_of_one(order[q], codes[draw], log_target, step, xlogx, discount)


@jit
def ndkl_of_one(
    order: Ints, codes: Ints, log_target: Floats, step: Floats, xlogx: Floats, discount: Floats
) -> float:
    """NDKL of one ranking."""
    # i * KL = sum_g (c_g ln c_g - c_g ln q_g) - i ln i, and one c_g changes at each rank;
    # indices are unsigned: a signed one is checked each time, whether it counts from the end
    count = np.zeros(log_target.shape[0], np.uint64)
    gain, total = 0.0, 0.0
    for i in range(len(order)):
        g = np.uint64(codes[np.uint64(order[i])])
        c = count[g]
        gain += step[c] - log_target[g]
        count[g] = c + np.uint64(1)
        total += discount[i] * max(gain - xlogx[i], 0.0)
    return total


@jit
def trim_to_k(k: int, scores: Floats, ids: Ints, held: Ints, edge: Floats) -> None:
    """Of more than k candidates, keep those above the edge and the first ones equal to it."""
    for q in range(scores.shape[0]):
        if held[q] <= k:
            continue
        ties = k
        for i in range(held[q]):
            ties -= scores[q, i] > edge[q]
        at = 0
        for i in range(held[q]):
            if scores[q, i] > edge[q] or (scores[q, i] == edge[q] and ties > 0):
                ties -= scores[q, i] == edge[q]
                scores[q, at] = scores[q, i]
                ids[q, at] = ids[q, i]
                at += 1
        held[q] = k


@jit
def keep_best(
    block: Floats, first: int, k: int, scores: Floats, ids: Ints, held: Ints, edge: Floats
) -> None:
    """Add the items of a block that beat a query's k-th best to its candidates."""
    items = block.shape[1]
    for q in range(block.shape[0]):
        row, least = block[q], edge[q]
        for start in range(0, items, STRIDE):
            stretch = row[start : start + STRIDE]
            # most stretches contain no candidate: one pass without branches tells
            hits = 0
            for score in stretch:
                hits += score > least
            if hits == 0:
                continue
            for i in range(len(stretch)):
                if stretch[i] > least:
                    if held[q] == scores.shape[1]:
                        row_q = slice(q, q + 1)
                        edge[q] = np.partition(scores[q], held[q] - k)[held[q] - k]
                        trim_to_k(k, scores[row_q], ids[row_q], held[row_q], edge[row_q])
                        least = edge[q]
                        if stretch[i] <= least:
                            continue
                    scores[q, held[q]] = stretch[i]
                    ids[q, held[q]] = first + start + i
                    held[q] += 1
