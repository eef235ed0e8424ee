"""Embeddings on disk: content-addressed, atomic, checksummed and mergeable.

    STORE/SPACE/space.json        the model's name, weights and preprocessing; their hash is SPACE
    STORE/SPACE/SHARD.npy         embeddings, one row per item; their hash, with the items, is SHARD
    STORE/SPACE/SHARD.parquet     the column `item` (SHA-256 of the image file), in the same order;
                                  metadata: the hashes of SHARD.npy and of this file itself
    STORE/SPACE/sources/KEY.parquet   of a tar or Parquet file that a worker embedded as a whole:
                                  ids, items, labels, and where each embedding is

A shard exists once its .parquet file exists, which is written last and atomically: a killed writer
leaves no half-written shard. A changed image has a different hash, changed weights a different
space, so neither gets stale embeddings. A process verifies a shard when it first reads it: damaged
embeddings raise `DamagedError` and are never used.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.errors import DamagedError, InputError
from tiltmeter.models.python import weights_fingerprint
from tiltmeter.results import content_hash, file_hash, write_atomically
from tiltmeter.results.atomic import STALE
from tiltmeter.types import Floats

ABOUT = "space"
SPACE_FILE, SHA256 = f"{ABOUT}.json", "sha256 of this record"  # key of the record's own hash
#: Metadata keys of a shard: the hash of its .npy file, and that of the .parquet file (over BLANK).
CHECKSUM, SEAL = b"vectors", b"file"
BLANK = b"-" * 64
SOURCES = "sources"
UNREAD = b"unread"  # metadata key of the index of a source file

_SOUND: set[tuple[object, ...]] = set()  # shards that this process has verified, with their state


@dataclass(frozen=True, eq=False)
class StoredEmbeddings:
    """The embeddings of one model: one set of weights and one preprocessing."""

    path: Path

    def __post_init__(self) -> None:
        # pyarrow reads the part of a relative path before a colon as a file system
        object.__setattr__(self, "path", self.path.absolute())

    def shards(self) -> list[str]:
        return sorted(path.stem for path in self.path.glob("*.parquet"))

    @cached_property
    def _rows(self) -> dict[str, tuple[str, int]]:
        """Shard and row of each item; the first shard if there are two."""
        rows: dict[str, tuple[str, int]] = {}
        for shard in self.shards():
            for row, item in enumerate(self.items(shard)):
                rows.setdefault(item, (shard, row))
        return rows

    def items(self, shard: str) -> list[str]:
        return self._table(shard)[0]

    def _table(self, shard: str) -> tuple[list[str], str]:
        """The items of a shard, and the hash of its .npy file."""
        path = self.path / f"{shard}.parquet"
        data = _content(path)
        try:
            return _unsealed(data)
        except Exception as error:  # pyarrow may raise anything on damaged bytes
            raise DamagedError(path, f"cannot be read ({_first_line(error)})") from error

    def __contains__(self, item: object) -> bool:
        return item in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def vectors(self, items: Sequence[str]) -> Floats:
        """The embeddings of items, in their order.

        Raises
        ------
        InputError
            If an item is not in the space.
        DamagedError
            If a shard is damaged.
        """
        by_shard: dict[str, tuple[list[int], list[int]]] = {}
        for place, (shard, row) in enumerate(self.places(items)):
            places, rows = by_shard.setdefault(shard, ([], []))
            places.append(place)
            rows.append(row)
        return self.gather(len(items), ((shard, *rows) for shard, rows in by_shard.items()))

    def gather(self, count: int, parts: Iterable[tuple[str, Any, Any]]) -> Floats:
        """`count` embeddings from shards, each given as name, rows to fill, and its own rows."""
        out = np.empty((0, 0), np.float32)
        for shard, places, rows in parts:
            stored = self.array(shard)
            if not out.size:
                out = np.empty((count, stored.shape[1]), np.float32)
            if stored.shape[1] != out.shape[1]:  # NumPy would broadcast a single column
                raise InputError(
                    f"{self.path / shard}.npy has {stored.shape[1]} dimensions, but other "
                    f"shards have {out.shape[1]}: they are of different models"
                )
            out[places] = stored[rows]
        return out

    def places(self, items: Sequence[str]) -> list[tuple[str, int]]:
        """The shard and row of each item."""
        places = [self._rows[item] for item in items if item in self._rows]
        if len(places) < len(items):
            raise InputError(
                f"{len(items) - len(places):,} of {len(items):,} images are not in {self.path}: "
                "run tiltmeter embed first"
            )
        return places

    def shards_of(self, items: Sequence[str]) -> list[str]:
        """The shards that contain the items."""
        return sorted({shard for shard, _ in self.places(items)})

    def array(self, shard: str) -> Floats:
        """The embeddings of a shard as a memory map, verified on the first read of this process."""
        files = [self.path / f"{shard}{suffix}" for suffix in (".npy", ".parquet")]
        try:
            stats = [file.stat() for file in files]
        except OSError:
            return self._check(shard)  # raises with the reason
        state = (
            str(self.path),
            shard,
            *((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats),
        )
        if state in _SOUND:
            return self._mapped(shard)
        vectors = self._check(shard)
        _SOUND.add(state)
        return vectors

    def _check(self, shard: str) -> Floats:
        """The embeddings of a shard, verified against its name; raises `DamagedError`."""
        items, vectors = self.items(shard), self._mapped(shard)
        path = self.path / f"{shard}.npy"
        if vectors.dtype != np.float32 or vectors.ndim != 2 or len(vectors) != len(items):
            raise DamagedError(
                path,
                f"has {vectors.dtype} of shape {vectors.shape}, not {len(items):,} float32 rows",
            )
        if _name(items, vectors) != shard:
            raise DamagedError(path, "or its .parquet was changed: their hash differs")
        return vectors

    def _mapped(self, shard: str) -> Floats:
        path = self.path / f"{shard}.npy"
        try:
            return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
        except FileNotFoundError as error:
            raise DamagedError(path, "is missing") from error
        except OSError as error:  # such as no permission: it may be intact
            raise InputError(f"{path} cannot be read: {error}") from error
        except Exception as error:  # NumPy may raise anything on a damaged header
            raise DamagedError(path, f"cannot be read ({_first_line(error)})") from error

    def discard_damaged(self, items: Iterable[str] = ()) -> dict[str, str]:
        """Remove damaged shards, with a warning, so that their images are embedded again.

        All item tables are verified; embeddings only of shards that contain some of `items`.
        Returns the problems by shard.
        """
        damaged: dict[str, str] = {}
        try:
            rows = self._rows
        except DamagedError:
            damaged = self._discard(self.shards(), self.items)
            rows = self._rows
        used = sorted({rows[item][0] for item in items if item in rows})
        return damaged | self._discard(used, self.array)

    def _discard(self, shards: Sequence[str], check: Callable[[str], object]) -> dict[str, str]:
        damaged: dict[str, str] = {}
        for shard in shards:
            try:
                check(shard)
            except DamagedError as error:
                try:
                    self.remove(shard)
                except OSError:  # a read-only store
                    raise error from None
                damaged[shard] = f"{error.path} {error.reason}"
        for problem in damaged.values():
            warn_of_damage(problem)
        return damaged

    def add(self, items: Sequence[str], vectors: Floats) -> str:
        """Save embeddings as a shard, and return its name, a hash of its content."""
        if len(items) != len(vectors):
            raise InputError(f"{len(vectors)} embeddings for {len(items)} items; expected one each")
        vectors = np.ascontiguousarray(vectors, np.float32)
        shard = _name(items, vectors)
        place = self.path / f"{shard}.npy"
        write_atomically(place, lambda path: _save(path, vectors))
        table = _sealed(items, file_hash(place))
        write_atomically(place.with_suffix(".parquet"), lambda path: path.write_bytes(table))
        self.__dict__.pop("_rows", None)
        return shard

    def source(self, key: str) -> tuple[pa.Table, dict[str, Any]] | None:
        """The images of a source file that was embedded as a whole; None if it was not.

        Columns: `id`, `item`, `shard` and `row` of the embedding, `source_row`, and labels; and
        what could not be read of the file. Raises `DamagedError` if the table was changed.
        """
        path = self._source(key)
        if not path.is_file():
            return None
        data = _content(path)
        try:
            table, metadata = _unseal(data)
            # an index of an early version does not say what could not be read: it is made again
            return (table, json.loads(metadata[UNREAD])) if UNREAD in metadata else None
        except Exception as error:  # pyarrow may raise anything on damaged bytes
            raise DamagedError(path, f"cannot be read ({_first_line(error)})") from error

    def add_source(self, key: str, table: pa.Table, unread: Mapping[str, Any]) -> None:
        """Save what `source` gives; the embeddings are there already."""
        self._source(key).parent.mkdir(exist_ok=True)
        data = _seal(table, {UNREAD: json.dumps(unread).encode()})
        write_atomically(self._source(key), lambda path: path.write_bytes(data))

    def _source(self, key: str) -> Path:
        return self.path / SOURCES / f"{key}.parquet"

    def info(self) -> dict[str, Any]:
        """Model, name, size and dimensions of the space."""
        shards = self.shards()
        first = self.array(shards[0]) if shards else np.empty((0, 0))
        return {
            "model": self.about()["model"],
            "space": self.path.name,
            "images": len(self),
            "dimensions": first.shape[1],
            "bytes": sum(path.stat().st_size for path in self.path.iterdir()),
        }

    def about(self) -> dict[str, Any]:
        """The record of the model; raises `DamagedError` if it was changed."""
        path = self.path / SPACE_FILE
        data = _content(path)
        try:
            about: dict[str, Any] = json.loads(data)
            checksum = about.pop(SHA256, None)
            if checksum is None:  # of an early version: the folder's name is a hash of the rest
                unnamed = {key: value for key, value in about.items() if key != "model"}
                sound = self.path.name in (_folder(unnamed), _folder(about))
            else:
                sound = checksum == content_hash(about)
        except Exception as error:  # invalid JSON, or not an object
            raise DamagedError(path, f"cannot be read ({_first_line(error)})") from error
        if not sound:
            raise DamagedError(path, "was changed: its checksum differs")
        return about

    def problems(self) -> Iterator[tuple[str, str]]:
        """Damaged files of this space: name and problem."""
        for name in (ABOUT, *self.shards()):
            try:
                if name == ABOUT:
                    self.about()
                else:
                    self._verify(name)
            except DamagedError as error:
                yield name, f"{error.path.name} {error.reason}"

    def _verify(self, shard: str) -> None:
        """Verify every byte of a shard; raises `DamagedError`."""
        place, (_, checksum) = self.path / f"{shard}.npy", self._table(shard)
        if place.is_file() and file_hash(place) != checksum:
            raise DamagedError(place, "was changed: its checksum differs")
        self._check(shard)

    def remove(self, name: str) -> None:
        """Remove a shard, whose images will be embedded again, or a damaged `space.json`."""
        for suffix in (
            ".parquet",
            ".npy",
            ".json",
        ):  # the file that makes the shard exist comes first
            (self.path / f"{name}{suffix}").unlink(missing_ok=True)
        self.__dict__.pop("_rows", None)


@dataclass(frozen=True)
class Store:
    """A directory of embedding spaces.

    Parameters
    ----------
    root : Path
        The directory; created on first use.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from tiltmeter import load_model
    >>> space = Store(Path(tempfile.mkdtemp())).space(load_model("testbed:dual"))
    >>> shard = space.add(["hash of an image"], np.ones((1, 4)))
    >>> space.vectors(["hash of an image"]).shape
    (1, 4)
    """

    root: Path

    def space(
        self, model: Any, precision: str = "float32", decoder: str = "pillow"
    ) -> StoredEmbeddings:
        """The space of a model's embeddings, created if missing.

        Parameters
        ----------
        model : object
            A model with an identity: its weights must be known.
        precision, decoder : str
            How embeddings are computed and images decoded; each choice has its own space.

        Raises
        ------
        InputError
            If the model does not say which weights it has.
        """
        about = {
            **identity(model),
            "preprocessing": getattr(model, "preprocessing", {}),
            "precision": precision,
            **({} if decoder == "pillow" else {"decoder": decoder}),
        }
        space = StoredEmbeddings(self.root / _folder(about))
        space.path.mkdir(parents=True, exist_ok=True)
        try:
            space.about()
        except DamagedError as error:
            if error.path.exists():
                warn_of_damage(f"{error.path} {error.reason}")
            about = json.loads(json.dumps(about, sort_keys=True, default=str))
            record = {"model": getattr(model, "name", ""), **about}
            text = json.dumps({**record, SHA256: content_hash(record)}, indent=2) + "\n"
            write_atomically(error.path, lambda to: to.write_text(text, encoding="utf-8"))
        return space

    def spaces(self) -> list[StoredEmbeddings]:
        if not self.root.is_dir():
            raise InputError(f"no store at {self.root}: create one with tiltmeter embed")
        spaces = [
            StoredEmbeddings(path.parent) for path in sorted(self.root.glob(f"*/{SPACE_FILE}"))
        ]
        if not spaces:
            raise InputError(f"{self.root} is not a store: none of its folders has a {SPACE_FILE}")
        return spaces

    def merge(self, other: Store) -> int:
        """Copy the shards of another store, and return the number of new ones.

        Raises
        ------
        InputError
            If the other store is damaged; nothing is copied from a damaged space.
        """
        count = 0
        for source in other.spaces():
            for _, problem in source.problems():
                raise InputError(f"{source.path}: {problem}; nothing was merged from it")
            target = StoredEmbeddings(self.root / source.path.name)
            target.path.mkdir(parents=True, exist_ok=True)
            damaged = {name for name, _ in target.problems()}
            intact = set(target.shards()) - damaged
            for shard in source.shards():
                if shard not in intact:
                    for suffix in (
                        ".npy",
                        ".parquet",
                    ):  # the file that makes the shard exist comes last
                        _copy(source.path / f"{shard}{suffix}", target.path / f"{shard}{suffix}")
                    count += 1
            for path in sorted((source.path / SOURCES).glob("*.parquet")):
                if not (target.path / SOURCES / path.name).exists():
                    (target.path / SOURCES).mkdir(exist_ok=True)
                    _copy(path, target.path / SOURCES / path.name)
            if ABOUT in damaged:
                _copy(source.path / SPACE_FILE, target.path / SPACE_FILE)
        return count

    def gc(self, *, older: float = STALE) -> list[Path]:
        """Remove partial files of killed writers, and shards that others cover.

        Partial files must be older than `older` seconds: younger ones may belong to a running
        writer. Returns the removed files.
        """
        removed, now = [], time.time()
        for space in self.spaces():
            covered: set[str] = set()
            shards, damaged = space.shards(), {shard for shard, _ in space.problems()}
            sound = [
                shard for shard in shards if shard not in damaged
            ]  # only intact shards can cover others
            for shard in sorted(sound, key=lambda name: (-len(space.items(name)), name)):
                items = set(space.items(shard))
                if items <= covered:
                    removed += [space.path / f"{shard}.parquet", space.path / f"{shard}.npy"]
                covered |= items
            complete = set(shards)
            for path in sorted(space.path.iterdir()):
                orphan = path.suffix == ".npy" and path.stem not in complete
                if orphan or path.name.endswith(".part"):
                    removed += [path] * (now - path.stat().st_mtime >= older)
        for path in removed:
            path.unlink(missing_ok=True)
        return removed


def identity(model: Any) -> dict[str, Any]:
    """The identity of a model: what determines its embeddings of images."""
    known = (
        getattr(model, "image_identity", None)
        or getattr(model, "identity", None)
        or {"weights": weights_fingerprint(model)}
    )
    if not known["weights"]:
        raise InputError(
            f"{getattr(model, 'name', type(model).__name__)} does not say which weights it has, "
            "so its embeddings cannot be stored: give it an attribute `fingerprint` (a string "
            "that changes with its weights)"
        )
    return dict(known)


def warn_of_damage(problem: str) -> None:
    """Warn that a damaged file is removed and made again."""
    warnings.warn(f"{problem}; it is removed and made again", stacklevel=2)


def _name(items: Sequence[str], vectors: Floats) -> str:
    return content_hash([*items, content_hash(vectors)])[:24]


def _folder(about: dict[str, Any]) -> str:
    return content_hash(about)[:16]


def _sealed(items: Sequence[str], checksum: str) -> bytes:
    """A table of items as a Parquet file that contains its own hash."""
    table = pa.table({"item": pa.array(items, pa.string())})
    return _seal(table, {CHECKSUM: checksum.encode()})


def _unsealed(data: bytes) -> tuple[list[str], str]:
    """Items and checksum of a sealed file, or of one of an early version without its own hash.

    Raises `ValueError`, or anything that pyarrow raises, if it is damaged.
    """
    table, metadata = _unseal(data)
    checksum = metadata.pop(CHECKSUM)
    if metadata:
        raise ValueError(f"unknown metadata {sorted(metadata)}")
    return table["item"].to_pylist(), checksum.decode()


def _seal(table: pa.Table, metadata: Mapping[bytes, bytes]) -> bytes:
    """A table as a Parquet file that contains its own hash."""
    file = io.BytesIO()
    with pq.ParquetWriter(file, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({**metadata, SEAL: BLANK})
    head, _, tail = file.getvalue().rpartition(BLANK)
    return head + hashlib.sha256(file.getvalue()).hexdigest().encode() + tail


def _unseal(data: bytes) -> tuple[pa.Table, dict[bytes, bytes]]:
    """The table and metadata of a sealed file; raises if it is damaged."""
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    metadata = dict(table.schema.metadata or {})
    seal = metadata.pop(SEAL, None)
    if seal is not None:
        head, _, tail = data.rpartition(seal)
        if hashlib.sha256(head + BLANK + tail).hexdigest().encode() != seal:
            raise ValueError("its checksum differs")
    return table, metadata


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
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(vectors))
    with path.open("wb") as file:  # not by np.save, which says of a full disk only the bytes
        file.write(header.getvalue())
        file.write(vectors.data)


def _copy(source: Path, target: Path) -> None:
    write_atomically(target, lambda path: path.write_bytes(source.read_bytes()))
