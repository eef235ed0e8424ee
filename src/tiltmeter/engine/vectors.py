"""Locations of embeddings, from which workers read their own part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from tiltmeter.datasets.shards import ShardTable
from tiltmeter.errors import InputError
from tiltmeter.io.npy import open_npy
from tiltmeter.store import StoredEmbeddings
from tiltmeter.types import Floats, Ints


class Vectors(Protocol):
    """Embeddings of a sequence of images."""

    def __len__(self) -> int: ...
    def part(self, start: int, stop: int) -> Vectors: ...
    def read(self) -> Floats: ...


@dataclass(frozen=True, eq=False)
class InMemoryVectors:
    """Embeddings in memory; sent to workers."""

    array: Floats

    def __len__(self) -> int:
        return len(self.array)

    def part(self, start: int, stop: int) -> InMemoryVectors:
        return InMemoryVectors(np.ascontiguousarray(self.array[start:stop]))

    def read(self) -> Floats:
        return self.array


@dataclass(frozen=True)
class FileVectors:
    """Rows of one .npy file; only its path is sent to workers."""

    path: Path
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def part(self, start: int, stop: int) -> FileVectors:
        return FileVectors(self.path, self.start + start, min(self.start + stop, self.stop))

    def read(self) -> Floats:
        return open_npy(self.path, self.stop)[self.start : self.stop]


@dataclass(frozen=True, eq=False)
class StoreVectors:
    """Rows of the shards of a store, in the order of the images."""

    space: Path
    shards: tuple[str, ...]
    shard: Ints  # of each image: index into `shards`
    row: Ints  # of each image: row in its shard

    @classmethod
    def of(cls, space: StoredEmbeddings, items: Sequence[str]) -> StoreVectors:
        """The embeddings of the given items."""
        places = space.places(items)
        names = sorted({shard for shard, _ in places})
        number = {name: index for index, name in enumerate(names)}
        shard = np.array([number[name] for name, _ in places], np.int32)
        row = np.array([row for _, row in places], np.int32)
        return cls(space.path, tuple(names), shard, row)

    def __len__(self) -> int:
        return len(self.shard)

    def part(self, start: int, stop: int) -> StoreVectors:
        used, shard = np.unique(self.shard[start:stop], return_inverse=True)
        names = tuple(self.shards[index] for index in used)
        return StoreVectors(self.space, names, shard.astype(np.int32), self.row[start:stop])

    def read(self) -> Floats:
        if not self.shards:
            raise InputError("there are no embeddings to read")
        places = [np.flatnonzero(self.shard == number) for number in range(len(self.shards))]
        parts = (
            (name, filled, self.row[filled])
            for name, filled in zip(self.shards, places, strict=True)
        )
        return StoredEmbeddings(self.space).gather(len(self), parts)


@dataclass(frozen=True, eq=False)
class SelectedVectors:
    """Selected rows of other embeddings, in increasing order."""

    vectors: Vectors
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, stop: int) -> SelectedVectors:
        return SelectedVectors(self.vectors, self.rows[start:stop])

    def read(self) -> Floats:
        first, last = int(self.rows[0]), int(self.rows[-1])
        return np.asarray(self.vectors.part(first, last + 1).read()[self.rows - first])


@dataclass(frozen=True, eq=False)
class TransformedVectors:
    """Other embeddings, transformed on reading by a function such as a debiaser's map."""

    vectors: Vectors
    change: Callable[[Floats], Floats]

    def __len__(self) -> int:
        return len(self.vectors)

    def part(self, start: int, stop: int) -> TransformedVectors:
        return TransformedVectors(self.vectors.part(start, stop), self.change)

    def read(self) -> Floats:
        return np.asarray(self.change(self.vectors.read()))


@dataclass(frozen=True, eq=False)
class ShardVectors:
    """Rows of a collection in shards, which the reading process opens."""

    table: ShardTable
    start: int
    stop: int
    change: Callable[[Floats], Floats] | None = None  # such as a debiaser's map

    @classmethod
    def of(cls, table: ShardTable, change: Callable[[Floats], Floats] | None) -> ShardVectors:
        """All rows of a collection."""
        return cls(table, 0, int(table.starts[-1]), change)

    def __len__(self) -> int:
        return self.stop - self.start

    def part(self, start: int, stop: int) -> ShardVectors:
        return replace(self, start=self.start + start, stop=min(self.start + stop, self.stop))

    def read(self) -> Floats:
        vectors = self.table.vectors(self.start, self.stop)
        return vectors if self.change is None else np.asarray(self.change(vectors))

    def codes(self) -> Ints:
        """The combination of labels of each row."""
        return self.table.codes(self.start, self.stop)


def vectors_of(array: Floats) -> Vectors:
    """The location of an array: a file if it is a whole memory map, otherwise memory."""
    base = array if isinstance(array, np.memmap) else array.base
    if isinstance(base, np.memmap) and base.shape == array.shape and base.filename is not None:
        path = Path(str(base.filename))
        if path.suffix == ".npy" and array.dtype == base.dtype:
            return FileVectors(path.resolve(), 0, len(array))
    return InMemoryVectors(array)
