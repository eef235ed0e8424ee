"""PBM (Kong, Yuan, Hao and Henao 2023): one of each group in turn, the best that is left.

Post-hoc bias mitigation re-ranks what was found for a query. In each round the best item of every
group is taken, unless a neutral item (one that shows no group) scores higher than these on average:
then that one is taken first. It needs the groups of the items that it ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from tiltmeter.debiasers.debiaser import GroupTexts, Reranker
from tiltmeter.metrics.arrays import as_groups, matrix, to_numpy
from tiltmeter.metrics.numpy_kernels import rank
from tiltmeter.metrics.summary import check_k
from tiltmeter.types import Array, Floats, Groups, Ints


class Pbm(Reranker):
    """PBM (Kong et al. 2023): shows one item of each group in turn, the best that is left.

    Groups whose name is among `neutral` are not balanced: their items compete by score with the
    mean of a round. A group that has run out is left out of the rounds. Without groups, or with a
    single one, the order is that of the scores.
    """

    def __init__(self, neutral: Sequence[str] = ("neutral", "unknown")) -> None:
        self.neutral = neutral

    @property
    def settings(self) -> dict[str, Any]:
        return {"neutral": list(self.neutral)}  # as JSON gives them back

    @property
    def from_best(self) -> bool:
        return True  # no item is shown before k better ones of its own group

    def fit(
        self,
        vectors: Array | None,
        groups: Groups | Array | None,
        *,
        texts: GroupTexts | None = None,
    ) -> Self:
        """Remembers which attribute is balanced; nothing else is learned."""
        if groups is not None and not isinstance(groups, Groups):
            groups = as_groups(groups, len(groups))
        self.attribute_ = None if groups is None else groups.attribute
        self.names_ = [] if groups is None else list(groups.names)
        return self

    def order(
        self, scores: Array, groups: Groups | None, k: int, *, vectors: Array | None = None
    ) -> Ints:
        """The k items to show for each query, best first: queries x k rows of items."""
        found = np.asarray(to_numpy(matrix(scores, "scores", "queries", "items")))
        check_k(k, found.shape[1])
        best = rank(found)
        if groups is None:
            return best[:, :k]
        groups = as_groups(groups, found.shape[1])
        apart = np.array([name in self.neutral for name in groups.names], bool)
        return np.stack(
            [
                _in_rounds(row, at, groups.codes, apart)[:k]
                for row, at in zip(found, best, strict=True)
            ]
        )


def _in_rounds(scores: Floats, best: Ints, codes: Ints, apart: Ints) -> Ints:
    """Items in the order of PBM; `best` are they by score, `apart` says which groups are neutral.

    An item's round is its place among those of its group. A neutral item comes before a round
    unless the round's mean is higher; since neutral items come by score, a round waits for as many
    of them as the round before did, or more.
    """
    ranked = codes[best]
    neutral = apart[ranked]
    place = np.empty(len(best), np.int64)  # among its own group
    for code in range(len(apart)):
        own = ranked == code
        place[own] = np.arange(own.sum())
    waits = np.zeros(len(best))
    if neutral.any() and not neutral.all():
        shown = scores[best].astype(np.float64)
        rounds = place[~neutral]
        means = np.bincount(rounds, shown[~neutral]) / np.bincount(rounds)
        higher = np.searchsorted(-shown[neutral], -means, side="right")  # not below the mean
        before = np.maximum.accumulate(higher)
        waits[~neutral] = before[rounds] - 0.5
        waits[neutral] = np.arange(neutral.sum())
    elif neutral.any():
        return best
    return np.asarray(best[np.lexsort((np.arange(len(best)), place, waits))])
