"""Where the vectors of many images lie, so that a worker can read its share of them itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.store import EmbeddingSpace
from tiltmeter.types import Floats, Ints


class Vectors(Protocol):
    """Vectors of images in a row."""

    def __len__(self) -> int: ...
    def part(self, start: int, stop: int) -> Vectors: ...
    def read(self) -> Floats: ...


@dataclass(frozen=True, eq=False)
class InMemoryVectors:
    """Vectors in memory: they travel."""

    array: Floats

    def __len__(self) -> int:
        return len(self.array)

    def part(self, start: int, stop: int) -> InMemoryVectors:
        return InMemoryVectors(np.ascontiguousarray(self.array[start:stop]))

    def read(self) -> Floats:
        return self.array


@dataclass(frozen=True)
class FileVectors:
    """Rows of one .npy file: only its name travels."""

    path: Path
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def part(self, start: int, stop: int) -> FileVectors:
        return FileVectors(self.path, self.start + start, min(self.start + stop, self.stop))

    def read(self) -> Floats:
        return opened(self.path, self.stop)[self.start : self.stop]


@dataclass(frozen=True, eq=False)
class StoreVectors:
    """Rows of a store's shards, in the order of the images."""

    space: Path
    shards: tuple[str, ...]
    shard: Ints  # of each image, which of `shards`
    row: Ints  # ... and the row there

    @classmethod
    def of(cls, space: EmbeddingSpace, items: Sequence[str]) -> StoreVectors:
        """The vectors of some items."""
        places = space.places(items)
        names = sorted({shard for shard, _ in places})
        number = {name: at for at, name in enumerate(names)}
        shard = np.array([number[name] for name, _ in places], np.int32)
        row = np.array([row for _, row in places], np.int32)
        return cls(space.path, tuple(names), shard, row)

    def __len__(self) -> int:
        return len(self.shard)

    def part(self, start: int, stop: int) -> StoreVectors:
        used, shard = np.unique(self.shard[start:stop], return_inverse=True)
        names = tuple(self.shards[one] for one in used)
        return StoreVectors(self.space, names, shard.astype(np.int32), self.row[start:stop])

    def read(self) -> Floats:
        if not self.shards:
            raise InputError("there are no vectors to read")
        places = [np.flatnonzero(self.shard == at) for at in range(len(self.shards))]
        parts = ((name, at, self.row[at]) for name, at in zip(self.shards, places, strict=True))
        return EmbeddingSpace(self.space).gather(len(self), parts)


@dataclass(frozen=True, eq=False)
class SelectedVectors:
    """Some rows of other vectors, in rising order."""

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
    """Other vectors as a function changes them, wherever they are read: a debiaser's map."""

    vectors: Vectors
    change: Callable[[Floats], Floats]

    def __len__(self) -> int:
        return len(self.vectors)

    def part(self, start: int, stop: int) -> TransformedVectors:
        return TransformedVectors(self.vectors.part(start, stop), self.change)

    def read(self) -> Floats:
        return np.asarray(self.change(self.vectors.read()))


def vectors_of(array: Floats) -> Vectors:
    """Where an array lies: in a file, if it is one that was mapped whole, or in memory."""
    base = array if isinstance(array, np.memmap) else array.base
    if isinstance(base, np.memmap) and base.shape == array.shape and base.filename is not None:
        path = Path(str(base.filename))
        if path.suffix == ".npy" and array.dtype == base.dtype:
            return FileVectors(path.resolve(), 0, len(array))
    return InMemoryVectors(array)


def opened(path: Path, rows: int) -> Floats:
    """A .npy file, mapped; InputError where it cannot be reached or ends too soon."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if len(found) < rows:
        raise InputError(f"{path} has {len(found):,} rows, but {rows:,} were expected")
    return np.asanyarray(found)


@dataclass(frozen=True, eq=False)
class VectorPart:
    """The share of one worker: vectors, the groups of those images, the first one's number."""

    vectors: Vectors
    codes: Ints
    first: int = field(default=0)


def parts_of(vectors: Vectors, codes: Ints, size: int) -> list[VectorPart]:
    """Parts of `size` images each."""
    return [
        VectorPart(vectors.part(at, at + size), codes[at : at + size], at)
        for at in range(0, len(vectors), size)
    ]


def sample(vectors: Vectors, count: int) -> tuple[Ints, Floats]:
    """Some of the vectors, evenly from all, and which they are; always the same.

    Those that cannot be read are passed over: whoever measures them will say so.
    """
    total, stretch = len(vectors), 64  # of images in a row: far fewer places to go to
    starts = np.arange(0, total, stretch)
    if total > count:
        starts = np.linspace(0, total - stretch, count // stretch).astype(int)
    rows, found, reason = [], [], None
    for at in starts.tolist():
        try:
            found.append(vectors.part(at, at + stretch).read())
        except (InputError, OSError) as error:
            reason = error
        else:
            rows.append(np.arange(at, at + len(found[-1])))
    if not found:
        raise reason or InputError("there are no vectors to read")
    return np.concatenate(rows), np.concatenate(found)
