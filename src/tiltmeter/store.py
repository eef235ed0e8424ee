"""Vectors on disk: content-addressed, atomic, checksummed, mergeable; NumPy and pyarrow read them.

    STORE/SPACE/space.json        the model's name, weights, preprocessing: their hash names SPACE
    STORE/SPACE/SHARD.npy         vectors, one row per item; the hash of vectors and items is SHARD
    STORE/SPACE/SHARD.parquet     the column `item` (SHA-256 of the image file), row for row;
                                  metadata: the hashes of SHARD.npy and of this file itself

A shard counts from the moment its .parquet is there; that comes last and in one step, so a writer
that is killed leaves nothing half written. A changed image has another hash, changed weights
another space: neither is ever served from what was stored before. A process recomputes a shard's
name when it first reads it: damaged embeddings raise DamagedError, they are never used.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.errors import DamagedError, InputError
from tiltmeter.models.python import learned
from tiltmeter.results import content_hash, file_hash
from tiltmeter.types import Floats

ABOUT = "space"
SPACE_FILE, SHA256 = f"{ABOUT}.json", "sha256 of this record"  # the key there of its own hash
#: Keys in a shard's metadata: the hashes of its .npy file and, in place of BLANK, of the .parquet.
CHECKSUM, SEAL = b"vectors", b"file"
BLANK = b"-" * 64
STALE = 3600.0  # seconds after which a half-written file has no writer any more

_SOUND: set[tuple[object, ...]] = set()  # shards that this process has checked, as they were then


@dataclass(frozen=True, eq=False)
class EmbeddingSpace:
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
        return self._table(shard)[0]

    def _table(self, shard: str) -> tuple[list[str], str]:
        """The items of a shard, and the hash of its .npy file."""
        path = self.path / f"{shard}.parquet"
        data = _content(path)
        try:
            return _unsealed(data)
        except Exception as error:  # damaged bytes make pyarrow raise anything
            raise DamagedError(path, f"cannot be read ({_first_line(error)})") from error

    def __contains__(self, item: object) -> bool:
        return item in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def vectors(self, items: Sequence[str]) -> Floats:
        """The vectors of items, in their order; read by memory map."""
        by_shard: dict[str, tuple[list[int], list[int]]] = {}
        for place, (shard, row) in enumerate(self.places(items)):
            places, rows = by_shard.setdefault(shard, ([], []))
            places.append(place)
            rows.append(row)
        return self.gather(len(items), ((shard, *at) for shard, at in by_shard.items()))

    def gather(self, count: int, parts: Iterable[tuple[str, Any, Any]]) -> Floats:
        """`count` vectors from several shards: of each its name, the places to fill, its rows."""
        out = np.empty((0, 0), np.float32)
        for shard, places, rows in parts:
            stored = self.array(shard)
            if not out.size:
                out = np.empty((count, stored.shape[1]), np.float32)
            if stored.shape[1] != out.shape[1]:  # NumPy would repeat a single column
                raise InputError(
                    f"{self.path / shard}.npy has {stored.shape[1]} dimensions, other shards "
                    f"{out.shape[1]}: they are not of one model"
                )
            out[places] = stored[rows]
        return out

    def places(self, items: Sequence[str]) -> list[tuple[str, int]]:
        """The shard and row of each item."""
        found = [self._rows[item] for item in items if item in self._rows]
        if len(found) < len(items):
            raise InputError(
                f"{len(items) - len(found):,} of {len(items):,} pictures are not in {self.path}: "
                "embed them"
            )
        return found

    def shards_of(self, items: Sequence[str]) -> list[str]:
        """The shards that hold some items."""
        return sorted({shard for shard, _ in self.places(items)})

    def array(self, shard: str) -> Floats:
        """The vectors of a shard, by memory map; checked when this process first reads them."""
        files = [self.path / f"{shard}{suffix}" for suffix in (".npy", ".parquet")]
        try:
            stats = [file.stat() for file in files]
        except OSError:
            return self._check(shard)  # which says what is wrong
        state = (
            str(self.path),
            shard,
            *((one.st_ino, one.st_mtime_ns, one.st_size) for one in stats),
        )
        if state in _SOUND:
            return self._mapped(shard)
        found = self._check(shard)
        _SOUND.add(state)
        return found

    def _check(self, shard: str) -> Floats:
        """The vectors of a shard that has the name of its content; DamagedError if it has not."""
        items, found = self.items(shard), self._mapped(shard)
        path = self.path / f"{shard}.npy"
        if found.dtype != np.float32 or found.ndim != 2 or len(found) != len(items):
            raise DamagedError(
                path,
                f"holds {found.dtype} of shape {found.shape}, not float32 of {len(items):,} rows",
            )
        if _name(items, found) != shard:
            raise DamagedError(path, "or its .parquet is not what was written: their hash differs")
        return found

    def _mapped(self, shard: str) -> Floats:
        path = self.path / f"{shard}.npy"
        try:
            return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
        except FileNotFoundError as error:
            raise DamagedError(path, "is missing") from error
        except OSError as error:  # no permission, too many open files: it may be sound
            raise InputError(f"{path} cannot be read: {error}") from error
        except Exception as error:  # a damaged header makes NumPy raise anything
            raise DamagedError(path, f"cannot be read ({_first_line(error)})") from error

    def discard_damaged(self, items: Iterable[str] = ()) -> dict[str, str]:
        """Removes damaged shards, so that their images are embedded again; says so in a warning.

        All item tables are checked, vectors where the shard contains some of `items`. Returns what
        was wrong, by shard.
        """
        lost: dict[str, str] = {}
        try:
            known = self._rows
        except DamagedError:
            lost = self._discard(self.shards(), self.items)
            known = self._rows
        used = sorted({known[item][0] for item in items if item in known})
        return lost | self._discard(used, self.array)

    def _discard(self, shards: Sequence[str], check: Callable[[str], object]) -> dict[str, str]:
        lost: dict[str, str] = {}
        for shard in shards:
            try:
                check(shard)
            except DamagedError as error:
                try:
                    self.remove(shard)
                except OSError:  # a store that may only be read
                    raise error from None
                lost[shard] = f"{error.path} {error.reason}"
        for what in lost.values():
            warn_of_damage(what)
        return lost

    def add(self, items: Sequence[str], vectors: Floats) -> str:
        """Keeps the vectors of some items as a shard, whose name is its content."""
        if len(items) != len(vectors):
            raise InputError(f"{len(vectors)} vectors for {len(items)} items")
        vectors = np.ascontiguousarray(vectors, np.float32)
        shard = _name(items, vectors)
        place = self.path / f"{shard}.npy"
        _atomically(place, lambda path: _save(path, vectors))
        table = _sealed(items, file_hash(place))
        _atomically(place.with_suffix(".parquet"), lambda path: path.write_bytes(table))
        self.__dict__.pop("_rows", None)
        return shard

    def info(self) -> dict[str, Any]:
        """Whose vectors these are, and how many."""
        shards = self.shards()
        first = self.array(shards[0]) if shards else np.empty((0, 0))
        return {
            "model": self.about()["model"],
            "space": self.path.name,
            "pictures": len(self),
            "dimensions": first.shape[1],
            "bytes": sum(path.stat().st_size for path in self.path.iterdir()),
        }

    def about(self) -> dict[str, Any]:
        """Whose vectors these are; DamagedError where that is not what was written."""
        path = self.path / SPACE_FILE
        data = _content(path)
        try:
            about: dict[str, Any] = json.loads(data)
            told = about.pop(SHA256, None)
            if told is None:  # of an older version: all but the model's name is in the folder's
                rest = {key: value for key, value in about.items() if key != "model"}
                sound = self.path.name in (_folder(rest), _folder(about))
            else:
                sound = told == content_hash(about)
        except Exception as error:  # a parser's, or of JSON that is no object
            raise DamagedError(path, f"cannot be read ({_first_line(error)})") from error
        if not sound:
            raise DamagedError(path, "is not what was written: its checksum differs")
        return about

    def problems(self) -> Iterator[tuple[str, str]]:
        """Whatever is wrong with the files of this space: their name, and what it is."""
        for name in (ABOUT, *self.shards()):
            try:
                if name == ABOUT:
                    self.about()
                else:
                    self._verify(name)
            except DamagedError as error:
                yield name, f"{error.path.name} {error.reason}"

    def _verify(self, shard: str) -> None:
        """Every byte of a shard, also those that no reader looks at; DamagedError."""
        place, (_, checksum) = self.path / f"{shard}.npy", self._table(shard)
        if place.is_file() and file_hash(place) != checksum:
            raise DamagedError(place, "is not what was written: its checksum differs")
        self._check(shard)

    def remove(self, name: str) -> None:
        """Forgets a shard, whose images will be embedded again; or a damaged `space.json`."""
        for suffix in (".parquet", ".npy", ".json"):  # in the order in which they stop to count
            (self.path / f"{name}{suffix}").unlink(missing_ok=True)
        self.__dict__.pop("_rows", None)


@dataclass(frozen=True)
class Store:
    """A directory of spaces."""

    root: Path

    def space(
        self, model: Any, precision: str = "float32", decoder: str = "pillow"
    ) -> EmbeddingSpace:
        """The space of a model's vectors, computed in some precision from images that were
        decoded in some way; made if it is not there.
        """
        about = {
            **identity(model),
            "preprocessing": getattr(model, "preprocessing", {}),
            "precision": precision,
            **({} if decoder == "pillow" else {"decoder": decoder}),
        }
        space = EmbeddingSpace(self.root / _folder(about))
        space.path.mkdir(parents=True, exist_ok=True)
        try:
            space.about()
        except DamagedError as error:
            if error.path.exists():
                warn_of_damage(f"{error.path} {error.reason}")
            about = json.loads(json.dumps(about, sort_keys=True, default=str))
            told = {"model": getattr(model, "name", ""), **about}
            text = json.dumps({**told, SHA256: content_hash(told)}, indent=2) + "\n"
            _atomically(error.path, lambda to: to.write_text(text, encoding="utf-8"))
        return space

    def spaces(self) -> list[EmbeddingSpace]:
        if not self.root.is_dir():
            raise InputError(f"no store at {self.root}: tiltmeter embed makes one")
        found = [EmbeddingSpace(path.parent) for path in sorted(self.root.glob(f"*/{SPACE_FILE}"))]
        if not found:
            raise InputError(f"{self.root} is no store: no {SPACE_FILE} is in any folder of it")
        return found

    def merge(self, other: Store) -> int:
        """Takes over the shards of another store; the number of those that were new."""
        count = 0
        for theirs in other.spaces():
            for _, problem in theirs.problems():
                raise InputError(f"{theirs.path}: {problem}; nothing was merged from it")
            mine = EmbeddingSpace(self.root / theirs.path.name)
            mine.path.mkdir(parents=True, exist_ok=True)
            lacking = {name for name, _ in mine.problems()}
            had = set(mine.shards()) - lacking
            for shard in theirs.shards():
                if shard not in had:
                    for suffix in (".npy", ".parquet"):  # in the order in which they count
                        _copy(theirs.path / f"{shard}{suffix}", mine.path / f"{shard}{suffix}")
                    count += 1
            if ABOUT in lacking:
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


def warn_of_damage(what: str) -> None:
    """Says that a file was damaged and is made again."""
    warnings.warn(f"{what}; it is removed and made again", stacklevel=2)


def _name(items: Sequence[str], vectors: Floats) -> str:
    return content_hash([*items, content_hash(vectors)])[:24]


def _folder(about: dict[str, Any]) -> str:
    return content_hash(about)[:16]


def _sealed(items: Sequence[str], checksum: str) -> bytes:
    """A table of items as a Parquet file that contains its own hash."""
    table = pa.table({"item": pa.array(items, pa.string())})
    file = io.BytesIO()
    with pq.ParquetWriter(file, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({CHECKSUM: checksum.encode(), SEAL: BLANK})
    head, _, tail = file.getvalue().rpartition(BLANK)
    return head + hashlib.sha256(file.getvalue()).hexdigest().encode() + tail


def _unsealed(data: bytes) -> tuple[list[str], str]:
    """Items and checksum from such a file, or from one of an older version, without its own hash;
    ValueError, or whatever pyarrow raises, where it is damaged."""
    table = pq.ParquetFile(pa.BufferReader(data)).read()
    told = dict(table.schema.metadata or {})
    checksum, seal = told.pop(CHECKSUM), told.pop(SEAL, None)
    if told:
        raise ValueError(f"unknown metadata {sorted(told)}")
    if seal is not None:
        head, _, tail = data.rpartition(seal)
        if hashlib.sha256(head + BLANK + tail).hexdigest().encode() != seal:
            raise ValueError("its checksum differs")
    return table["item"].to_pylist(), checksum.decode()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DamagedError(path, "is missing") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


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
