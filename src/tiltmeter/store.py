"""Vectors on disk: content-addressed, atomic, checksummed, mergeable; NumPy and pyarrow read them.

    STORE/SPACE/space.json        the model's name, weights, preprocessing: their hash names SPACE
    STORE/SPACE/SHARD.npy         vectors, a row an item
    STORE/SPACE/SHARD.parquet     the column `item` (SHA-256 of the picture's file), row for row

A shard counts from the moment its .parquet is there; that comes last and in one step, so a writer
that is killed leaves nothing half written. A changed picture has another hash, changed weights
another space: neither is ever served from what was stored before.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.errors import InputError
from tiltmeter.models.python import learned
from tiltmeter.results import content_hash, file_hash
from tiltmeter.types import Floats

SPACE_FILE = "space.json"
CHECKSUM = b"vectors"  # the key in a shard's metadata
STALE = 3600.0  # seconds after which a half-written file has no writer any more


@dataclass(frozen=True, eq=False)
class Space:
    """The vectors of one model: one set of weights, one way to make pixels."""

    path: Path

    def __post_init__(self) -> None:
        # in a relative path, pyarrow takes what is before a colon for the kind of a file system
        object.__setattr__(self, "path", self.path.absolute())

    def shards(self) -> list[str]:
        return sorted(path.stem for path in self.path.glob("*.parquet"))

    @cached_property
    def _rows(self) -> dict[str, tuple[str, int]]:
        """Where each item is: shard and row. An item in two shards is read from the first."""
        found: dict[str, tuple[str, int]] = {}
        for shard in self.shards():
            for row, item in enumerate(self.items(shard)):
                found.setdefault(item, (shard, row))
        return found

    def items(self, shard: str) -> list[str]:
        path = self.path / f"{shard}.parquet"
        try:
            return pq.read_table(path, columns=["item"])["item"].to_pylist()  # type: ignore[no-any-return]
        except (OSError, pa.ArrowException, KeyError) as error:
            raise InputError(
                f"{path} cannot be read ({error}): tiltmeter store verify names all such files"
            ) from error

    def __contains__(self, item: object) -> bool:
        return item in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def vectors(self, items: Sequence[str]) -> Floats:
        """The vectors of items, in their order; read by memory map."""
        missing = [item for item in items if item not in self._rows]
        if missing:
            raise InputError(
                f"{len(missing):,} of {len(items):,} pictures are not in {self.path}: embed them"
            )
        by_shard: dict[str, list[int]] = {}
        for place, item in enumerate(items):
            by_shard.setdefault(self._rows[item][0], []).append(place)
        out: Floats | None = None
        for shard, places in by_shard.items():
            stored = self._array(shard)
            if out is None:
                out = np.empty((len(items), stored.shape[1]), stored.dtype)
            out[places] = stored[[self._rows[items[place]][1] for place in places]]
        return np.empty((0, 0), np.float32) if out is None else out

    def places(self, items: Sequence[str]) -> list[tuple[str, int]]:
        """The shard and row of each item."""
        return [self._rows[item] for item in items]

    def shards_of(self, items: Sequence[str]) -> list[str]:
        """The shards that hold some items."""
        return sorted({self._rows[item][0] for item in items})

    def _array(self, shard: str) -> Floats:
        path = self.path / f"{shard}.npy"
        try:
            return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path} is damaged ({error}): tiltmeter store verify --remove removes such "
                "shards, and their pictures are embedded again"
            ) from error

    def add(self, items: Sequence[str], vectors: Floats) -> str:
        """Keeps the vectors of some items as a shard, whose name is its content."""
        if len(items) != len(vectors):
            raise InputError(f"{len(vectors)} vectors for {len(items)} items")
        vectors = np.ascontiguousarray(vectors, np.float32)
        shard = content_hash([*items, content_hash(vectors)])[:24]
        place = self.path / f"{shard}.npy"
        _atomically(place, lambda path: _save(path, vectors))
        table = pa.table({"item": pa.array(items, pa.string())}).replace_schema_metadata(
            {CHECKSUM: file_hash(place).encode()}
        )
        _atomically(place.with_suffix(".parquet"), lambda path: pq.write_table(table, path))
        self.__dict__.pop("_rows", None)
        return shard

    def info(self) -> dict[str, Any]:
        """Whose vectors these are, and how many."""
        shards = self.shards()
        first = self._array(shards[0]) if shards else np.empty((0, 0))
        about = json.loads((self.path / SPACE_FILE).read_text(encoding="utf-8"))
        return {
            "model": about["model"],
            "space": self.path.name,
            "pictures": len(self),
            "dimensions": first.shape[1],
            "bytes": sum(path.stat().st_size for path in self.path.iterdir()),
        }

    def problems(self) -> Iterator[tuple[str, str]]:
        """Whatever is wrong with the files of this space: shards, each with what it is."""
        for shard in self.shards():
            place = self.path / f"{shard}.npy"
            try:
                table = pq.read_table(self.path / f"{shard}.parquet")
            except (OSError, pa.ArrowException) as error:
                yield shard, f"{shard}.parquet cannot be read: {error}"
                continue
            if not place.is_file():
                yield shard, f"{shard}.npy is missing"
            elif file_hash(place).encode() != (table.schema.metadata or {}).get(CHECKSUM):
                yield shard, f"{shard}.npy is not what was written: its checksum differs"

    def remove(self, shard: str) -> None:
        """Forgets a shard; its pictures will be embedded again."""
        for suffix in (".parquet", ".npy"):  # in the order in which they stop to count
            (self.path / f"{shard}{suffix}").unlink(missing_ok=True)
        self.__dict__.pop("_rows", None)


@dataclass(frozen=True)
class Store:
    """A directory of spaces."""

    root: Path

    def space(self, model: Any, precision: str = "float32", decoder: str = "pillow") -> Space:
        """The space of a model's vectors, computed in some precision from pictures that were
        decoded in some way; made if it is not there.
        """
        about = {
            **identity(model),
            "preprocessing": getattr(model, "preprocessing", {}),
            "precision": precision,
            **({} if decoder == "pillow" else {"decoder": decoder}),
        }
        text = json.dumps(about, sort_keys=True, default=str)
        path = self.root / hashlib.sha256(text.encode()).hexdigest()[:16]
        path.mkdir(parents=True, exist_ok=True)
        if not (path / SPACE_FILE).is_file():
            told = (
                json.dumps({"model": getattr(model, "name", ""), **json.loads(text)}, indent=2)
                + "\n"
            )
            _atomically(path / SPACE_FILE, lambda to: to.write_text(told))
        return Space(path)

    def spaces(self) -> list[Space]:
        if not self.root.is_dir():
            raise InputError(f"no store at {self.root}: tiltmeter embed makes one")
        found = [Space(path.parent) for path in sorted(self.root.glob(f"*/{SPACE_FILE}"))]
        if not found:
            raise InputError(f"{self.root} is no store: no {SPACE_FILE} is in any folder of it")
        return found

    def merge(self, other: Store) -> int:
        """Takes over the shards of another store; the number of those that were new."""
        count = 0
        for theirs in other.spaces():
            for _, problem in theirs.problems():
                raise InputError(f"{theirs.path}: {problem}; nothing was merged from it")
            mine = Space(self.root / theirs.path.name)
            mine.path.mkdir(parents=True, exist_ok=True)
            had = set(mine.shards()) - {shard for shard, _ in mine.problems()}
            for shard in theirs.shards():
                if shard not in had:
                    for suffix in (".npy", ".parquet"):  # in the order in which they count
                        _copy(theirs.path / f"{shard}{suffix}", mine.path / f"{shard}{suffix}")
                    count += 1
            if not (mine.path / SPACE_FILE).is_file():
                _copy(theirs.path / SPACE_FILE, mine.path / SPACE_FILE)
        return count

    def gc(self, *, older: float = STALE) -> list[Path]:
        """Removes what no reader uses: leftovers of killed writers, shards that others cover.

        A leftover is one that nobody has touched for `older` seconds: a younger one may belong to a
        writer at work.
        """
        removed, now = [], time.time()
        for space in self.spaces():
            kept: set[str] = set()
            shards, damaged = space.shards(), {shard for shard, _ in space.problems()}
            sound = [shard for shard in shards if shard not in damaged]  # only they can cover
            for shard in sorted(sound, key=lambda name: (-len(space.items(name)), name)):
                items = set(space.items(shard))
                if items <= kept:
                    removed += [space.path / f"{shard}.parquet", space.path / f"{shard}.npy"]
                kept |= items
            whole = set(shards)
            for path in sorted(space.path.iterdir()):
                orphan = path.suffix == ".npy" and path.stem not in whole
                if orphan or path.name.endswith(".part"):
                    removed += [path] * (now - path.stat().st_mtime >= older)
        for path in removed:
            path.unlink(missing_ok=True)
        return removed


def identity(model: Any) -> dict[str, Any]:
    """What tells a model from all others that would give other vectors."""
    known = getattr(model, "identity", None) or {"weights": learned(model)}
    if not known["weights"]:
        raise InputError(
            f"{getattr(model, 'name', type(model).__name__)} does not tell which weights it has, "
            "so nothing can be stored for it: give it an attribute `fingerprint` (a string that "
            "changes when its weights do)"
        )
    return dict(known)


def _save(path: Path, vectors: Floats) -> None:
    with path.open("wb") as file:
        np.save(file, vectors)


def _copy(source: Path, target: Path) -> None:
    _atomically(target, lambda path: path.write_bytes(source.read_bytes()))


def _atomically(path: Path, write: Callable[[Path], object]) -> None:
    """All of the file or nothing, even if the machine goes down; the last writer of a name wins."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        write(part)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
