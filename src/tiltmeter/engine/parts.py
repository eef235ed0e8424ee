"""Parts of the images: the rows that a worker reads, and how it summarises them leaf by leaf.

A leaf is a number of consecutive images that depends on their total only, and a part is some
leaves: as many as give every worker four parts or more. Sums that rounding could change are made
within leaves and merged leaf by leaf, so results do not depend on the number of workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tiltmeter.engine.engines import Engine, FailedPart, LocalEngine, Work
from tiltmeter.engine.journal import Journal
from tiltmeter.engine.ranking.job import scaled
from tiltmeter.engine.vectors import ShardVectors, Vectors
from tiltmeter.errors import InputError, TiltmeterError
from tiltmeter.metrics.digest import IMAGES, intersect_groups
from tiltmeter.types import Floats, Groups, GroupSizes, Ints, Progress

PARTS_PER_WORKER = 4
#: Images of a leaf: at least (fewer are slow to rank), by default and at most.
SMALLEST, USUAL, LARGEST = 1 << 13, IMAGES, 1 << 18
#: So many leaves are enough for any number of workers; and for a few.
MANY, FEW = 4096, 64
MOST_IMAGES = 1 << 20  # of a part
T = TypeVar("T")
Block = tuple[int, Floats, Ints]  # number of the first image, embeddings, cells


def leaf_size(images: int) -> int:
    """Images of a leaf.

    >>> leaf_size(10_000), leaf_size(10**6), leaf_size(10**9)
    (8192, 15625, 244141)
    """
    least = int(np.clip(-(-images // FEW), SMALLEST, USUAL))
    return int(np.clip(-(-images // MANY), least, LARGEST))


@dataclass(frozen=True, eq=False)
class VectorPart:
    """A part of the images: embeddings, cells, and the number of the first image."""

    vectors: Vectors
    codes: Ints
    first: int = 0


class LeafFailedError(InputError):
    """The images of a leaf cannot be read."""

    def __init__(self, first: int, reason: str) -> None:
        super().__init__(reason, code="bad-file", value=first)
        self.first = first


@dataclass(frozen=True, eq=False)
class PartReader:
    """Sent to workers once: how to read parts. Of a collection a part is a range of rows."""

    leaf: int
    shards: ShardVectors | None = None
    cells: Ints | None = None  # of each combination of labels that the collection has

    def leaves(self, part: VectorPart | range) -> Iterator[tuple[int, int, VectorPart | range]]:
        """The leaves of a part: number of the first image, number of images, and the leaf."""
        count = len(part.codes) if isinstance(part, VectorPart) else len(part)
        begin = part.first if isinstance(part, VectorPart) else part.start
        for start in range(0, count, self.leaf):
            stop = min(start + self.leaf, count)
            if isinstance(part, VectorPart):
                leaf: VectorPart | range = VectorPart(
                    part.vectors.part(start, stop), part.codes[start:stop], begin + start
                )
            else:
                leaf = part[start:stop]
            yield begin + start, stop - start, leaf

    def blocks(
        self, leaf: VectorPart | range, size: int = IMAGES, scaling: str | None = None
    ) -> Iterator[Block]:
        """Embeddings and cells of a leaf, a block at a time; raises `LeafFailedError`.

        Embeddings are as they were read, or scaled as a convention says.
        """
        begin = leaf.first if isinstance(leaf, VectorPart) else leaf.start
        try:
            if not isinstance(leaf, VectorPart):
                assert self.shards is not None
                assert self.cells is not None
                some = self.shards.part(leaf.start, leaf.stop)
                leaf = VectorPart(some, self.cells[some.codes()], leaf.start)
            for start in range(0, len(leaf.codes), size):
                vectors = leaf.vectors.part(start, start + size).read()
                if scaling is not None:
                    vectors = scaled(vectors, scaling, begin + start)
                yield begin + start, vectors, leaf.codes[start : start + size]
        except (TiltmeterError, OSError) as error:
            raise LeafFailedError(begin, str(error)) from error


def retry_without_failed(work: Callable[[frozenset[int]], T]) -> tuple[T, dict[int, str]]:
    """The result of a part without the leaves that cannot be read, and the reasons of these.

    `work` adds to a histogram in place, so it starts again when a leaf fails in the middle.
    """
    failed: dict[int, str] = {}
    while True:
        try:
            return work(frozenset(failed)), failed
        except LeafFailedError as error:
            failed[error.first] = str(error)


@dataclass(frozen=True, eq=False)
class ImageParts:
    """Images with their cells, and how they are cut into parts."""

    images: Vectors
    cells: Ints  # of each image; of a collection, of each combination of labels
    leaf: int

    @classmethod
    def of(cls, images: Vectors, cells: Ints, engine: Engine) -> ImageParts:
        return cls(images, cells, engine.size or leaf_size(len(images)))

    @property
    def reader(self) -> PartReader:
        if isinstance(self.images, ShardVectors):
            return PartReader(self.leaf, self.images, self.cells)
        return PartReader(self.leaf)

    def parts(self, engine: Engine) -> Sequence[VectorPart | range]:
        """Parts of whole leaves, at least four for each worker where there are enough leaves."""
        total = len(self.images)
        leaves = -(-total // self.leaf)
        wanted = max(PARTS_PER_WORKER * engine.slots, -(-total // MOST_IMAGES), 1)
        size = self.leaf * max(1, leaves // wanted)
        return self._cut([range(at, min(at + size, total)) for at in range(0, total, size)])

    def sample(self, count: int, engine: Engine) -> tuple[Floats, Ints]:
        """Embeddings and cells of a fixed, evenly spaced sample.

        Unreadable images are skipped: the measurement will report them.
        """
        total, run_length = len(self.images), 64  # of consecutive images: far fewer reads
        starts = np.arange(0, total, run_length)
        if total > count:
            starts = np.linspace(0, total - run_length, count // run_length).astype(int)
        runs = [range(start, min(start + run_length, total)) for start in starts.tolist()]
        # workers read shards; what is here or in a store costs less to read than to send
        where = engine if isinstance(self.images, ShardVectors) else LocalEngine()
        found = list(where.run(_ReadSample(self.reader), self._cut(runs)))
        read = [one for one in found if not isinstance(one, FailedPart)]
        if not read:
            raise InputError(found[0].reason if found else "there are no embeddings to read")
        vectors, cells = zip(*read, strict=True)
        return np.concatenate(vectors), np.concatenate(cells)

    def _cut(self, ranges: Sequence[range]) -> Sequence[VectorPart | range]:
        if isinstance(self.images, ShardVectors):
            return ranges
        return [
            VectorPart(self.images.part(one.start, one.stop), self.cells[one.start : one.stop],
                       one.start)
            for one in ranges
        ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class _ReadSample:
    reader: PartReader

    def __call__(self) -> Work:
        return self.work

    def work(self, part: VectorPart | range) -> tuple[Floats, Ints]:
        ((_, vectors, codes),) = self.reader.blocks(part)
        return np.asarray(vectors), codes


def cells_of(groups: Sequence[Groups]) -> tuple[Ints, Ints]:
    """Intersect all groups: the cell of each image, and the group of each cell by attribute.

    Of a collection in shards the first is the cell of each combination of labels that it has.
    """
    if not isinstance(groups[0], GroupSizes):
        return intersect_groups(groups)
    by_label = [Groups(by.of_cell, by.names, by.attribute) for by in groups
                if isinstance(by, GroupSizes)]  # fmt: skip
    return intersect_groups(by_label)


def run_parts(
    engine: Engine,
    task: Callable[[], Work],
    parts: Sequence[Any],
    progress: Progress,
    what: str,
    unit: str = "parts",
) -> Iterator[Any]:
    """Results in the order of the parts; tells how many are done, how fast, and the time left.

    Ranges of rows of a collection are kept in the engine's journal, if it has one: after the loss
    of the driver the same call computes only the others.
    """
    results = engine.run(task, parts)
    if engine.journal is not None and parts and isinstance(parts[0], range):
        results = Journal.of(engine.journal, task, parts).run(engine.run, task, parts)
    started = time.monotonic()
    for done, result in enumerate(results, 1):
        yield result
        told = what
        if done < len(parts):
            taken = max(time.monotonic() - started, 1e-9)
            told += (
                f", {done:,} of {len(parts):,} {unit}, {done / taken:,.3g} {unit}/s, "
                f"{duration(taken / done * (len(parts) - done))} left"
            )
        progress(told, done / len(parts))


def duration(seconds: float) -> str:
    """A duration in words.

    >>> duration(0.2), duration(42), duration(600), duration(9000)
    ('under 1 s', '42 s', '10 min', '2.5 h')
    """
    if seconds < 1:
        return "under 1 s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.3g} h"
