"""Exact top k by cosine, block by block: the full matrix of similarities is never in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.arrays import (
    as_groups,
    is_torch,
    kernels,
    like,
    namespace,
    similarities,
    to_numpy,
    unit,
)
from tiltmeter.metrics.summary import check_k
from tiltmeter.types import Array, Floats, Groups, Ints

#: Similarities in memory at one time (256 MB of float32); few, large products are the fastest.
SCORES_HELD = 2**26
#: How many of the best k should be among the items that the first guess is made from.
EXPECTED = 32


class RetrievalResult(NamedTuple):
    """The best items of each query, best first.

    Attributes
    ----------
    scores : array of shape (queries, k)
        Their cosines.
    ids : array of int of shape (queries, k)
        Their rows among the items.
    """

    scores: Array
    ids: Array


def top_k(
    queries: Array, items: Array, k: int, *, item_block: int | None = None, query_block: int = 8192
) -> RetrievalResult:
    """The k items nearest to each query by cosine, exactly.

    Parameters
    ----------
    queries : array of shape (queries, dimensions)
        Embeddings; rows are scaled to length 1.
    items : array of shape (items, dimensions)
        Embeddings of the same model; may be memory-mapped, since each block is read once. Queries
        or items may have several vectors per row (rows x vectors x dimensions): the closest one
        counts.
    k : int
        Number of items, from 1 to all.
    item_block, query_block : int, optional
        Rows that are multiplied at one time.

    Returns
    -------
    RetrievalResult
        `scores` and `ids`, best first; of equal ones the earlier rows.

    Raises
    ------
    InputError
        `k` is out of range, the dimensions differ, or a row is zero, NaN or infinite.

    Examples
    --------
    >>> top_k([[1.0, 0.0]], [[0.0, 1.0], [2.0, 0.1], [1.0, 1.0]], k=2).ids
    array([[1, 2]])
    """
    queries = unit(queries, "queries")
    check_k(k, len(items))
    vectors = max(np.shape(x)[1] if np.ndim(x) == 3 else 1 for x in (queries, items[:1]))
    query_block = max(1, query_block // vectors)
    step = item_block or max(1, SCORES_HELD // vectors // min(len(queries), query_block))
    if is_torch(queries):
        torch_best = _TorchBest(k)
        _sweep(torch_best, queries, items, step, query_block)
        return torch_best.result()
    best = _NumpyBest(queries, k, guess_of=len(items))
    _sweep(best, queries, items, step, query_block)
    if (short := best.held < k).any():  # the guess was too high for these
        again = _NumpyBest(queries[short], k)
        _sweep(again, queries[short], items, step, query_block)
        best.replace(short, again)
    return best.result()


def _sweep(
    best: _NumpyBest | _TorchBest, queries: Array, items: Array, step: int, query_block: int
) -> None:
    """Score all items for all queries, block by block, in the order of their rows."""
    for start in range(0, len(items), step):
        block = unit(like(queries, items[start : start + step], None), "items", start)
        block = like(queries, block, str(queries.dtype).rpartition(".")[2])
        if block.shape[-1] != queries.shape[-1]:
            raise InputError(
                f"queries have {queries.shape[-1]} dimensions, items {block.shape[-1]}: "
                "they must come from one model"
            )
        for row in range(0, len(queries), query_block):
            rows = slice(row, row + query_block)
            best.update(rows, similarities(queries[rows], block), start)


class _NumpyBest:
    """Candidates above a threshold of each query; cut back to k when their buffer is full.

    The threshold starts from a guess: the first items, a share of all `guess_of`, should contain
    about that share of the best k. From a little below these, few candidates are too many and few
    queries end with fewer than k. Without a guess, it starts at the first items' own k-th best.
    """

    def __init__(self, queries: Floats, k: int, guess_of: int | None = None) -> None:
        rows, room = len(queries), 2 * k + 512
        self.k = k
        self.scores = np.empty((rows, room), queries.dtype)
        self.ids = np.empty((rows, room), np.int64)
        self.held = np.zeros(rows, np.int64)
        self.edge = np.full(rows, -np.inf, queries.dtype)
        self.looked_at, self.rank = k, k
        if guess_of is not None:
            self.looked_at = max(1, EXPECTED * guess_of // k)
            self.rank = int(EXPECTED + 4 * EXPECTED**0.5 + 4)

    def update(self, rows: slice, block: Floats, first: int) -> None:
        from tiltmeter.metrics import numpy_kernels as loops

        state = [part[rows] for part in (self.scores, self.ids, self.held, self.edge)]

        def work(at: slice) -> None:
            scores, ids, held, edge = (part[at] for part in state)
            if first == 0 and block.shape[1] >= self.looked_at >= self.rank:
                # just below, so that the item of that rank is let in itself
                looked_at = block[at, : self.looked_at]
                edge[:] = np.nextafter(_nth_best(looked_at, self.rank), -np.inf)
            loops.keep_best(block[at], first, self.k, scores, ids, held, edge)

        loops.in_rows(work, len(block), step=256)

    def replace(self, rows: Ints, other: _NumpyBest) -> None:
        """Take the candidates of some queries from another sweep."""
        for name in ("scores", "ids", "held", "edge"):
            getattr(self, name)[rows] = getattr(other, name)

    def result(self) -> RetrievalResult:
        from tiltmeter.metrics import numpy_kernels as loops

        def work(at: slice) -> None:
            scores, held = self.scores[at], self.held[at]
            filled = np.arange(scores.shape[1]) < held[:, None]
            edge = _nth_best(np.where(filled, scores, -np.inf), self.k)
            loops.trim_to_k(self.k, scores, self.ids[at], held, edge)

        loops.in_rows(work, len(self.held), step=64)
        scores, ids = self.scores[:, : self.k], self.ids[:, : self.k]
        order = loops.rank(np.ascontiguousarray(scores))  # candidates are in the order of ids
        return RetrievalResult(loops.take(scores, order), loops.take(ids, order))


def _nth_best(scores: Floats, n: int) -> Floats:
    """The n-th largest of each row."""
    return np.partition(scores, scores.shape[1] - n, axis=1)[:, scores.shape[1] - n]


class _TorchBest:
    """The best so far of each block of queries, joined with each new block of items."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.parts: dict[int, tuple[Array, Array]] = {}

    def update(self, rows: slice, block: Array, first: int) -> None:
        import torch

        loops = kernels(block)
        ids = torch.arange(first, first + block.shape[1], device=block.device).expand(block.shape)
        if rows.start in self.parts:
            held, held_ids = self.parts[rows.start]
            block, ids = torch.cat([held, block], 1), torch.cat([held_ids, ids], 1)
        chosen = loops.select(block, min(self.k, block.shape[1]))
        self.parts[rows.start] = loops.take(block, chosen), loops.take(ids, chosen)

    def result(self) -> RetrievalResult:
        import torch

        scores, ids = zip(*self.parts.values(), strict=True)
        return RetrievalResult(torch.cat(scores), torch.cat(ids))


