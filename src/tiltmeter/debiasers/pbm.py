"""PBM (Kong, Yuan, Hao and Henao 2023): one item of each group in turn, the best of the rest.

Post-hoc bias mitigation re-ranks the results of a query. In each round the best item of every group
is taken, unless a neutral item (one that shows no group) scores higher than these on average: then
that one is taken first. It needs the groups of the items that it ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tiltmeter.debiasers.debiaser import GroupTexts, Reranker
from tiltmeter.metrics.arrays import as_groups, matrix, to_numpy
from tiltmeter.metrics.numpy_kernels import rank
from tiltmeter.metrics.summary import check_k
from tiltmeter.types import Array, Floats, Groups, Ints


@dataclass(eq=False)
class Pbm(Reranker):
    """PBM (Kong et al. 2023): shows one item of each group in turn, the best of the rest.

    A group that has run out is left out of the rounds. Without groups, or with a single one, the
    order is that of the scores.

    Parameters
    ----------
    neutral
        Names of groups that are not balanced: their items compete by score with the mean of a
        round.

    Attributes
    ----------
    attribute_ : str or None
        The attribute that is balanced.
    names_ : list of str
        Its groups.
    """

    neutral: Sequence[str] = ("neutral", "unknown")
    from_names = True

    @property
    def from_best(self) -> bool:
        return True  # no item is shown before k better ones of its own group

    def fit(
        self,
        X: Array | None = None,
        groups: Groups | Array | None = None,
        *,
        texts: GroupTexts | None = None,
    ) -> Self:
        """Store which attribute is balanced; nothing else is learned."""
        if groups is not None and not isinstance(groups, Groups):
            groups = as_groups(groups, len(groups))
        self.attribute_ = None if groups is None else groups.attribute
        self.names_ = [] if groups is None else list(groups.names)
        return self

    def order(
        self, scores: Array, groups: Groups | None, k: int, *, vectors: Array | None = None
    ) -> Ints:
        values = np.asarray(to_numpy(matrix(scores, "scores", "queries", "items")))
        check_k(k, values.shape[1])
        best = rank(values)
        if groups is None:
            return best[:, :k]
        groups = as_groups(groups, values.shape[1])
        neutral = np.array([name in self.neutral for name in groups.names], bool)
        return np.stack(
            [
                _in_rounds(row, order, groups.codes, neutral)[:k]
                for row, order in zip(values, best, strict=True)
            ]
        )


def _in_rounds(scores: Floats, best: Ints, codes: Ints, neutral_groups: Ints) -> Ints:
    """Items in the order of PBM, given the items by score and which groups are neutral.

    An item's round is its place among those of its group. A neutral item comes before a round
    unless the round's mean is higher; since neutral items come by score, a round waits for as many
    of them as the round before did, or more.
    """
    ranked = codes[best]
    neutral = neutral_groups[ranked]
    place = np.empty(len(best), np.int64)  # among its own group
    for code in range(len(neutral_groups)):
        in_group = ranked == code
        place[in_group] = np.arange(in_group.sum())
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
