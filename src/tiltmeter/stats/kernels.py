"""Loops of permutation and bootstrap: one pass over the scores serves all draws.

Standardised scores are laid out items x queries, so that the innermost loop runs over neighbouring
numbers and a draw costs one addition per score, for any number of groups. Permuted labels are those
of the finest partition, where several attributes share them: `of` says which group of an attribute
each belongs to; without it they are groups themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tiltmeter.metrics import numpy_kernels as loops
from tiltmeter.metrics.association import ROUNDING
from tiltmeter.metrics.numpy_kernels import in_rows, jit, light, ndkl_of_one, plain
from tiltmeter.metrics.ranking import log_shares
from tiltmeter.stats import whole_ranking
from tiltmeter.stats.null import slices_of_draws
from tiltmeter.stats.permuted_labels import PermutedLabels
from tiltmeter.stats.weighted_rankings import WeightLanes
from tiltmeter.types import Floats, Ints

_ITEMS, _COLUMNS = 1024, 64  # processed at one time: they fit the second-level cache
_WEIGHTS = 2**14  # items whose weights are multiplied at one time
_NUMBERS = 512  # of a row, added at one time: those of all rows fit the second-level cache


def standardized(scores: Floats) -> Floats:
    """Scores of each query as z-scores (dividing by n - 1): items x queries."""
    z = np.empty(scores.shape[::-1], np.float32)

    def work(part: slice) -> None:
        mean = scores[part].mean(axis=1, dtype=np.float64)[:, None]
        centred = scores[part] - mean
        spread = np.sqrt((centred**2).sum(axis=1) / max(scores.shape[1] - 1, 1))[:, None]
        varied = spread > ROUNDING * np.abs(mean)
        z[:, part] = np.where(varied, centred / np.where(varied, spread, 1.0), np.nan).T

    in_rows(work, len(scores))
    return z


def _groups_of(of: Ints | None, groups: int) -> Ints:
    return np.arange(groups) if of is None else of


def relabelled_sums(z: Floats, codes: Ints, groups: int, of: Ints | None = None) -> Floats:
    """Sum of `z` (items x columns) over each group, for each row of `codes` (draws x items)."""
    sums, to = np.empty((len(codes), groups, z.shape[1]), z.dtype), _groups_of(of, groups)
    for start in range(0, z.shape[1], _COLUMNS):
        near = np.ascontiguousarray(z[:, start : start + _COLUMNS])
        part_sums = np.zeros((len(codes), groups, near.shape[1]), z.dtype)
        in_rows(partial(_relabelled_sums_of, near, codes, to, part_sums), len(codes), step=32)
        sums[..., start : start + _COLUMNS] = part_sums
    return sums.swapaxes(1, 2)  # draws x columns x groups


def _relabelled_sums_of(z: Floats, codes: Ints, of: Ints, sums: Floats, part: slice) -> None:
    _relabelled_sums(z, codes[part], of, sums[part])


@jit
def _relabelled_sums(z: Floats, codes: Ints, of: Ints, sums: Floats) -> None:
    for start in range(0, z.shape[0], _ITEMS):
        stop = min(start + _ITEMS, z.shape[0])
        for r in range(codes.shape[0]):
            for i in range(start, stop):
                g = of[codes[r, i]]
                for q in range(z.shape[1]):
                    sums[r, g, q] += z[i, q]


def weighted_sums(z: Floats, codes: Ints, weights: Ints, groups: int) -> Floats:
    """Weighted sums of `z` (items x columns) by group: draws x columns x groups."""
    sums = np.zeros((len(weights), groups, z.shape[1]), z.dtype)
    for group in range(groups):
        rows = np.flatnonzero(codes == group)
        for start in range(0, len(rows), _WEIGHTS):
            some = rows[start : start + _WEIGHTS]
            sums[:, group] += weights[:, some].astype(z.dtype) @ z[some]
    return sums.swapaxes(1, 2)


def weighted_squares(z: Floats, weights: Ints) -> Floats:
    """Weighted sums of the squares of `z` (items x queries): draws x queries."""
    squares = np.zeros((len(weights), z.shape[1]), np.float32)
    for start in range(0, len(z), _WEIGHTS):
        some = slice(start, start + _WEIGHTS)
        squares += weights[:, some].astype(np.float32) @ z[some] ** 2
    return squares


def c_asc_of_sums(sums: Floats, sizes: Ints, squares: Floats | None = None) -> Floats:
    """C-ASC from sums of standardised scores by group (... x groups).

    Without `squares` the standard deviation is 1, as it is for permuted labels of the same scores.
    """
    gap, total, n = gaps_of_sums(sums, sizes), sums.sum(axis=-1), sizes.sum()
    if squares is None:
        return gap
    variance = (squares - total**2 / n) / (n - 1)
    return np.asarray(gap / np.sqrt(variance)[..., None])


def gaps_of_sums(sums: Floats, sizes: Ints, axis: int = -1) -> Floats:
    """Mean of each group minus that of all others, from sums by group along an axis."""
    n, sizes = sizes.sum(), sizes.astype(np.float32)
    shape = [1] * sums.ndim
    shape[axis] = -1
    inside = np.where(sizes > 0, sizes, np.nan).reshape(shape)
    outside = np.where(n - sizes > 0, n - sizes, np.nan).reshape(shape)
    total = sums.sum(axis=axis, keepdims=True)
    others = total - sums
    others /= outside  # in place: in the precision of the sums, and no larger
    found = sums / inside
    found -= others
    return np.asarray(found)


def relabelled_top_counts(
    top: Ints, codes: Ints, ks: tuple[int, ...], groups: int, of: Ints | None = None
) -> Ints:
    """Counts of each group in the first k of each row of `top`, for each row of `codes`.

    `ks` must be ascending. One array per k: draws x queries x groups.
    """
    counts = np.zeros((len(codes), len(top), len(ks), groups), np.uint32)
    edges, to = np.array(ks), _groups_of(of, groups)
    in_rows(
        lambda part: _relabelled_top_counts(top, codes[part], to, edges, counts[part]), len(codes)
    )
    return counts.transpose(2, 0, 1, 3)


@jit
def _relabelled_top_counts(top: Ints, codes: Ints, of: Ints, ks: Ints, counts: Ints) -> None:
    for r in range(codes.shape[0]):
        for q in range(top.shape[0]):
            start = 0
            for j in range(len(ks)):
                if j > 0:
                    counts[r, q, j] = counts[r, q, j - 1]
                for i in range(start, ks[j]):
                    counts[r, q, j, of[codes[r, top[q, i]]]] += 1
                start = ks[j]


def looked_up(table: Floats, counts: Ints) -> Floats:
    """A function of counts (... x ... x groups), from its table (counts x groups)."""
    values = np.empty(counts.shape)
    _in_light_rows(lambda part: _looked_up(table, counts[part], values[part]), counts)
    return values


def largest_looked_up(table: Floats, counts: Ints) -> Floats:
    """The largest over groups of a function of counts: ... x ... x 1; NaN where all are."""
    values = np.empty((*counts.shape[:2], 1))
    _in_light_rows(lambda part: _largest(table, counts[part], values[part]), counts)
    return values


def sum_looked_up(table: Floats, counts: Ints) -> Floats:
    """The sum over groups of a function of counts: ... x ... x 1."""
    values = np.empty((*counts.shape[:2], 1))
    _in_light_rows(lambda part: _summed(table, counts[part], values[part]), counts)
    return values


def _in_light_rows(work: Callable[[slice], None], x: Floats) -> None:
    in_rows(work, len(x), light(len(x), x.size))


@jit
def _looked_up(table: Floats, counts: Ints, values: Floats) -> None:
    for r in range(counts.shape[0]):
        for q in range(counts.shape[1]):
            for g in range(counts.shape[2]):
                values[r, q, g] = table[counts[r, q, g], g]


@jit
def _largest(table: Floats, counts: Ints, values: Floats) -> None:
    for r in range(counts.shape[0]):
        for q in range(counts.shape[1]):
            largest = np.nan
            for g in range(counts.shape[2]):
                value = table[counts[r, q, g], g]
                if not value <= largest and not np.isnan(value):
                    largest = value
            values[r, q, 0] = largest


@jit
def _summed(table: Floats, counts: Ints, values: Floats) -> None:
    for r in range(counts.shape[0]):
        for q in range(counts.shape[1]):
            total = 0.0
            for g in range(counts.shape[2]):
                total += table[counts[r, q, g], g]
            values[r, q, 0] = total


def shared_means(draws: Floats, share: Floats) -> Floats:
    """Means over prompts of what is defined, with shares by draw and prompt.

    `draws` are draws x prompts x units x columns, `share` draws x prompts; NaN where nothing is.
    """
    count, _, units, columns = draws.shape
    means = np.empty((count, units, columns))
    _in_light_rows(
        lambda part: _shared_means(plain(draws[part]), plain(share[part]), means[part]), draws
    )
    return means


@jit
def _shared_means(draws: Floats, share: Floats, means: Floats) -> None:
    for u in range(draws.shape[2]):
        for r in range(draws.shape[0]):
            for c in range(draws.shape[3]):
                total, weight = 0.0, 0.0
                for p in range(draws.shape[1]):
                    value = draws[r, p, u, c]
                    if not np.isnan(value):
                        total += value * share[r, p]
                        weight += share[r, p]
                means[r, u, c] = total / weight if weight > 0 else np.nan


def means_of_rows(rows: Floats, members: Sequence[Ints]) -> Floats:
    """Mean over the rows of each of `members`, of rows x draws x columns.

    A matrix product of shares reads all rows for each of them: twice as long.
    """
    flat = np.ascontiguousarray(rows.reshape(len(rows), -1), np.float64)
    means = np.zeros((len(members), flat.shape[1]))
    ends = np.cumsum([len(numbers) for numbers in members])
    numbers = np.concatenate(members)
    in_rows(
        lambda part: _means_of_rows(flat, numbers, ends, part.start, part.stop, means),
        flat.shape[1],
        _NUMBERS,
    )
    return means.reshape(len(members), *rows.shape[1:])


@jit
def _means_of_rows(
    rows: Floats, numbers: Ints, ends: Ints, start: int, stop: int, means: Floats
) -> None:
    at = 0
    for m in range(len(ends)):
        count = ends[m] - at
        for n in range(at, ends[m]):
            row = numbers[n]
            for j in range(start, stop):
                means[m, j] += rows[row, j]
        for j in range(start, stop):
            means[m, j] /= count
        at = ends[m]


def weighted_top_counts(
    order: Ints, codes: Ints, weights: Ints | WeightLanes, k: int, groups: int
) -> Ints:
    """Weighted counts of each group down a ranking until the weights sum to k."""
    if isinstance(weights, WeightLanes):
        return weights.top_counts(order, codes, k, groups)
    counts = np.zeros((len(weights), len(order), groups), np.uint32)
    in_rows(
        lambda part: _weighted_top_counts(order, codes, weights[part], k, counts[part]),
        len(weights),
    )
    return counts


@jit
def _weighted_top_counts(order: Ints, codes: Ints, weights: Ints, k: int, counts: Ints) -> None:
    for b in range(weights.shape[0]):
        weight = weights[b]
        for q in range(order.shape[0]):
            ranked, count, left = order[q], counts[b, q], np.int64(k)
            for j in range(len(ranked)):
                i = np.uint64(ranked[j])  # unsigned as in `ndkl_of_one`: half the time
                w = np.int64(weight[i])
                if w >= left:
                    count[np.uint64(codes[i])] += left
                    break
                count[np.uint64(codes[i])] += w
                left -= w


def relabelled_ndkl(order: Ints, codes: Ints, shares: Floats, of: Ints | None = None) -> Floats:
    """Whole-ranking NDKL of each row of `order`, for each row of `codes`: draws x queries."""
    to = _groups_of(of, len(shares)).astype(np.min_scalar_type(len(shares)))
    if by_stretches(order):
        packed = PermutedLabels.pack(to[codes], len(shares), {"": np.arange(len(shares))})
        return packed.ndkl(order, {"": shares}, len(codes))[""]
    log_target, parts = log_shares(shares), slices_of_draws(codes.shape, 0)
    return np.concatenate([loops.relabelled_ndkl(order, to[codes[at]], log_target) for at in parts])


def by_stretches(order: Ints) -> bool:
    """Whether rankings are long enough for NDKL by stretches."""
    return bool(order.shape[1] >= whole_ranking.LONG)


def weighted_ndkl(order: Ints, codes: Ints, weights: Ints | WeightLanes, shares: Floats) -> Floats:
    """Whole-ranking NDKL where each item counts as often as its weight: draws x queries."""
    if by_stretches(order) and len(shares) < 2**8:  # groups fit a byte
        lanes = weights if isinstance(weights, WeightLanes) else WeightLanes.pack(weights)
        return lanes.ndkl(order, codes, shares)
    if isinstance(weights, WeightLanes):
        weights = weights.weights
    tables = (log_shares(shares), *loops.ndkl_tables(order.shape[1]))
    codes = codes.astype(np.min_scalar_type(len(shares)))
    out = np.empty((len(weights), len(order)))
    in_rows(
        lambda part: _weighted_ndkl(order, codes, weights[part], *tables, out[part]), len(weights)
    )
    return out


@jit
def _weighted_ndkl(
    order: Ints,
    codes: Ints,
    weights: Ints,
    log_target: Floats,
    step: Floats,
    xlogx: Floats,
    discount: Floats,
    out: Floats,
) -> None:
    items = order.shape[1]
    drawn = np.empty(items + 4, order.dtype)
    for b in range(weights.shape[0]):
        for q in range(order.shape[0]):
            _draw(order[q], weights[b], drawn)
            out[b, q] = ndkl_of_one(drawn[:items], codes, log_target, step, xlogx, discount)


@jit
def _draw(order: Ints, weights: Ints, drawn: Ints) -> None:
    """Write the items of a ranking, each as often as its weight."""
    at, one = np.uint64(0), np.uint64(1)
    for j in range(len(order)):
        item = order[j]
        w = np.uint64(weights[np.uint64(item)])
        # write four copies and advance by the weight: no branch to predict
        drawn[at] = item
        drawn[at + one] = item
        drawn[at + np.uint64(2)] = item
        drawn[at + np.uint64(3)] = item
        for more in range(4, w):
            drawn[at + np.uint64(more)] = item
        at += w
