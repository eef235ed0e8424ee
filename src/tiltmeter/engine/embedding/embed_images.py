"""Embed images: those in a store are read, the others are embedded and added to it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from tiltmeter.engine.embedding import loader
from tiltmeter.engine.embedding.loader import Chunk, LoaderConfig, decoder_of, device_of
from tiltmeter.engine.embedding.workers import embed_on
from tiltmeter.engine.engines import Engine, LocalEngine, in_this_process
from tiltmeter.engine.vectors import InMemoryVectors, StoreVectors, Vectors
from tiltmeter.errors import InputError
from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.models import load_model
from tiltmeter.results import content_hash
from tiltmeter.store import Store, StoredEmbeddings, warn_of_damage
from tiltmeter.types import Faces, Floats, Progress

WRITES = 2  # chunks that wait to be written
SHOWN = 5  # unreadable images listed in messages and records


@dataclass(frozen=True, eq=False)
class EmbeddingResult:
    """Embeddings of the readable images, and how they were made.

    Attributes
    ----------
    rows : list of int
        Rows of the readable images.
    vectors : array
        Their embeddings; empty if they stay in the store.
    new : int
        Number of images embedded now.
    unreadable : mapping
        Reasons by id.
    seconds : float
        Time taken.
    record : dict
        Hash of the images, precision, decoder and unreadable images, for the record of a run.
    items : list of str
        Keys in the store: hashes of the files.
    kept : dict or None
        Space and shards in the store.
    space : StoredEmbeddings or None
        The space itself.
    """

    rows: list[int]
    vectors: Floats
    new: int
    unreadable: Mapping[str, str]
    seconds: float
    record: dict[str, Any]
    items: list[str] = field(default_factory=list)
    kept: dict[str, Any] | None = None
    space: StoredEmbeddings | None = None

    @property
    def located(self) -> Vectors:
        """The embeddings, wherever they are."""
        if self.space is None or len(self.vectors) == len(self.rows):
            return InMemoryVectors(self.vectors)
        return StoreVectors.of(self.space, self.items)

    @property
    def rate(self) -> float:
        """Images embedded per second."""
        return self.new / self.seconds if self.seconds else 0.0

    def of(self, faces: Faces) -> Faces:
        """Faces with their embeddings, without unreadable images."""
        provenance = {**faces.provenance, **self.record}
        return replace(faces.select(self.rows), vectors=self.vectors, provenance=provenance)


@dataclass(frozen=True, eq=False)
class EmbeddedFaces:
    """Faces without unreadable images, and the location of their embeddings."""

    faces: Faces
    images: Vectors
    items: list[str] | None = None  # keys in the store


@dataclass(frozen=True)
class Workers:
    """The engine that embeds, and how its workers load the model."""

    engine: Engine = LocalEngine()  # noqa: RUF009
    load: Callable[[], Any] | None = None  # in other processes
    #: False leaves embeddings in the store: they may not fit into memory.
    read: bool = True


def load_for(
    engine: Engine, spec: str, *, device: str, trust_remote_code: bool
) -> tuple[Any, Callable[[], Any]]:
    """The model in this process, and a function that loads it in a worker of the engine.

    If workers are other processes, the model here embeds only texts.
    """
    load = partial(load_model, spec, trust_remote_code=trust_remote_code)
    if in_this_process(engine):
        load = partial(load, device=device)
        return load(), load
    worker_device = "cuda" if engine.gpus else "cpu"
    if device not in ("auto", worker_device):
        raise InputError(
            f"--device {device}, but workers of --engine {engine.name} are on {worker_device}: "
            "set gpus=1 to give each a GPU, gpus=0 for none"
        )
    return load(device="cpu"), partial(load, device=worker_device)


def embed(
    model: Any,
    images: ImageFiles | GeneratedImages | None,
    ids: Sequence[str],
    *,
    store: Store | None = None,
    config: LoaderConfig = LoaderConfig(),  # noqa: B008
    strict: bool = False,
    workers: Workers = Workers(),  # noqa: B008
    progress: Progress | None = None,
) -> EmbeddingResult:
    """Embed images; embeddings in the store are reused.

    Damaged shards of the store are removed, with a warning, and their images embedded again.

    Parameters
    ----------
    model : object
        A model with `encode_images`.
    images : ImageFiles or GeneratedImages
        The images.
    ids : sequence of str
        Their names, for messages.
    store : Store, optional
        Where embeddings are kept. Required if workers are other processes.
    config : LoaderConfig
        Batch size, precision and decoding.
    strict : bool
        Fail on an unreadable image instead of leaving it out.
    workers : Workers
        The engine that embeds. Defaults to this process.
    progress : callable, optional
        Called as `progress(what, share)`.

    Returns
    -------
    EmbeddingResult

    Raises
    ------
    InputError
        If there are no images or no readable ones, if the model cannot embed images, if an image
        is unreadable and `strict` is set, or if a store is missing.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> Image.new("RGB", (32, 32)).save(folder / "a.png")
    >>> images = ImageFiles((folder / "a.png",), folder)
    >>> embed(load_model("testbed:dual"), images, ["a"]).vectors.shape[0]
    1
    """
    if not isinstance(images, ImageFiles | GeneratedImages):
        raise InputError(
            "the data have labels but no image files to embed: name the column of image files "
            "(table:FILE?path=COLUMN), or another dataset (tiltmeter list datasets)",
            code="no-images",
        )
    if not hasattr(model, "encode_images"):
        name = getattr(model, "name", type(model).__name__)
        raise InputError(f"{name} cannot embed images: it has no encode_images")
    started = time.perf_counter()
    engine = workers.engine
    remote = not in_this_process(engine)
    device = ("cuda" if engine.gpus else "cpu") if remote else device_of(model)
    precision, decoder = config.precision_on(device), decoder_of(model, config, device)
    space = None if store is None else store.space(model, precision, decoder)
    if remote:  # workers must not choose otherwise
        decode = "gpu" if decoder == "nvjpeg" else "cpu"
        config = replace(config, precision=precision, decode=decode)

    def tell(done: int) -> None:
        if progress is not None:
            rate = done / max(time.perf_counter() - started, 1e-9)
            said = f"embedding, {done:,} of {len(images):,} images, {rate:,.0f} images/s"
            progress(said, done / max(len(images), 1))

    chunks = _chunks(model, images, space, config, workers, device, tell)
    done = _collect(chunks, ids, space, remote, strict, tell)
    items = [item for item in done.hashes if item is not None]
    if space is None:
        vectors = np.stack([done.vectors[item] for item in items])
    else:
        space = StoredEmbeddings(space.path)  # reread: other processes may have written to it
        # workers in other processes have verified what they read
        damaged = {} if remote else space.discard_damaged(items)
        if broken := done.written & set(damaged):
            raise InputError(f"{damaged[broken.pop()]}, just after it was written: check the disk")
        if damaged:
            again = embed(model, images, ids, store=store, config=config, strict=strict,
                          workers=workers, progress=progress)  # fmt: skip
            seconds = time.perf_counter() - started
            return replace(again, new=done.new + again.new, seconds=seconds)
        vectors = space.vectors(items if workers.read else [])
    record = {
        "images_hash": content_hash(items),
        "precision": precision,
        "decoder": decoder,
        "unreadable": {"count": len(done.unreadable), "first": list(done.unreadable)[:SHOWN]},
    }
    kept = None
    if space is not None:
        kept = {"space": space.path.name, "shards": space.shards_of(items)}
    seconds = time.perf_counter() - started
    rows = [row for row, item in enumerate(done.hashes) if item is not None]
    return EmbeddingResult(
        rows, vectors, done.new, done.unreadable, seconds, record, items, kept, space
    )


def _chunks(
    model: Any,
    images: ImageFiles | GeneratedImages,
    space: StoredEmbeddings | None,
    config: LoaderConfig,
    workers: Workers,
    device: str,
    tell: Callable[[int], None],
) -> Iterator[Chunk]:
    """Chunks of images, embedded here or by the engine's workers."""
    if space is not None:
        space.discard_damaged()
    if in_this_process(workers.engine):
        known = frozenset() if space is None else frozenset(space)
        return loader.embed(model, images, known=known.__contains__, config=config, tell=tell)
    if workers.load is None or space is None:
        raise InputError(f"--engine {workers.engine.name} needs a store: pass --store DIR")
    return embed_on(workers.engine, workers.load, images, space, config, device)


