"""Photographs into vectors: those that a store holds are read, the others embedded and kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from tiltmeter.engine.embedding import loader
from tiltmeter.engine.embedding.loader import LoaderConfig, decoder_of, device_of
from tiltmeter.engine.embedding.workers import embed_on
from tiltmeter.engine.engines import Engine, LocalEngine, in_this_process
from tiltmeter.engine.vectors import Vectors
from tiltmeter.errors import InputError
from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.models import load_model
from tiltmeter.results import content_hash
from tiltmeter.store import EmbeddingSpace, Store, warn_of_damage
from tiltmeter.types import Faces, Floats, Progress

SHOWN = 5  # unreadable images that a message names


@dataclass(frozen=True, eq=False)
class EmbeddingResult:
    """Vectors of the images that could be read, and how they came about."""

    rows: list[int]  # of these images
    vectors: Floats
    new: int  # embedded now
    unreadable: Mapping[str, str]  # id -> reason
    seconds: float
    record: dict[str, Any]  # which images, how many could not be read, in which precision
    items: list[str] = field(default_factory=list)  # what a store calls them: their files' hashes
    kept: dict[str, Any] | None = None  # where in a store they are: space, shards

    @property
    def rate(self) -> float:
        """Images embedded a second."""
        return self.new / self.seconds if self.seconds else 0.0

    def of(self, faces: Faces) -> Faces:
        """Faces with their vectors, without those that could not be read."""
        told = {**faces.provenance, **self.record}
        return replace(faces.only(self.rows), vectors=self.vectors, provenance=told)


@dataclass(frozen=True, eq=False)
class EmbeddedFaces:
    """Faces that can be ranked: without unreadable images, and where their embeddings are."""

    faces: Faces
    images: Vectors
    items: list[str] | None = None  # what a store calls them


@dataclass(frozen=True)
class Workers:
    """Who embeds: an engine, and how its workers get the model."""

    engine: Engine = LocalEngine()  # noqa: RUF009
    load: Callable[[], Any] | None = None  # for workers elsewhere
    #: Without it embeddings stay in the store: they may be more than the memory holds.
    read: bool = True


def load_for(
    engine: Engine, spec: str, *, device: str, trust_remote_code: bool
) -> tuple[Any, Callable[[], Any]]:
    """The model here, and how a worker of the engine loads it.

    For workers elsewhere the model here only says who it is, and embeds texts.
    """
    load = partial(load_model, spec, trust_remote_code=trust_remote_code)
    if in_this_process(engine):
        load = partial(load, device=device)
        return load(), load
    there = "cuda" if engine.gpus else "cpu"
    if device not in ("auto", there):
        raise InputError(
            f"--device {device}, but workers of --engine {engine.name} are on {there}: "
            "gpus=1 among its settings gives each a GPU, gpus=0 none"
        )
    return load(device="cpu"), partial(load, device=there)


def embed(
    model: Any,
    pictures: ImageFiles | GeneratedImages | None,
    ids: Sequence[str],
    *,
    store: Store | None = None,
    pace: LoaderConfig = LoaderConfig(),  # noqa: B008
    strict: bool = False,
    workers: Workers = Workers(),  # noqa: B008
    progress: Progress | None = None,
) -> EmbeddingResult:
    """The model's vectors of images; what cannot be read is left out, or refused if `strict`.

    Shards of the store that are damaged are removed, with a warning, and their images embedded
    again. Workers elsewhere need a store.
    """
    engine, load = workers.engine, workers.load
    if not isinstance(pictures, ImageFiles | GeneratedImages):
        raise InputError("there are no picture files to embed: tiltmeter list datasets")
    if not hasattr(model, "encode_images"):
        name = getattr(model, "name", type(model).__name__)
        raise InputError(f"{name} gives no vectors to images: it has no encode_images")
    device, elsewhere = device_of(model), not in_this_process(engine)
    if elsewhere:
        device = "cuda" if engine.gpus else "cpu"
    precision, decoder = pace.precision_on(device), decoder_of(model, pace, device)
    if elsewhere:  # workers do as is settled here, or nothing
        decode = "gpu" if decoder == "nvjpeg" else "cpu"
        pace = replace(pace, precision=precision, decode=decode)
    space = None if store is None else store.space(model, precision, decoder)
    started = time.perf_counter()
    hashes: list[str | None] = []
    unreadable: dict[str, str] = {}
    vectors: dict[str, Floats] = {}  # of the images embedded now, where nothing is stored
    new = 0
    written: set[str] = set()
    if space is not None:
        space.discard_damaged()
    known = frozenset() if space is None else frozenset(space)
    chunks = loader.embed(model, pictures, known=known.__contains__, pace=pace)
    if elsewhere:
        if load is None or space is None:
            raise InputError("workers elsewhere keep vectors in a store: name one (--store DIR)")
        chunks = embed_on(engine, load, pictures, space, pace, device)
    for chunk in chunks:
        hashes += chunk.hashes
        unreadable |= {ids[at]: reason for at, reason in chunk.unreadable.items()}
        if strict and unreadable:
            raise InputError(f"a picture cannot be read: {next(iter(unreadable.values()))}")
        if elsewhere:
            new += len(chunk.new)
            for what in chunk.damaged.values():
                warn_of_damage(what)
        if chunk.vectors is not None:
            items = [str(hashes[at]) for at in chunk.new]
            new += len(items)
            if space is None:
                vectors |= zip(items, chunk.vectors, strict=True)
            else:
                written.add(space.add(items, chunk.vectors))
        if progress is not None:
            rate = new / max(time.perf_counter() - started, 1e-9)
            progress(f"embedding, {rate:,.0f} images/s", len(hashes) / max(len(pictures), 1))
    rows = [row for row, item in enumerate(hashes) if item is not None]
    if not rows:
        some = "; ".join(list(unreadable.values())[:SHOWN])
        raise InputError(f"none of the {len(pictures):,} pictures can be read: {some}")
    items = [str(hashes[row]) for row in rows]
    if space is None:
        found = np.stack([vectors[item] for item in items])
    else:
        space = EmbeddingSpace(
            space.path
        )  # as it is now, with what workers elsewhere have put there
        # what workers elsewhere read they have checked
        damaged = {} if elsewhere else space.discard_damaged(items)
        if broken := written & set(damaged):
            raise InputError(f"{damaged[broken.pop()]}, just after it was written: check the disk")
        if damaged:
            again = embed(model, pictures, ids, store=store, pace=pace, strict=strict,
                          workers=workers, progress=progress)  # fmt: skip
            seconds = time.perf_counter() - started
            return replace(again, new=new + again.new, seconds=seconds)
        found = space.vectors(items if workers.read else [])
    record = {
        "pictures": content_hash(items),
        "precision": precision,
        "decoder": decoder,
        "unreadable": {"count": len(unreadable), "first": list(unreadable)[:SHOWN]},
    }
    kept = None
    if space is not None:
        kept = {"space": space.path.name, "shards": space.shards_of(items)}
    seconds = time.perf_counter() - started
    return EmbeddingResult(rows, found, new, unreadable, seconds, record, items, kept)
