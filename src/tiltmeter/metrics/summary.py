"""Summaries of a block of scores: small, exact, and mergeable with those of other blocks.

The metrics on whole matrices are thin wrappers around these, so that one block, many blocks and
many machines give the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import as_groups, kernels, like, matrix, namespace, to_numpy
from tiltmeter.types import Array, Groups, Ints


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean and centred second moment of the scores, by query and group.

    Examples
    --------
    >>> moments = Moments.of([[1.0, 3.0, 5.0]], [0, 0, 1])
    >>> moments.mean, moments.m2
    (array([[2., 5.]]), array([[2., 0.]]))
    """

    count: Array  # groups
    mean: Array  # queries x groups
    m2: Array  # queries x groups: sum of (score - mean)^2

    @classmethod
    def of(cls, scores: Array, groups: Groups | Array) -> Moments:
        """The moments of one block: scores are queries x items."""
        scores = matrix(scores, "scores", "queries", "items")
        groups = as_groups(groups, scores.shape[1])
        codes = like(scores, groups.codes, "int64")
        mean, m2 = kernels(scores).moments(scores, codes, len(groups.names))
        return cls(like(scores, groups.counts), mean, m2)

    def merge(self, other: Moments) -> Moments:
        """The moments of two blocks of items together (Chan, Golub and LeVeque 1983)."""
        return _pooled([self.count, other.count], [self.mean, other.mean], [self.m2, other.m2])

    def regroup(self, codes: Ints, groups: int) -> Moments:
        """The moments of coarser groups: group `g` becomes part of group `codes[g]`."""
        xp = namespace(self.mean)
        parts = []
        for target in range(groups):
            at = [g for g, code in enumerate(codes) if code == target]
            parts.append(
                _pooled(
                    [self.count[g] for g in at],
                    [self.mean[:, g] for g in at],
                    [self.m2[:, g] for g in at],
                )
            )
        return Moments(
            xp.stack([part.count for part in parts]),
            xp.stack([part.mean for part in parts], axis=1),
            xp.stack([part.m2 for part in parts], axis=1),
        )

    def total(self) -> Moments:
        """The moments of all groups together, as one group."""
        return self.regroup(to_numpy(self.count).astype(int) * 0, 1)


def _pooled(counts: Sequence[Array], means: Sequence[Array], m2s: Sequence[Array]) -> Moments:
    count = sum(counts)
    divisor = count + (count == 0)  # an empty group keeps mean 0 and adds nothing
    mean = sum(n * mean for n, mean in zip(counts, means, strict=True)) / divisor
    m2 = sum(part + n * (own - mean) ** 2 for n, own, part in zip(counts, means, m2s, strict=True))
    return Moments(count, mean, m2)


@dataclass(frozen=True, eq=False)
class TopItems:
    """The exact best `k` items of each query, and how many tie with the last of them.

    Of equal scores the lower id comes first. `tied` counts, by group, every item seen whose score
    equals the last one kept, whether it is kept itself or not.

    Examples
    --------
    >>> top = TopItems.of([[1.0, 3.0, 1.0, 0.0]], [0, 0, 1, 1], k=2)
    >>> top.ids, top.counts(2, "expected")
    (array([[1, 0]], dtype=int32), array([[1.5, 0.5]]))
    """

    k: int  # fewer are kept where fewer have been seen
    scores: Array  # queries x kept, descending
    ids: Array  # queries x kept
    codes: Array  # queries x kept: the group of each
    tied: Array  # queries x groups

    @classmethod
    def of(
        cls,
        scores: Array,
        groups: Groups | Array,
        k: int,
        first_id: int = 0,
        order: Array | None = None,
    ) -> TopItems:
        """The best items of one block, whose items have the ids `first_id`, `first_id + 1` ...

        A block that is already ranked passes its `order`, which saves the search.
        """
        scores = matrix(scores, "scores", "queries", "items")
        groups = as_groups(groups, scores.shape[1])
        loops = kernels(scores)
        codes = like(scores, groups.codes, "int64")
        ids = loops.select(scores, min(k, scores.shape[1])) if order is None else order[:, :k]
        best = loops.take(scores, ids)
        tied = loops.equal_counts(scores, best[:, -1], codes, len(groups.names))
        return cls(k, best, ids + first_id, codes[ids], tied)

    def counts(self, k: int, ties: str) -> Array:
        """Items of each group in the top `k`; "expected" is over all orders of equal scores."""
        check_k(k, self.scores.shape[1])
        count = kernels(self.scores).group_counts
        groups = self.tied.shape[1]
        if ties == "stable":
            return count(self.codes[:, :k], groups)
        edge = self.scores[:, k - 1 : k]
        above = count(self.codes, groups, self.scores > edge)
        return _shared(above, self._equal(edge), k)

    def merge(self, other: TopItems) -> TopItems:
        """The best items of two blocks together."""
        if self.k != other.k:
            raise InputError(f"cannot merge the top {self.k} with the top {other.k}")
        xp, take = namespace(self.scores), kernels(self.scores).take
        scores, ids, codes = (
            xp.concatenate([getattr(self, name), getattr(other, name)], axis=1)
            for name in ("scores", "ids", "codes")
        )
        by_id = xp.argsort(ids, axis=1)
        order = kernels(self.scores).rank(take(scores, by_id))[:, : self.k]
        scores, ids, codes = (take(take(x, by_id), order) for x in (scores, ids, codes))
        edge = scores[:, -1:]
        return TopItems(self.k, scores, ids, codes, self._equal(edge) + other._equal(edge))

    def _equal(self, edge: Array) -> Array:
        """Items seen, by group, with a score of exactly `edge` (at or above the last one kept)."""
        held = kernels(self.scores).group_counts(
            self.codes, self.tied.shape[1], self.scores == edge
        )
        last = self.scores[:, -1:] == edge
        return namespace(held).where(last, self.tied, held)


def top_weights(scores: Array, order: Array, k: int, ties: str) -> Array:
    """How much each item counts in the top `k` of each query, as in `TopItems.counts`.

    >>> import numpy as np
    >>> top_weights(np.array([[1.0, 3.0, 1.0, 0.0]]), np.array([[1, 0, 2, 3]]), 2, "expected")
    array([[0.5, 1. , 0.5, 0. ]])
    """
    check_k(k, scores.shape[1])
    edge = kernels(scores).take(scores, order[:, k - 1 : k])
    above, equal = (like(scores, where) for where in (scores > edge, scores == edge))
    if ties == "stable":
        return above + equal * (equal.cumsum(1) <= k - above.sum(1)[:, None])
    return _shared(above, equal, k)


def _shared(above: Array, equal: Array, k: int) -> Array:
    """Items above the edge of a top `k`, and those that tie and share the remaining places."""
    left = k - above.sum(1)
    return above + equal * (left / equal.sum(1))[:, None]


def check_k(k: int, items: int, size: str = "", *, below: bool = False) -> None:
    """InputError unless 1 <= k <= items; `size` says it of a dataset: it has so many images.

    With `below`, also if k is the number of items: a top k of all items is the same for every
    model, so in an audit it would pass for a measurement without bias.
    """
    most = items - below
    if not 1 <= k <= most:
        raise InputError(
            f"k is {k:,}, but {size or f'there are {items:,} items'}: pass --k "
            f"{max(1, items // 5)} (a fifth of them) or another number from 1 to {most:,}",
            value=k,
        )
