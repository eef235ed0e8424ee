"""Collections in shards: the driver knows names, sizes and counts; workers open the shards.

A shard is a file (or a pair of files) with some of the rows: embeddings or images, their ids and
labels. None of these leaves the worker that reads it, except what a summary needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.io.image_files import GeneratedImages
from tiltmeter.io.tables import Columns
from tiltmeter.results import content_hash
from tiltmeter.types import Faces, Floats, Groups, GroupSizes, Ints, rows_stay_in_shards

OPEN_SHARDS = 4  # kept open by a worker: consecutive rows are in one or two of them


@dataclass(frozen=True, eq=False)
class ShardRows:
    """The rows of one shard, in a worker."""

    groups: Mapping[str, Groups]  # by label column, with the names that occur in this shard
    ids: Callable[[Ints], list[str]]  # of some of its rows
    vectors: Any = None  # rows x dimensions, sliced on reading; None: images to embed
    images: GeneratedImages | None = None
    incomplete: bool = False  # the file ends early: these are the rows before
    #: Hashes of the image files; None: rows are known by their embeddings.
    items: Callable[[], list[str]] | None = None


class ShardReader(Protocol):
    """Opens a shard by its name; must be hashable, and small when it is sent to a worker."""

    def open(self, name: str, columns: Columns) -> ShardRows: ...

    def files(self, name: str) -> list[str]: ...

    def __hash__(self) -> int: ...


class ShardSummary(NamedTuple):
    """What the driver learns of one shard."""

    rows: int
    cells: dict[tuple[str, ...], int]  # images by combination of labels
    key: str  # hash of its labels
    incomplete: bool = False
    new: int = 0  # images embedded now
    unreadable: tuple[str, ...] = ()  # the first of them, with reasons
    n_unreadable: int = 0
    stored: str = ""  # key of its index in a store
    state: str = ""  # hash of the names, sizes and times of its files


class ShardedFaces(Faces):
    """Images with groups in shards: the data of the role `faces`, without its rows.

    Parameters
    ----------
    reader : ShardReader
        Opens a shard.
    shards : sequence of str
        Names of the shards, in order.
    columns : Columns
        Label columns; their names are given.
    name : str
        Name of the dataset.
    table : ShardTable, optional
        What workers found in the shards; without it sizes and groups are not known yet.
    provenance : dict, optional
        Where the data came from.
    in_images : bool
        Whether the shards contain images, which are embedded first.
    """

    reader: ShardReader
    shards: tuple[str, ...]
    columns: Columns
    table: ShardTable | None
    in_images: bool

    def __init__(
        self,
        reader: ShardReader,
        shards: Sequence[str],
        columns: Columns,
        name: str,
        *,
        table: ShardTable | None = None,
        provenance: dict[str, Any] | None = None,
        in_images: bool = False,
    ) -> None:
        groups = {} if table is None else table.groups()
        for at, value in {
            "reader": reader, "shards": tuple(shards), "columns": columns, "name": name,
            "table": table, "provenance": provenance or {}, "in_images": in_images,
            "groups": groups, "vectors": None, "images": None, "truth": None, "world": None,
        }.items():  # fmt: skip
            object.__setattr__(self, at, value)

    @property
    def ids(self) -> tuple[str, ...]:
        """Raises: no process has all ids."""
        raise rows_stay_in_shards("ids of the images")

    def __len__(self) -> int:
        return 0 if self.table is None else int(self.table.starts[-1])

    def select(self, rows: Sequence[int]) -> Faces:
        """Raises: rows stay in their shards."""
        raise rows_stay_in_shards("rows of the images")

    def indexed(self, table: ShardTable, provenance: Mapping[str, Any]) -> ShardedFaces:
        """The same collection, with what workers found in it."""
        return ShardedFaces(
            table.reader, table.shards, self.columns, self.name, table=table,
            provenance={**self.provenance, **provenance}, in_images=self.in_images,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class ShardTable:
    """Shards with the number of their rows, and the cells: combinations of labels that occur."""

    reader: ShardReader
    shards: tuple[str, ...]
    starts: Ints  # first row of each shard, and the number of all rows
    columns: Columns
    names: Mapping[str, tuple[str, ...]]  # groups by label column
    cells: Ints  # cells x columns: the group of each
    sizes: Ints  # images of each cell
    key: str  # hash of all labels and of the shards' names
    state: str = ""  # hash of the state of all files: changes with them

    @classmethod
    def of(
        cls, reader: ShardReader, columns: Columns, summaries: Mapping[str, ShardSummary]
    ) -> ShardTable:
        """Put the summaries of all readable shards together; empty ones are left out."""
        kept = {found.stored or name: found for name, found in summaries.items() if found.rows}
        if not kept:
            raise InputError("the shards have no rows", code="no-images")
        total: Counter[tuple[str, ...]] = Counter()
        for summary in kept.values():
            total.update(summary.cells)
        listed = list(columns.names or ())
        by_column = {
            name: Groups.from_labels([cell[at] for cell in total], attribute=name)
            for at, name in enumerate(listed)
        }
        codes = np.column_stack([by.codes for by in by_column.values()]) if listed else None
        if codes is None:
            codes = np.zeros((1, 0), np.int64)
        order = np.lexsort(codes.T[::-1]) if listed else np.zeros(1, int)
        sizes = np.array(list(total.values()))[order]
        starts = np.cumsum([0, *(summary.rows for summary in kept.values())])
        key = content_hash([*kept, *(summary.key for summary in kept.values())])
        names = {name: by.names for name, by in by_column.items()}
        state = content_hash([summary.state for summary in kept.values()])
        return cls(reader, tuple(kept), starts, columns, names, codes[order], sizes, key, state)

    def groups(self) -> dict[str, Groups]:
        """Names and sizes of the groups of each column."""
        return {
            name: GroupSizes(self.cells[:, at], self.sizes, names, name)
            for at, (name, names) in enumerate(self.names.items())
        }

    def vectors(self, start: int, stop: int) -> Floats:
        """Embeddings of rows, from as many shards as they are in."""
        parts = [np.asarray(rows.vectors[a:b]) for rows, a, b in self._pieces(start, stop)]
        # half precision on disk and in memory; scores are computed in single precision
        parts = [part.astype(np.float32) if part.dtype.itemsize == 2 else part for part in parts]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def codes(self, start: int, stop: int) -> Ints:
        """The cell of each row."""
        return np.concatenate(
            [self._cells_of(rows)[a:b] for rows, a, b in self._pieces(start, stop)]
        )

    def ids(self, rows: Ints) -> tuple[list[str], Ints]:
        """Ids and cells of rows, which are in increasing order."""
        names: list[str] = []
        codes = []
        shard = np.searchsorted(self.starts, rows, side="right") - 1
        for at in np.unique(shard):
            opened, own = self._open(int(at)), rows[shard == at] - self.starts[at]
            names += opened.ids(own)
            codes.append(self._cells_of(opened)[own])
        return names, np.concatenate(codes)

    def _pieces(self, start: int, stop: int) -> list[tuple[ShardRows, int, int]]:
        """The shards of some rows, each with its own first and last row."""
        first, last = (
            int(np.searchsorted(self.starts, row, side="right")) - 1 for row in (start, stop - 1)
        )
        pieces = []
        for at in range(first, last + 1):
            begin, end = int(self.starts[at]), int(self.starts[at + 1])
            pieces.append((self._open(at), max(start, begin) - begin, min(stop, end) - begin))
        return pieces

    def _open(self, at: int) -> ShardRows:
        rows = open_shard(self.reader, self.shards[at], self.columns)
        count = int(self.starts[at + 1] - self.starts[at])
        if rows.vectors is not None and len(rows.vectors) != count:
            raise InputError(
                f"{self.shards[at]} has {len(rows.vectors):,} rows, but had {count:,} when it was "
                "indexed: audit again",
                code="bad-file",
                value=self.shards[at],
            )
        return rows

    def _cells_of(self, rows: ShardRows) -> Ints:
        return shard_cells(self, rows)


@lru_cache(maxsize=OPEN_SHARDS)
def shard_cells(table: ShardTable, rows: ShardRows) -> Ints:
    """The cell of each row of a shard, whose groups have numbers of their own."""
    shape = [len(names) for names in table.names.values()]
    number = np.full(shape, -1, np.int32)
    number[tuple(table.cells.T)] = np.arange(len(table.cells))
    codes = []
    for name, names in table.names.items():
        own = rows.groups[name]
        place = np.array([names.index(group) if group in names else -1 for group in own.names])
        codes.append(place[own.codes])
    found = np.asarray(number[tuple(codes)] if codes else np.zeros(len(rows.vectors), np.int32))
    if found.size and (found.min() < 0 or any(code.min() < 0 for code in codes)):
        raise InputError("the labels of a shard changed since it was indexed: audit again")
    return found


@lru_cache(maxsize=OPEN_SHARDS)
def open_shard(reader: ShardReader, name: str, columns: Columns) -> ShardRows:
    """Open a shard; a worker keeps the last few open."""
    return reader.open(name, columns)


def summarise(rows: ShardRows, columns: Columns, **found: Any) -> ShardSummary:
    """What the driver learns of a shard, after unreadable rows were left out."""
    names = list(columns.names or ())
    groups = [rows.groups[name] for name in names]
    count = len(rows.vectors) if rows.vectors is not None else len(rows.images or ())
    for name, by in zip(names, groups, strict=True):
        if len(by) != count:
            raise InputError(
                f"{count} rows, but {len(by)} labels of {name}: they must be the same images in "
                "the same order",
                code="bad-labels",
                value=name,
            )
    if not groups:
        return ShardSummary(count, {(): count}, "", rows.incomplete, **found)
    codes = np.column_stack([by.codes for by in groups])
    cells, counts = np.unique(codes, axis=0, return_counts=True)
    labels = [tuple(by.names[code] for by, code in zip(groups, cell, strict=True))
              for cell in cells]  # fmt: skip
    key = content_hash([[list(by.names), content_hash(by.codes)] for by in groups])
    return ShardSummary(
        count, dict(zip(labels, counts.tolist(), strict=True)), key, rows.incomplete, **found
    )