@dataclass(eq=False)
class _Collected:
    """What all chunks gave."""

    hashes: list[str | None] = field(default_factory=list)  # None: unreadable
    unreadable: dict[str, str] = field(default_factory=dict)  # id -> reason
    vectors: dict[str, Floats] = field(default_factory=dict)  # by hash, without a store
    written: set[str] = field(default_factory=set)  # shards
    new: int = 0


def _collect(
    chunks: Iterator[Chunk],
    ids: Sequence[str],
    space: StoredEmbeddings | None,
    remote: bool,
    strict: bool,
    tell: Callable[[int], None],
) -> _Collected:
    """Save or keep the embeddings of every chunk; raises if no image is readable."""
    done, writes = _Collected(), deque[Future[str]]()
    with ThreadPoolExecutor(1) as writer:  # the model goes on meanwhile
        for chunk in chunks:
            done.hashes += chunk.hashes
            done.unreadable |= {ids[row]: reason for row, reason in chunk.unreadable.items()}
            if strict and done.unreadable:
                raise InputError(f"unreadable image: {next(iter(done.unreadable.values()))}")
            if remote:
                done.new += len(chunk.new)
                for problem in chunk.damaged.values():
                    warn_of_damage(problem)
            if chunk.vectors is not None:
                items = [str(done.hashes[row]) for row in chunk.new]
                done.new += len(items)
                if space is None:
                    done.vectors |= zip(items, chunk.vectors, strict=True)
                else:
                    writes.append(writer.submit(space.add, items, chunk.vectors))
                    while len(writes) > WRITES:
                        done.written.add(writes.popleft().result())
            tell(len(done.hashes))
    done.written |= {write.result() for write in writes}
    if not any(item is not None for item in done.hashes):
        reasons = "; ".join(list(done.unreadable.values())[:SHOWN])
        raise InputError(f"none of the {len(done.hashes):,} images can be read: {reasons}")
    return done
