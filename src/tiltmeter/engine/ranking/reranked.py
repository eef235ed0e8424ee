"""The order of a re-ranker for every prompt and k, and the values that metrics need of it.

A method that selects k items need not begin a selection of 1,000 with its selection of 100: each k
has its own order, and NDKL is that of the longest. Permuted labels are applied to the order as it
is, without re-ranking. So the null is a random order, the same as for the original model, and a
method that balances groups may be below it. A bootstrap would have to re-rank every resample, which
is not done: there are no intervals.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltmeter.engine.ranking.estimates import PromptBlocks
from tiltmeter.metrics import numpy_kernels as loops
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.ranking import log_shares
from tiltmeter.stats import kernels
from tiltmeter.types import Faces, Floats, Groups, Ints


class RankingOrder(Protocol):
    """An order of faces that is not by score alone."""

    by: str  # "pbm by shape"
    groups: Groups | None  # groups that it balances, if any
    #: Whether it needs only the best k + 1 items of each of these groups, and so works by parts.
    from_best: bool

    def __call__(self, scores: Floats, k: int, rows: Ints | None, vectors: Floats | None) -> Ints:
        """The top k of `rows` (None: all) for each query, best first: queries x k."""

    def of_items(self, scores: Floats, k: int, codes: Ints | None) -> Ints:
        """The top k of some items, whose groups are given by code."""


def reordering_of(model: Any, faces: Faces) -> RankingOrder | None:
    """The model's own order of `faces`; None if it is by score."""
    make_order = getattr(model, "reordering", None)
    order: RankingOrder | None = None if make_order is None else make_order(faces)
    return order


def orders(
    reorder: RankingOrder,
    scores: Floats,
    convention: Convention,
    rows: Ints | None,
    vectors: Floats,
) -> dict[int, Ints]:
    """The top k for each k, in increasing order of k: queries x k."""
    return {
        k: np.asarray(reorder(scores, k, rows, vectors), np.int32) for k in sorted(convention.k)
    }


def add_reranked(
    part: PromptBlocks,
    start: int,
    orders_by_k: dict[int, Ints],
    n_words: int,
    ndkl_draws: int,
    codes: Ints,
    target: Floats,
    labels: tuple[Ints, Ints],
) -> None:
    """Add counts and NDKL of a block of prompts, and the null of its first `n_words`, the words.

    `codes` are the groups of the images, `target` their desired shares. `labels` are permuted
    labels (draws x images) with the group of each; NDKL uses the first `ndkl_draws` of them.
    """
    permuted, group_of = labels
    size = len(target)
    for k, order in orders_by_k.items():
        part.add(f"top {k}", loops.group_counts(codes[order], size))
        if len(permuted) and n_words:
            (null,) = kernels.relabelled_top_counts(order[:n_words], permuted, (k,), size, group_of)
            part.draw(f"top {k} null", start, null, np.min_scalar_type(k), words=True)
    longest = orders_by_k[max(orders_by_k)]
    part.add("tied", np.zeros(len(longest)))
    part.add("ndkl", loops.ndkl(longest, codes, log_shares(target)))
    if len(permuted) and n_words:
        null = kernels.relabelled_ndkl(longest[:n_words], permuted[:ndkl_draws], target, group_of)
        part.draw("ndkl null", start, null, float, words=True)


def with_rerank_note(table: pa.Table, reorder: RankingOrder | None) -> pa.Table:
    """Rows with a note on the re-ranked order, unless they have another note."""
    if reorder is None or not len(table):
        return table
    note = f"order re-ranked, {reorder.by}; null: a random order; no interval"
    column = table.schema.get_field_index("note")
    return table.set_column(column, table.schema.field(column), pc.coalesce(table["note"], note))
