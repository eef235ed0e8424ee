"""Exact top k by cosine, block by block: the whole matrix of similarities is never held."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import is_torch, kernels, unit
from tiltmeter.metrics.summary import check_k
from tiltmeter.types import Array, Floats

#: Items and queries whose similarities are in memory at one time (4096 x 2048 floats: 32 MB).
ITEM_BLOCK, QUERY_BLOCK = 4096, 2048


class Retrieved(NamedTuple):
    """The best items of each query, best first."""

    scores: Array  # queries x k
    ids: Array  # queries x k: rows of the items


def top_k(
    queries: Array,
    items: Array,
    k: int,
    *,
    item_block: int = ITEM_BLOCK,
    query_block: int = QUERY_BLOCK,
) -> Retrieved:
    """The k items nearest to each query by cosine, exactly; of equal ones the earlier rows.

    `items` may be memory-mapped: each block is read once.

    >>> top_k([[1.0, 0.0]], [[0.0, 1.0], [2.0, 0.1], [1.0, 1.0]], k=2).ids
    array([[1, 2]])
    """
    queries = unit(queries, "queries")
    count = len(items)
    check_k(k, count)
    best = (_TorchBest if is_torch(queries) else _NumpyBest)(queries, k)
    for start in range(0, count, item_block):
        block = items[start : start + item_block]
        block = unit(block if is_torch(queries) else np.asarray(block), "items")
        if block.shape[1] != queries.shape[1]:
            raise InputError(
                f"queries have {queries.shape[1]} dimensions, items {block.shape[1]}: "
                "they must come from one model"
            )
        for row in range(0, len(queries), query_block):
            rows = slice(row, row + query_block)
            best.update(rows, queries[rows] @ block.T, start)
    return best.result()


class _NumpyBest:
    """Candidates above each query's k-th best so far, cut back to k when they fill their place."""

    def __init__(self, queries: Floats, k: int) -> None:
        rows, room = len(queries), 2 * k + 512
        self.k = k
        self.scores = np.empty((rows, room), queries.dtype)
        self.ids = np.empty((rows, room), np.int64)
        self.held = np.zeros(rows, np.int64)
        self.edge = np.full(rows, -np.inf, queries.dtype)

    def update(self, rows: slice, block: Floats, first: int) -> None:
        from tiltmeter.metrics import numpy_kernels as loops

        state = [part[rows] for part in (self.scores, self.ids, self.held, self.edge)]
        loops.in_rows(
            lambda at: loops.keep_best(block[at], first, self.k, *(part[at] for part in state)),
            len(block),
            step=64,
        )

    def result(self) -> Retrieved:
        from tiltmeter.metrics import numpy_kernels as loops

        loops.cut_back(self.k, self.scores, self.ids, self.held, self.edge)
        scores, ids = self.scores[:, : self.k], self.ids[:, : self.k]
        order = loops.rank(np.ascontiguousarray(scores))  # candidates lie in the order of ids
        return Retrieved(loops.take(scores, order), loops.take(ids, order))


class _TorchBest:
    """The best so far of each block of queries, joined with each new block of items."""

    def __init__(self, queries: Array, k: int) -> None:
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

    def result(self) -> Retrieved:
        import torch

        scores, ids = zip(*self.parts.values(), strict=True)
        return Retrieved(torch.cat(scores), torch.cat(ids))