class TopMeans(NamedTuple):
    """Means over the best k items of each query, for several k.

    Attributes
    ----------
    means : array of shape (queries, len(k), columns)
        Mean values of the top k.
    reach : array of shape (len(k), query groups, items)
        Share of a query group's top k that each item fills; sums to 1 over items.
    tied : array of int of shape (len(k),)
        Number of queries where items tie for the last places.
    """

    means: Array
    reach: Array
    tied: Ints


def mean_value_of_top_k(
    queries: Array,
    items: Array,
    k: Sequence[int],
    values: Array,
    *,
    by: Groups | None = None,
    ties: str = "expected",
    query_block: int = 4096,
) -> TopMeans:
    """Means of values over the k items nearest to each query, for each k.

    Parameters
    ----------
    queries : array of shape (queries, dimensions)
        Embeddings; rows are scaled to length 1.
    items : array of shape (items, dimensions)
        Embeddings of the same model.
    k : sequence of int
        Sizes of the top.
    values : array of shape (items, columns)
        What to average.
    by : Groups, optional
        Groups of the queries, for `reach`.
    ties : {"expected", "stable"}
        Items that tie for the last places (cosines equal up to rounding) share them evenly, or the
        earlier rows take them.
    query_block : int
        Queries that are worked on at one time.

    Returns
    -------
    TopMeans
        `means`, `reach` and `tied`.

    Raises
    ------
    InputError
        A `k` is out of range, or `values` does not have one row per item.
    UnknownNameError
        `ties` is neither.

    Examples
    --------
    >>> items, values = [[1.0, 1.0], [1.0, -1.0], [0.0, 1.0]], [[0.0], [1.0], [9.0]]
    >>> mean_value_of_top_k([[1.0, 0.0]], items, [1], values)
    TopMeans(means=array([[[0.5]]]), reach=array([[[0.5, 0.5, 0. ]]]), tied=array([1]))
    """
    if ties not in ("expected", "stable"):
        raise UnknownNameError("choice for 'ties'", ties, ("expected", "stable"))
    queries = unit(queries, "queries")
    values = like(queries, values)
    if len(values) != len(items):
        raise InputError(
            f"values has {len(values)} rows for {len(items)} items: give one row per item"
        )
    for size in k:
        check_k(size, len(items))
    most = min(max(k) + 1, len(items))
    parts = []
    by = by or Groups(np.zeros(len(queries), np.int32), ("all",))
    as_groups(by, len(queries))
    reach = like(queries, np.zeros((len(k), len(by.names), len(items))))
    tied = np.zeros(len(k), np.int64)
    for start in range(0, len(queries), query_block):
        block = queries[start : start + query_block]
        best = top_k(block, items, most)
        means = []
        for at, size in enumerate(k):
            ids, shared = best.ids[:, :size], np.zeros(len(block), bool)
            if size < most and ties == "expected":
                gap = best.scores[:, size - 1] - best.scores[:, size]
                shared = to_numpy(gap <= _rounding(block))
            tied[at] += shared.sum()
            sums, codes = _sums(ids, values), by.codes[start : start + query_block]
            for code in range(len(by.names)):
                member = like(ids, ~shared & (codes == code), "bool")
                reach[at, code] += _counts(ids[member], values)
            for rows, weights in _shared_places(block, items, np.flatnonzero(shared), size):
                sums[like(ids, rows, "int64")] = weights @ values
                for code in range(len(by.names)):
                    reach[at, code] += weights[like(ids, codes[rows] == code, "bool")].sum(0)
            means.append(sums / size)
        parts.append(namespace(values).stack(means, 1))
    places = like(reach, np.multiply.outer(k, by.counts))[..., None]
    return TopMeans(namespace(values).concatenate(parts), reach / places, tied)


