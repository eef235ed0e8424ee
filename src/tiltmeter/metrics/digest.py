"""All that one pass over blocks of images leaves: moments, top items, histograms; they merge.

A pass works on the finest groups that the attributes make together; those of one attribute come
from them (`regroup`). So three attributes cost one pass. For a re-ranker the best items of each of
its groups are kept too (`RerankPools`).
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

IMAGES = 16384  # of a block: its scores are all that is held


class RerankPools(NamedTuple):
    """What to keep for a re-ranker: the best `k` items of each of its groups."""

    of: Ints  # the re-ranker's group of each finest group
    k: int


@dataclass(frozen=True, eq=False)
class Digest:
    """What the scores of some images leave, for every query and group."""

    moments: Moments
    top: TopItems
    histogram: Histogram
    best: tuple[TopItems | None, ...] = ()  # of each of a re-ranker's groups; None: nobody seen

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
        """Of one block; `first` is the number of its first image among all."""
        scores = matrix(scores, "scores", "queries", "items")
        moments, top = _of(scores, codes, groups, k, first)
        best = _best(scores, codes, groups, first, pools)
        return cls(moments, top, Histogram.of(scores, codes, groups, grid), best)

    def merge(self, other: Digest) -> Digest:
        """Of both blocks together; in whatever order and grouping, but for rounding of moments."""
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
        """Of coarser groups: group `g` becomes part of group `codes[g]`."""
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
        """Images of each group in the top k, queries x groups: composition, skew and entropy."""
        return np.asarray(self.top.counts(k, ties))

    def ndkl(self, shares: Floats, k: int) -> Floats:
        """NDKL of the first k, exactly, one a query."""
        check_k(k, self.top.scores.shape[1])
        codes = np.ascontiguousarray(self.top.codes[:, :k])
        return ndkl_of_labels(codes, log_shares(shares))

    def whole_ndkl(self, shares: Floats) -> BoundedValue:
        """NDKL of the whole ranking, within bounds."""
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
    """One pass over unit vectors of images: `block` of them against all texts at a time."""
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
) -> Digest:
    """`digest` of blocks that are read one after the other: vectors, and the groups of each."""
    found: Digest | None = None
    for images, codes in blocks:
        scores = texts @ np.asarray(images, texts.dtype).T
        if found is None:
            found = Digest.of(scores, codes, groups, k, grid, first, pools)
        else:
            moments, top = _of(scores, codes, groups, k, first)
            found = Digest(
                found.moments.merge(moments),
                found.top.merge(top),
                found.histogram.add(scores, codes),
                _joined(found.best, _best(scores, codes, groups, first, pools)),
            )
        first += len(codes)
    if found is None:
        raise InputError("there are no images to go over")
    return found


def _best(
    scores: Floats, codes: Ints, groups: int, first: int, pools: RerankPools | None
) -> tuple[TopItems | None, ...]:
    if pools is None:
        return ()
    named, member = tuple(map(str, range(groups))), pools.of[codes]
    found: list[TopItems | None] = []
    for code in range(int(pools.of.max()) + 1):
        at = np.flatnonzero(member == code)
        if not len(at):
            found.append(None)
            continue
        best = TopItems.of(np.ascontiguousarray(scores[:, at]), Groups(codes[at], named), pools.k)
        found.append(replace(best, ids=at[best.ids] + first))
    return tuple(found)


def _joined(
    some: tuple[TopItems | None, ...], more: tuple[TopItems | None, ...]
) -> tuple[TopItems | None, ...]:
    return tuple(
        a.merge(b) if a is not None and b is not None else a or b
        for a, b in zip(some, more, strict=True)
    )


def _of(scores: Floats, codes: Ints, groups: int, k: int, first: int) -> tuple[Moments, TopItems]:
    named = Groups(codes, tuple(map(str, range(groups))))
    top = TopItems.of(scores, named, k)
    # 32 bits would do for two thousand million images only
    top = replace(top, ids=top.ids.astype(np.int64) + first)
    return Moments.of(scores, named), top


def merged(parts: Iterable[Digest]) -> Digest:
    """All parts together, one after the other."""
    return reduce(Digest.merge, parts)


def finest(groups: Sequence[Groups]) -> tuple[Ints, Ints]:
    """The cell of each item in the crossing of all groups, and cells x groups: each one's code."""
    cells, kinds = np.zeros(len(groups[0]), np.uint8), np.zeros((1, 0), np.int64)
    for one in groups:
        names = len(one.names)
        total = len(kinds) * names
        wide = np.min_scalar_type(total)
        cells = cells.astype(wide) * wide.type(names) + one.codes.astype(wide)
        # counted in pieces: NumPy makes them eight bytes each
        pieces = (cells[at : at + IMAGES] for at in range(0, len(cells), IMAGES))
        there = np.flatnonzero(sum(np.bincount(some, minlength=total) for some in pieces))
        number = np.zeros(total, np.min_scalar_type(len(there)))
        number[there] = np.arange(len(there))
        cells, kinds = number[cells], np.column_stack([kinds[there // names], there % names])
    return cells, kinds
