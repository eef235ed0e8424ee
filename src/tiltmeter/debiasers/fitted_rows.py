"""The rows that a debiaser was fitted on, so that it is not evaluated on them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.datasets.shards import ShardReader, ShardRows, open_shard
from tiltmeter.io.tables import Columns
from tiltmeter.results import content_hash

FILE = "fitted.parquet"
KEYED = 1 << 14  # rows of a shard that are in memory at once


@dataclass(frozen=True, eq=False)
class FittedRows:
    """Rows of a dataset: their ids, and a key of what each one shows.

    Two datasets may use one id for different images, or two ids for the same image: so rows are
    compared by their keys, hashes of their contents.

    Parameters
    ----------
    ids, keys
        Id and key of each row.
    name
        Name of the dataset.
    """

    ids: tuple[str, ...]
    keys: tuple[str, ...]
    name: str = ""

    @classmethod
    def of(cls, data: Any) -> FittedRows:
        """Return the rows of faces or captions."""
        return cls(tuple(data.ids), tuple(row_keys(data)), str(data.name))

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def hash(self) -> str:
        """Hash of the ids, in order."""
        return content_hash(list(self.ids))

    def among(self, data: Any) -> list[int]:
        """Return the rows of `data` that are among these."""
        known = frozenset(self.keys)
        return [row for row, key in enumerate(row_keys(data)) if key in known]

    def write(self, directory: Path) -> dict[str, Any]:
        """Write ids and keys, and return the rest, which is saved as JSON."""
        pq.write_table(pa.table({"id": list(self.ids), "key": list(self.keys)}), directory / FILE)
        return {"data": self.name, "count": len(self), "ids": self.hash}

    @classmethod
    def read(cls, directory: Path, meta: dict[str, Any]) -> FittedRows:
        """Read what `write` wrote and returned."""
        table = pq.read_table(directory / FILE)
        return cls(
            tuple(table["id"].to_pylist()), tuple(table["key"].to_pylist()), str(meta["data"])
        )


@dataclass(frozen=True, eq=False)
class FittedTask:
    """Sent to workers: counts the rows of a shard that are among some keys."""

    reader: ShardReader
    columns: Columns
    keys: frozenset[str]

    def __call__(self) -> Callable[[str], int]:
        return self.work

    def work(self, shard: str) -> int:
        """Count the rows of a shard that are known, all if the shard itself is."""
        keys = shard_keys(open_shard(self.reader, shard, self.columns))
        return len(keys) if shard_key(keys) in self.keys else sum(key in self.keys for key in keys)


def shard_keys(rows: ShardRows) -> list[str]:
    """The keys of all rows of a shard, as `row_keys` gives them."""
    if rows.items is not None:
        return [item[:32] for item in rows.items()]
    keys: list[str] = []
    for start in range(0, len(rows.vectors), KEYED):
        block = np.asarray(rows.vectors[start : start + KEYED], np.float32)
        keys += [_key(row) for row in block]
    return keys


def shard_key(keys: Sequence[str]) -> str:
    """One key for a whole shard."""
    return f"shard {content_hash(list(keys))[:32]}"


def row_keys(data: Any) -> Sequence[str]:
    """Return a hash of what each row shows: its file, pixels or embedding, or else its id."""
    images, vectors = getattr(data, "images", None), getattr(data, "vectors", None)
    count = len(data.ids)
    if hasattr(images, "hash"):  # image files
        return [_file_key(images, row) for row in range(count)]
    if isinstance(images, np.ndarray):
        return [_key(images[row]) for row in range(count)]
    if images is not None and hasattr(images, "__dict__"):  # scenes: columns of numbers
        columns = [np.asarray(x).reshape(count, -1) for x in vars(images).values()]
        table = np.concatenate(columns, axis=1).astype(np.int64)
        return [_key(table[row]) for row in range(count)]
    if vectors is not None:
        return [_key(np.asarray(vectors[row], np.float32)) for row in range(count)]
    return [f"{data.name}/{row_id}" for row_id in data.ids]


def _key(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:32]


def _file_key(images: Any, row: int) -> str:
    try:
        return str(images.hash(row))[:32]
    except OSError:  # an unreadable file was not fitted on
        return f"unreadable/{row}"