def _rounding(x: Array) -> float:
    """By how much two cosines of the same directions may differ."""
    return 4 * (1.2e-7 if "float32" in str(x.dtype) else 2.2e-16)


def _shared_places(
    queries: Array, items: Array, rows: Ints, k: int
) -> Iterator[tuple[Ints, Array]]:
    """For given queries, how much of the top k each item fills: 1, 0, or a part where items tie."""
    step = max(1, SCORES_HELD // 8 // len(items))  # double precision, and copies
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        scores = similarities(
            queries[like(queries, part, "int64")], unit(like(queries, items, None), "items")
        )
        scores = like(scores, scores)
        ranked = namespace(scores).sort(scores, -1)
        edge = (ranked.values if is_torch(scores) else ranked)[:, -k, None]
        above = like(scores, scores > edge + _rounding(queries))
        level = like(scores, abs(scores - edge) <= _rounding(queries))
        room = k - above.sum(-1)
        yield part, above + level * (room / level.sum(-1))[:, None]


def _sums(ids: Array, values: Array) -> Array:
    """Sums of the values of each query's items, queries x columns."""
    if is_torch(values):
        import torch

        return torch.nn.functional.embedding_bag(ids, values, mode="sum")
    from tiltmeter.metrics import numpy_kernels as loops

    return loops.column_sums(ids, values)


def _counts(ids: Array, values: Array) -> Array:
    """How often each item was retrieved."""
    return like(values, namespace(values).bincount(ids.reshape(-1), minlength=len(values)))
