"""What a re-ranker shows for a prompt: its top k, for every k again, and what figures need of it.

A method that chooses k items for a query need not show its best 100 first when it is asked for
1,000: so each k has an order of its own, and NDKL is that of the longest. Labels that are permuted
again are laid over the order as it is shown; nothing is re-ranked for them. So the null is a random
order, the same noise floor that the model had before, and a method that balances groups may well
lie below it. A bootstrap would have to re-rank every draw, which is not done: no intervals.
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
    """How some faces are put in order, where that is not by score alone."""

    by: str  # "pbm by shape"
    groups: Groups | None  # what it balances; None: nothing
    #: Whether it looks at no more than the best k + 1 items of each of these groups: then it can
    #: re-rank what is left of images that are never in memory together.
    from_best: bool

    def __call__(self, scores: Floats, k: int, rows: Ints | None, vectors: Floats | None) -> Ints:
        """The k of `rows` (None: all) to show for each query, best first: queries x k."""


def reordering_of(model: Any, faces: Faces) -> RankingOrder | None:
    """The model's own way to order `faces`; None where it is by score."""
    asked = getattr(model, "reordering", None)
    found: RankingOrder | None = None if asked is None else asked(faces)
    return found


def orders(
    reorder: RankingOrder,
    scores: Floats,
    convention: Convention,
    rows: Ints | None,
    vectors: Floats,
) -> dict[int, Ints]:
    """What is shown for each k, rising: queries x k."""
    return {
        k: np.asarray(reorder(scores, k, rows, vectors), np.int32) for k in sorted(convention.k)
    }


def add_shown(
    part: PromptBlocks,
    start: int,
    shown: dict[int, Ints],
    here: int,
    few: int,
    codes: Ints,
    target: Floats,
    labels: tuple[Ints, Ints],
) -> None:
    """Counts and NDKL of a block of prompts, of which the first `here` are words, and their null.

    `codes` are the groups of the images, `target` their desired shares. `labels` are permuted
    (draws x images), with the group that each stands for; `few` of them are laid under NDKL.
    """
    drawn, of = labels
    size = len(target)
    for k, order in shown.items():
        part.add(f"top {k}", loops.group_counts(codes[order], size))
        if len(drawn) and here:
            (null,) = kernels.relabelled_top_counts(order[:here], drawn, (k,), size, of)
            part.draw(f"top {k} null", start, null, np.min_scalar_type(k), words=True)
    longest = shown[max(shown)]
    part.add("tied", np.zeros(len(longest)))
    part.add("ndkl", loops.ndkl(longest, codes, log_shares(target)))
    if len(drawn) and here:
        null = kernels.relabelled_ndkl(longest[:here], drawn[:few], target, of)
        part.draw("ndkl null", start, null, float, words=True)


def noted(table: pa.Table, reorder: RankingOrder | None) -> pa.Table:
    """Rows that say how their order came about, unless there is something else to say."""
    if reorder is None or not len(table):
        return table
    said = f"order re-ranked, {reorder.by}; null: a random order; no interval"
    at = table.schema.get_field_index("note")
    return table.set_column(at, table.schema.field(at), pc.coalesce(table["note"], said))
