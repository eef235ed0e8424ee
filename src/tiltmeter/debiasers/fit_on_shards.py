"""Fit a debiaser on a collection in shards: workers send moments, never embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter.datasets import list_shards
from tiltmeter.datasets.shards import ShardedFaces, open_shard
from tiltmeter.debiasers.debiaser import Debiaser, ModelEdit, required_attribute
from tiltmeter.debiasers.fitted_rows import FittedRows, shard_key, shard_keys
from tiltmeter.engine.embedding.embed_images import Workers
from tiltmeter.engine.embedding.loader import LoaderConfig
from tiltmeter.engine.embedding.shards import embed_shards
from tiltmeter.engine.engines import Engine, FailedPart
from tiltmeter.engine.indexing import index_shards
from tiltmeter.engine.label_moments import label_moments
from tiltmeter.engine.parts import ImageParts, run_parts
from tiltmeter.engine.vectors import ShardVectors
from tiltmeter.errors import InputError
from tiltmeter.models import load_model
from tiltmeter.store import Store
from tiltmeter.types import GroupSizes, Progress

#: Up to so many fitted rows are recorded one by one; of more, each shard as a whole.
MOST_ROWS = 250_000


def check_fits_on(engine: Engine, debiaser: Debiaser, name: str) -> None:
    """Raise, before any work, if a method needs all embeddings at once.

    Parameters
    ----------
    engine : Engine
        Where it is to be fitted.
    debiaser : Debiaser
        The method.
    name : str
        Its name.
    """
    learns_from_summaries = hasattr(debiaser, "fit_moments") or debiaser.from_names
    if isinstance(debiaser, ModelEdit) or ("labels" in debiaser.needs and
                                           not learns_from_summaries):  # fmt: skip
        raise InputError(
            f"{name} needs all embeddings at once, which --engine {engine.name} does not have: "
            "use --engine local, or leace, pbm, or a method that learns from texts",
            code="bad-option",
            value=name,
        )


def load_shards(
    faces: Any,
    attribute: str | None,
    engine: Engine,
    *,
    model: Any,
    spec: str | None,
    store: str | Path | None,
    share: float,
    strict: bool,
    progress: Progress,
) -> ShardedFaces:
    """The collection to fit on, indexed, and embedded if it has images."""
    attribute = required_attribute(faces, attribute)
    if share < 1:
        raise InputError(
            f"--share draws single rows, which stay in their shards (--engine {engine.name}): "
            "name some of the shards instead",
            code="bad-option",
            value=share,
        )
    if isinstance(faces, str):
        shards = list_shards(faces, attributes=attribute.split("*"))
        if shards is None:
            raise InputError(
                f"--engine {engine.name} fits on collections in shards (webdataset:, parquet:, "
                f"embeddings: in clip-retrieval's layout); {faces} is not: use --engine local",
                code="bad-option",
                value=faces,
            )
        faces = shards
    if not isinstance(faces, ShardedFaces):
        raise InputError(f"--engine {engine.name} fits on collections in shards: use local")
    if faces.table is not None:
        return faces
    if not faces.in_images:
        return index_shards(faces, engine, progress, strict=strict)
    if store is None or spec is None:
        raise InputError(f"--engine {engine.name} needs a store: pass --store DIR")
    device = "cuda" if engine.gpus else "cpu"
    workers = Workers(engine, partial(load_model, spec, device=device))
    return embed_shards(
        model, faces, Store(Path(store)), workers, LoaderConfig(), strict=strict, progress=progress
    ).faces


def fit_on_shards(
    debiaser: Any, faces: ShardedFaces, attribute: str, engine: Engine, progress: Progress
) -> None:
    """Fit by moments, or by the names of the groups, and record what it was fitted on.

    Parameters
    ----------
    debiaser : Debiaser
        A method that `check_fits_on` accepts.
    faces : ShardedFaces
        The collection, indexed.
    attribute : str
        A label column or an intersection.
    engine : Engine
        Where the embeddings are summarised.
    progress : callable
        Told what is done, and the share of it.
    """
    groups, table = faces.attribute(attribute), faces.table
    assert isinstance(groups, GroupSizes)
    assert table is not None
    if int((groups.counts > 0).sum()) < 2:
        raise InputError(f"all images are of one group of {attribute!r}; fit on two or more")
    if debiaser.from_names:
        debiaser.fit(None, groups)
    else:
        parts = ImageParts.of(ShardVectors.of(table, None), groups.of_cell, engine)
        debiaser.fit_moments(label_moments(parts, len(groups.names), engine, progress))
    task = KeysTask(faces, whole=len(faces) > MOST_ROWS)
    ids: list[str] = []
    keys: list[str] = []
    for found in run_parts(engine, task, table.shards, progress, "recording rows", "shards"):
        if isinstance(found, FailedPart):
            raise InputError(found.reason)
        ids += found[0]
        keys += found[1]
    debiaser.rows_ = FittedRows(tuple(ids), tuple(keys), faces.name)


@dataclass(frozen=True, eq=False)
class KeysTask:
    """Sent to workers: ids and keys of the rows of a shard, or of the shard as a whole."""

    faces: ShardedFaces
    whole: bool

    def __call__(self) -> Callable[[str], tuple[list[str], list[str]]]:
        return self.work

    def work(self, shard: str) -> tuple[list[str], list[str]]:
        """Ids and keys of one shard."""
        rows = open_shard(self.faces.reader, shard, self.faces.columns)
        keys = shard_keys(rows)
        if self.whole:
            return [shard], [shard_key(keys)]
        return rows.ids(np.arange(len(keys))), keys
