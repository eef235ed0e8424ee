"""Index a collection: workers count the rows and labels of shards, and look up single rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter.datasets.found_images import MAX_NAMES, group_counts
from tiltmeter.datasets.shards import (
    ShardedFaces,
    ShardReader,
    ShardSummary,
    ShardTable,
    open_shard,
    summarise,
)
from tiltmeter.engine.engines import Engine, FailedPart
from tiltmeter.engine.parts import run_parts
from tiltmeter.errors import InputError
from tiltmeter.io.filesystems import file_state
from tiltmeter.io.tables import Columns
from tiltmeter.results import content_hash, write_atomically
from tiltmeter.types import Faces, Groups, Ints, Progress


@dataclass(frozen=True, eq=False)
class IndexTask:
    """Sent to workers: how shards are read, and which label columns are counted."""

    reader: ShardReader
    columns: Columns
    known: Path | None = None  # where counts of unchanged files are kept

    def __call__(self) -> Callable[[str], ShardSummary]:
        return self.work

    def work(self, shard: str) -> ShardSummary:
        """Count the rows and labels of a shard."""
        state = content_hash([file_state(file) for file in self.reader.files(shard)])
        place = None if self.known is None else self.known / (
            content_hash([state, list(self.columns.names or ())])[:24] + ".json"
        )  # fmt: skip
        if place is not None and (known := _read_summary(place)) is not None:
            return known
        rows = open_shard(self.reader, shard, self.columns)
        summary = summarise(rows, self.columns, state=state)
        if place is not None:
            _write_summary(place, summary)
        return summary


def _read_summary(place: Path) -> ShardSummary | None:
    """Counts of a file that was indexed before; None if there are none, or they are damaged."""
    try:
        kept = json.loads(place.read_text(encoding="utf-8"))
        if kept.pop("hash") != content_hash(kept):
            return None
        kept["cells"] = {tuple(labels): count for labels, count in kept["cells"]}
        return ShardSummary(**{**kept, "unreadable": tuple(kept["unreadable"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write_summary(place: Path, summary: ShardSummary) -> None:
    cells = [[list(labels), count] for labels, count in summary.cells.items()]
    kept = {**summary._asdict(), "cells": cells, "unreadable": list(summary.unreadable)}
    text = json.dumps({**kept, "hash": content_hash(kept)})
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, lambda path: path.write_text(text, encoding="utf-8"))
    except OSError:
        return  # it is only counted again


def index_shards(
    faces: ShardedFaces, engine: Engine, progress: Progress, *, strict: bool = False
) -> ShardedFaces:
    """Count rows and labels of all shards.

    Parameters
    ----------
    faces : ShardedFaces
        The collection, unread.
    engine : Engine
        Where shards are read.
    progress : callable
        Told what is done, and the share of it.
    strict : bool
        Fail on a shard that cannot be read instead of leaving it out.

    Returns
    -------
    ShardedFaces
        With sizes and groups; its provenance lists shards that could not be read.

    Raises
    ------
    InputError
        No shard can be read; or one, if `strict`.
    """
    known = None if engine.journal is None else engine.journal / "index"
    task = IndexTask(faces.reader, faces.columns, known)
    found = run_parts(engine, task, faces.shards, progress, "indexing", "shards")
    return with_summaries(faces, dict(zip(faces.shards, found, strict=True)), strict=strict)


def with_summaries(
    faces: ShardedFaces,
    found: Mapping[str, Any],
    *,
    strict: bool,
    reader: ShardReader | None = None,
) -> ShardedFaces:
    """The collection with what workers found in its shards, or why they could not read them."""
    summaries = {name: one for name, one in found.items() if not isinstance(one, FailedPart)}
    failed = {name: one.reason for name, one in found.items() if isinstance(one, FailedPart)}
    failed |= {name: "ends early" for name, one in summaries.items() if one.incomplete}
    if failed and (strict or not summaries):
        name, reason = next(iter(failed.items()))
        raise InputError(f"{name}: {reason}", code="bad-file", value=name)
    table = ShardTable.of(reader or faces.reader, faces.columns, summaries)
    rows = int(table.starts[-1])
    listed = {"count": len(failed), "first": [f"{name}: {failed[name]}" for name in
                                              list(failed)[:MAX_NAMES]]}  # fmt: skip
    provenance = {
        "labels": table.key,
        "shards": len(table.shards),
        "shards_not_read": listed,
        "found": {"rows": rows, "groups": group_counts(table.groups().values())},
    }
    return faces.indexed(table, provenance)


@dataclass(frozen=True, eq=False)
class LookUpTask:
    """Sent to workers: reads ids and cells of single rows."""

    table: ShardTable

    def __call__(self) -> Callable[[Ints], tuple[list[str], Ints]]:
        return self.table.ids


def rows_as_faces(faces: ShardedFaces, rows: Ints, engine: Engine) -> Faces:
    """Some rows of a collection, in increasing order, as faces: ids and groups, no embeddings."""
    table = faces.table
    assert table is not None
    shard = np.searchsorted(table.starts, rows, side="right") - 1
    parts = [rows[shard == at] for at in np.unique(shard)]
    found = list(engine.run(LookUpTask(table), parts))
    for one in found:
        if isinstance(one, FailedPart):
            raise InputError(one.reason)
    cells = table.cells[np.concatenate([codes for _, codes in found])]
    groups = {
        name: Groups(cells[:, at], names, name) for at, (name, names) in
        enumerate(table.names.items())
    }  # fmt: skip
    return Faces(tuple(one for ids, _ in found for one in ids), groups, name=faces.name)
