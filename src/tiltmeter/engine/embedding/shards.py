"""Embed a collection: a worker lists a shard, embeds its images and keeps an index of it.

The index of a shard (`StoredEmbeddings.source`) has ids, labels and the places of its embeddings.
It is written last, so a shard with an index is finished, whoever embedded it. No process reads the
index of more than its own shards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.datasets.shards import (
    ShardedFaces,
    ShardReader,
    ShardRows,
    ShardSummary,
    open_shard,
    summarise,
)
from tiltmeter.engine.embedding import loader
from tiltmeter.engine.embedding.embed_images import SHOWN, Workers
from tiltmeter.engine.embedding.loader import LoaderConfig, decoder_of, device_of
from tiltmeter.engine.embedding.workers import try_decoding
from tiltmeter.engine.engines import FailedPart, in_this_process
from tiltmeter.engine.indexing import with_summaries
from tiltmeter.engine.parts import run_parts
from tiltmeter.errors import DamagedError, InputError
from tiltmeter.io.filesystems import file_state
from tiltmeter.io.tables import Columns, label_groups
from tiltmeter.results import content_hash
from tiltmeter.store import SOURCES, Store, StoredEmbeddings, warn_of_damage
from tiltmeter.types import Floats, Ints, Progress

#: Columns of an index that are not labels, which begin with LABEL.
PLACES = ("id", "item", "shard", "row", "source_row")
LABEL = "label "


@dataclass(frozen=True)
class EmbeddedShards:
    """Reads the embeddings and labels of source files from a store, by the keys of these."""

    space: Path

    def files(self, name: str) -> list[str]:
        """The index."""
        return [str(self.space / SOURCES / f"{name}.parquet")]

    def open(self, name: str, columns: Columns) -> ShardRows:
        """Open the index of one source file."""
        space = StoredEmbeddings(self.space)
        index = space.source(name)
        if index is None:
            raise InputError(f"{self.space} has no index of {name}: run tiltmeter embed first")
        return _rows(space, index[0], columns)


@dataclass(frozen=True, eq=False)
class _StoredRows:
    """Embeddings of a source file in the shards of a store, read by slices."""

    space: StoredEmbeddings
    shard: pa.Array  # of each row, dictionary of names
    row: Ints

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, at: slice) -> Floats:
        names, codes = self.shard.dictionary.to_pylist(), np.asarray(self.shard.indices)[at]
        rows = self.row[at]
        parts = ((names[code], np.flatnonzero(codes == code), rows[codes == code])
                 for code in np.unique(codes))  # fmt: skip
        return self.space.gather(len(rows), parts)


def _rows(space: StoredEmbeddings, table: pa.Table, columns: Columns) -> ShardRows:
    labels = table.select([name for name in table.column_names if name.startswith(LABEL)])
    labels = labels.rename_columns([name.removeprefix(LABEL) for name in labels.column_names])
    stored = _StoredRows(
        space, table["shard"].combine_chunks().dictionary_encode(), np.asarray(table["row"])
    )
    return ShardRows(
        label_groups(labels, space.path, columns) if columns.names else {},
        lambda rows: list(table["id"].take(rows).to_pylist()),
        stored,
        items=lambda: list(table["item"].to_pylist()),
    )


@dataclass(frozen=True, eq=False)
class EmbedShardTask:
    """Sent to workers: how to open a shard, load the model, and where embeddings go."""

    reader: ShardReader
    columns: Columns
    load: Callable[[], Any]
    space: Path
    config: LoaderConfig

    def __call__(self) -> Callable[[str], ShardSummary]:
        """Load the model when the first shard needs it: a resumed job may need none."""
        model: list[Any] = []

        def work(name: str) -> ShardSummary:
            space = StoredEmbeddings(self.space)
            key = content_hash([file_state(file) for file in self.reader.files(name)])[:24]
            try:
                finished = self._finished(space, name, key)
            except DamagedError as error:
                warn_of_damage(f"{error.path} {error.reason}")
                finished = None
            if finished is not None:
                return finished
            if not model:
                model.append(self.load())
                if decoder_of(model[0], self.config) == "nvjpeg":
                    try_decoding(device_of(model[0]))
            return self._embed(model[0], space, name, key)

        return work

    def _finished(self, space: StoredEmbeddings, name: str, key: str) -> ShardSummary | None:
        """The summary of a shard whose embeddings are there, with all label columns."""
        index = space.source(key)
        if index is None:
            return None
        table, unread = index
        for shard in table["shard"].unique().to_pylist():
            try:
                space.array(shard)
            except DamagedError:
                space.remove(shard)
                raise
        lacking = [column for column in self.columns.names or ()
                   if LABEL + column not in table.column_names]  # fmt: skip
        if lacking:  # labels that nobody asked for when it was embedded
            source = open_shard(self.reader, name, self.columns)
            table = _with_labels(table, source, table["source_row"].to_numpy())
            space.add_source(key, table, unread)
        return self._summary(space, table, unread, key)

    def _embed(self, model: Any, space: StoredEmbeddings, name: str, key: str) -> ShardSummary:
        source = open_shard(self.reader, name, self.columns)
        assert source.images is not None
        places: dict[str, tuple[str, int]] = {}
        hashes: list[str | None] = []
        unreadable: dict[int, str] = {}
        for chunk in loader.embed(model, source.images, config=self.config):
            hashes += chunk.hashes
            unreadable |= chunk.unreadable
            if chunk.vectors is not None:
                items = [str(hashes[row]) for row in chunk.new]
                shard = space.add(items, chunk.vectors)
                places |= {item: (shard, row) for row, item in enumerate(items)}
        rows = np.array([row for row, item in enumerate(hashes) if item is not None], np.int64)
        kept = [str(hashes[row]) for row in rows]
        table = pa.table({
            "id": pa.array(source.ids(rows), pa.string()),
            "item": pa.array(kept, pa.string()),
            "shard": pa.array([places[item][0] for item in kept], pa.string()),
            "row": pa.array([places[item][1] for item in kept], pa.int64()),
            "source_row": rows,
        })  # fmt: skip
        table = _with_labels(table, source, rows)
        # in the index, since a shard may be finished by one worker and summarised by another
        unread = {
            "incomplete": source.incomplete,
            "unreadable": list(unreadable.values())[:SHOWN],
            "n_unreadable": len(unreadable),
        }
        space.add_source(key, table, unread)
        return self._summary(space, table, unread, key)._replace(new=len(places))

    def _summary(
        self, space: StoredEmbeddings, table: pa.Table, unread: dict[str, Any], key: str
    ) -> ShardSummary:
        rows = replace(_rows(space, table, self.columns), incomplete=unread["incomplete"])
        return summarise(
            rows, self.columns, stored=key, state=key, n_unreadable=unread["n_unreadable"],
            unreadable=tuple(unread["unreadable"]),
        )  # fmt: skip


def _with_labels(table: pa.Table, source: ShardRows, rows: Ints) -> pa.Table:
    for name, groups in source.groups.items():
        if LABEL + name not in table.column_names:
            labels = pa.array(groups.names, pa.string()).take(pa.array(groups.codes[rows]))
            table = table.append_column(LABEL + name, labels)
    return table


@dataclass(frozen=True, eq=False)
class ShardEmbeddingResult:
    """What embedding a collection gave.

    Attributes
    ----------
    faces : ShardedFaces
        The collection as it is in the store.
    new : int
        Number of images embedded now.
    unreadable : int
        Number of images that could not be read; `first_unreadable` are the reasons of some.
    seconds : float
        Time taken.
    """

    faces: ShardedFaces
    new: int
    unreadable: int
    first_unreadable: tuple[str, ...]
    seconds: float

    @property
    def counts(self) -> dict[str, Any]:
        """Numbers of images and shards, what could not be read, and the time."""
        return {
            "images": len(self.faces),
            "embedded": self.new,
            "unreadable": {"count": self.unreadable, "first": list(self.first_unreadable)},
            "shards": len(self.faces.shards),
            "shards_not_read": self.faces.provenance["shards_not_read"],
            "seconds": round(self.seconds, 3),
        }


def embed_shards(
    model: Any,
    faces: ShardedFaces,
    store: Store,
    workers: Workers,
    config: LoaderConfig,
    *,
    strict: bool = False,
    progress: Progress = lambda what, share: None,
) -> ShardEmbeddingResult:
    """Embed the images of a collection, each shard by one worker; finished shards are not repeated.

    Parameters
    ----------
    model : object
        The model, as it is in this process: it says what its embeddings are.
    faces : ShardedFaces
        The collection.
    store : Store
        Where embeddings are kept.
    workers : Workers
        The engine, and how its workers load the model.
    config : LoaderConfig
        Batch size, precision and decoding.
    strict : bool
        Fail on an unreadable image or shard instead of leaving it out.
    progress : callable
        Told what is done, and the share of it.

    Returns
    -------
    ShardEmbeddingResult

    Raises
    ------
    InputError
        No shard can be read; or anything, if `strict`.
    """
    started = time.perf_counter()
    engine = workers.engine
    assert workers.load is not None
    remote = not in_this_process(engine)
    device = ("cuda" if engine.gpus else "cpu") if remote else device_of(model)
    precision, decoder = config.precision_on(device), decoder_of(model, config, device)
    space = store.space(model, precision, decoder)
    decode = "gpu" if decoder == "nvjpeg" else "cpu"
    config = replace(config, precision=precision, decode=decode, chunk=config.chunk_on(device))
    if remote and config.cores is None:  # threads: Ray's workers must not fork
        config = replace(config, cores=1)
    task = EmbedShardTask(faces.reader, faces.columns, workers.load, space.path, config)
    found: dict[str, Any] = {}
    new, unreadable = 0, 0
    first: list[str] = []
    summaries = run_parts(engine, task, faces.shards, progress, "embedding", "shards")
    for name, one in zip(faces.shards, summaries, strict=True):
        found[name] = one
        if isinstance(one, FailedPart):
            continue
        new, unreadable = new + one.new, unreadable + one.n_unreadable
        first += [*one.unreadable][: SHOWN - len(first)]
        if strict and first:
            raise InputError(f"unreadable image: {first[0]}")
    embedded = with_summaries(faces, found, strict=strict, reader=EmbeddedShards(space.path))
    embedded.provenance.update({
        "precision": precision,
        "decoder": decoder,
        "unreadable": {"count": unreadable, "first": first},
        "vectors": {"space": space.path.name},
    })  # fmt: skip
    return ShardEmbeddingResult(
        embedded, new, unreadable, tuple(first), time.perf_counter() - started
    )
