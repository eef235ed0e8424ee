"""Everything that one pass over blocks of images keeps: moments, top items, histograms; they merge.

A pass works on the finest groups, the intersection of all attributes; those of one attribute are
computed from them (`regroup`), so three attributes cost one pass. For a re-ranker the best items of
each of its groups are kept too (`RerankPools`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import matrix
from tiltmeter.metrics.association import c_asc_of_moments
from tiltmeter.metrics.histogram import BoundedValue, Histogram, HistogramGrid, ndkl_of_histogram
from tiltmeter.metrics.numpy_kernels import ndkl_of_labels
from tiltmeter.metrics.ranking import log_shares
from tiltmeter.metrics.summary import Moments, TopItems, check_k
from tiltmeter.types import Floats, Groups, Ints

IMAGES = 16384  # per block: only its scores are in memory


class RerankPools(NamedTuple):
    """What a re-ranker needs: the best `k` items of each of its groups."""

    of: Ints  # the re-ranker's group of each finest group
    k: int


@dataclass(frozen=True, eq=False)
class Digest:
    """Summary of the scores of images, for every query and group."""

    moments: Moments
    top: TopItems
    histogram: Histogram
    best: tuple[TopItems | None, ...] = ()  # of each of a re-ranker's groups; None if empty so far

    @classmethod
    def of(
        cls,
        scores: Floats,
        codes: Ints,
        groups: int,
        k: int,
        grid: HistogramGrid,
        first: int,
        pools: RerankPools | None = None,
    ) -> Digest:
        """The digest of one block; `first` is the number of its first image among all."""
        scores = matrix(scores, "scores", "queries", "items")
        moments, top = _of(scores, codes, groups, k, first)
        best = _best(scores, codes, groups, first, pools)
        return cls(moments, top, Histogram.of(scores, codes, groups, grid), best)

    def merge(self, other: Digest) -> Digest:
        """The digest of two blocks, the same in any order except for rounding of moments."""
        return Digest(
            self.moments.merge(other.moments),
            self.top.merge(other.top),
            self.histogram.merge(other.histogram),
            _joined(self.best, other.best),
        )

    def absorb(self, other: Digest) -> Digest:
        """`merge` that adds to this histogram in place."""
        return Digest(
            self.moments.merge(other.moments),
            self.top.merge(other.top),
            self.histogram.absorb(other.histogram),
            _joined(self.best, other.best),
        )

    def regroup(self, codes: Ints, groups: int) -> Digest:
        """The digest of coarser groups: group `g` becomes part of group `codes[g]`."""
        codes = np.asarray(codes)
        tied = np.zeros((len(self.top.tied), groups))
        for g, code in enumerate(codes):
            tied[:, code] += self.top.tied[:, g]
        return Digest(
            self.moments.regroup(codes, groups),
            replace(self.top, codes=codes[self.top.codes], tied=tied),
            self.histogram.regroup(codes, groups),
        )

    @property
    def items(self) -> int:
        return int(self.moments.count.sum())

    def c_asc(self) -> Floats:
        """C-ASC, queries x groups."""
        return np.asarray(c_asc_of_moments(self.moments))

    def top_counts(self, k: int, ties: str) -> Floats:
        """Images of each group in the top k, queries x groups."""
        return np.asarray(self.top.counts(k, ties))

    def ndkl(self, shares: Floats, k: int) -> Floats:
        """Exact NDKL of the first k, one per query."""
        check_k(k, self.top.scores.shape[1])
        codes = np.ascontiguousarray(self.top.codes[:, :k])
        return ndkl_of_labels(codes, log_shares(shares))

    def whole_ndkl(self, shares: Floats) -> BoundedValue:
        """NDKL of the whole ranking, with bounds."""
        return ndkl_of_histogram(self.histogram, shares, self.top)


def digest(
    texts: Floats,
    images: Floats,
    codes: Ints,
    *,
    groups: int,
    k: int,
    grid: HistogramGrid,
    first: int = 0,
    block: int = IMAGES,
) -> Digest:
    """Summarise the scores of images in one pass.

    Parameters
    ----------
    texts : array of shape (queries, dimensions)
        Unit embeddings of the prompts.
    images : array of shape (images, dimensions)
        Unit embeddings of the images.
    codes : array of int of shape (images,)
        The group of each image.
    groups : int
        Number of groups.
    k : int
        Number of top items to keep.
    grid : HistogramGrid
        Bins of the scores.
    first : int
        Number of the first image among all.
    block : int
        Images that are scored at one time.

    Returns
    -------
    Digest
        Moments, top items and histogram.

    Raises
    ------
    InputError
        There are no images.
    """
    cut = range(0, len(images), block)
    blocks = ((images[at : at + block], codes[at : at + block]) for at in cut)
    return digest_blocks(texts, blocks, groups=groups, k=k, grid=grid, first=first)


def digest_blocks(
    texts: Floats,
    blocks: Iterable[tuple[Floats, Ints]],
    *,
    groups: int,
    k: int,
    grid: HistogramGrid,
    first: int = 0,
    pools: RerankPools | None = None,
    after: Digest | None = None,
) -> Digest:
    """`digest` of blocks that are read one after the other: embeddings, and the group of each.

    With `after`, the digest of blocks before, top items and histogram are of all blocks; moments,
    whose sums depend on the order, are of these blocks alone. The histogram is changed in place.
    """
    result, total = after, None
    for images, codes in blocks:
        scores = texts @ np.asarray(images, texts.dtype).T
        if result is None:
            result = Digest.of(scores, codes, groups, k, grid, first, pools)
            total = result.moments
        else:
            moments, top = _of(scores, codes, groups, k, first)
            total = moments if total is None else total.merge(moments)
            result = Digest(
                total,
                result.top.merge(top),
                result.histogram.add(scores, codes),
                _joined(result.best, _best(scores, codes, groups, first, pools)),
            )
        first += len(codes)
    if result is None:
        raise InputError("there are no images: give at least one")
    return result


def _best(
    scores: Floats, codes: Ints, groups: int, first: int, pools: RerankPools | None
) -> tuple[TopItems | None, ...]:
    if pools is None:
        return ()
    named, member = tuple(map(str, range(groups))), pools.of[codes]
    pooled: list[TopItems | None] = []
    for code in range(int(pools.of.max()) + 1):
        at = np.flatnonzero(member == code)
        if not len(at):
            pooled.append(None)
            continue
        best = TopItems.of(np.ascontiguousarray(scores[:, at]), Groups(codes[at], named), pools.k)
        pooled.append(replace(best, ids=at[best.ids] + first))
    return tuple(pooled)


def _joined(
    first: tuple[TopItems | None, ...], second: tuple[TopItems | None, ...]
) -> tuple[TopItems | None, ...]:
    return tuple(
        a.merge(b) if a is not None and b is not None else a or b
        for a, b in zip(first, second, strict=True)
    )


def _of(scores: Floats, codes: Ints, groups: int, k: int, first: int) -> tuple[Moments, TopItems]:
    named = Groups(codes, tuple(map(str, range(groups))))
    top = TopItems.of(scores, named, k)
    # 32 bits would be enough for two billion images only
    top = replace(top, ids=top.ids.astype(np.int64) + first)
    return Moments.of(scores, named), top


def merged(parts: Iterable[Digest]) -> Digest:
    """All parts together, merged in order."""
    return reduce(Digest.merge, parts)


def intersect_groups(groups: Sequence[Groups]) -> tuple[Ints, Ints]:
    """Intersect all groups.

    Parameters
    ----------
    groups : sequence of Groups
        Groups of the same items, by several attributes.

    Returns
    -------
    cells : array of int of shape (items,)
        The cell of each item in the intersection; empty cells are left out.
    kinds : array of int of shape (cells, attributes)
        The group of each cell by each attribute.

    Examples
    --------
    >>> gender, age = Groups.from_labels("ffm"), Groups.from_labels("oyy")
    >>> cells, kinds = intersect_groups([gender, age])
    >>> cells.tolist(), kinds.tolist()
    ([0, 1, 2], [[0, 0], [0, 1], [1, 1]])
    """
    cells, kinds = np.zeros(len(groups[0]), np.uint8), np.zeros((1, 0), np.int64)
    for attribute in groups:
        names = len(attribute.names)
        total = len(kinds) * names
        wide = np.min_scalar_type(total)
        cells = cells.astype(wide) * wide.type(names) + attribute.codes.astype(wide)
        # counted in pieces: NumPy converts them to eight bytes each
        pieces = (cells[at : at + IMAGES] for at in range(0, len(cells), IMAGES))
        present = np.flatnonzero(sum(np.bincount(piece, minlength=total) for piece in pieces))
        number = np.zeros(total, np.min_scalar_type(len(present)))
        number[present] = np.arange(len(present))
        cells, kinds = number[cells], np.column_stack([kinds[present // names], present % names])
    return cells, kinds
