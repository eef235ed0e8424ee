"""Images through a model on this machine: decoded ahead by processes or threads, in fixed chunks.

A chunk is embedded whole or not at all, and its batches do not depend on what happened before: so a
run that was killed and taken up again gives the same bytes as one that was not.
"""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tiltmeter.engine.embedding import jpeg
from tiltmeter.engine.embedding.jpeg import KeepsSize, can_decode
from tiltmeter.engine.embedding.transfer import DeviceBatch, Transfer, out_of_memory
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.image_files import GeneratedImages, ImageFiles, Unreadable, decode
from tiltmeter.io.places import elsewhere
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.types import Floats

BATCH = {"cpu": 32, "cuda": 512}
CHUNK = {"cpu": 256, "cuda": 4096}
PRECISIONS = ("auto", "float32", "bfloat16")
DECODERS = ("auto", "cpu", "gpu")
#: Images that a worker decodes at a time, or files that it reads; how many of those it is ahead.
BLOCK, FILES, AHEAD = 16, 64, 4
READERS = 5  # processes that keep up with a GPU where they only read; more are in its way
REQUESTS = 16  # threads that fetch images from elsewhere: they wait, most of the time

#: An image's hash, its pixels, and why there are none: None where it does not apply.
Prepared = tuple[str | None, Any, str | None]


@dataclass(frozen=True)
class LoaderConfig:
    """How the work is spread; what comes out depends on `precision` and `decode` alone."""

    batch: int | None = None  # None: by device
    workers: int | None = None  # that decode; None: by device and cores
    chunk: int | None = None  # images that are kept together or not at all; None: by device
    precision: str = "auto"  # float32, bfloat16; auto: the second on a GPU
    decode: str = "auto"  # who decodes plain JPEG files: cpu, gpu; auto: the second where it can
    compiled: bool = False  # torch.compile: worth it for many images
    cores: int | None = None  # workers are threads on so many; None: forked processes

    def batch_on(self, device: str) -> int:
        return self.batch or BATCH.get(device, BATCH["cpu"])

    def chunk_on(self, device: str) -> int:
        return self.chunk or CHUNK.get(device, CHUNK["cpu"])

    def precision_on(self, device: str) -> str:
        if self.precision not in PRECISIONS:
            raise UnknownNameError("precision", self.precision, PRECISIONS)
        if self.precision == "auto":
            return "bfloat16" if device == "cuda" else "float32"
        return self.precision

    def decoder_on(self, device: str) -> str:
        """pillow; or nvjpeg, whose pixels differ by a step or two, so that vectors do too."""
        if self.decode not in DECODERS:
            raise UnknownNameError("place to decode", self.decode, DECODERS)
        if self.decode != "cpu" and can_decode(device):
            return "nvjpeg"
        if self.decode == "gpu":
            raise InputError(
                "decoding on the GPU takes one (--device cuda, --engine ray:gpus=1) and the "
                "package torchvision, here and where workers are: --decode cpu does without"
            )
        return "pillow"

    def workers_on(self, device: str) -> int:
        if self.workers is not None:
            return self.workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
        # where the model computes on the cores too, one worker is enough to stay ahead of it
        return min(cores, 16) if device == "cuda" else 1


@dataclass
class Chunk:
    """What became of some images in a row."""

    start: int  # the first one's place
    hashes: list[str | None] = field(default_factory=list)  # None: not readable
    unreadable: dict[int, str] = field(default_factory=dict)  # place -> reason
    new: list[int] = field(default_factory=list)  # places of images that `vectors` are of
    vectors: Floats | None = None
    damaged: dict[str, str] = field(default_factory=dict)  # shards that were made again, and why


def embed(
    model: Any,
    pictures: ImageFiles | GeneratedImages,
    *,
    known: Callable[[str], bool] = lambda item: False,
    pace: LoaderConfig = LoaderConfig(),  # noqa: B008
) -> Iterator[Chunk]:
    """Goes over the images chunk by chunk; those `known` by their hash are not embedded."""
    device = device_of(model)
    chunk = pace.chunk_on(device)
    encode = _Encoder(model, device, pace.batch_on(device), pace.precision_on(device))
    pixels = getattr(model, "pixels", None)
    alone = KeepsSize(pixels) if pixels and decoder_of(model, pace) == "nvjpeg" else None
    prepare = _Prepare(pictures, pixels, known, alone)
    network = getattr(model, "network", None)
    if pace.compiled and network is not None and network._compiled_call_impl is None:
        network.compile()
    current = Chunk(0)
    seen: set[str] = set()
    ready = _prepared(prepare, _workers(prepare, device, pace), threads=pace.cores is not None)
    for place, (item, prepared, reason) in enumerate(ready):
        if place - current.start == chunk:
            yield _finished(current, encode, prepare)
            current = Chunk(place)
        current.hashes.append(item)
        if reason is not None:
            current.unreadable[place] = reason
        elif prepared is not None and item not in seen:
            seen.add(str(item))
            current.new.append(place)
            encode.add(prepared)
    yield _finished(current, encode, prepare)


def _workers(prepare: _Prepare, device: str, pace: LoaderConfig) -> int:
    """As many as were asked for; else as keep the model busy."""
    if pace.workers is not None:
        return pace.workers
    if pace.cores is not None:  # threads: more than one would wait for Python's lock
        return REQUESTS if prepare.fetches else int(device == "cuda" or pace.cores > 1)
    workers = pace.workers_on(device)
    if prepare.left_alone is not None and prepare.reads_only(BLOCK):
        return min(workers, READERS)
    return workers


def _finished(chunk: Chunk, encode: _Encoder, prepare: _Prepare) -> Chunk:
    chunk.vectors = encode.finish()
    for at in sorted(encode.broken, reverse=True):  # what only decoding showed
        place = chunk.new.pop(at)
        chunk.unreadable[place] = prepare.named(place, encode.broken[at])
        chunk.hashes[place - chunk.start] = None
    encode.broken = {}
    return chunk


class _Encoder:
    """Gathers prepared images into batches; one too large for the memory is halved for good.

    On a GPU batches are on their way while the model works on others, and nothing is waited for
    until a chunk is done.
    """

    def __init__(self, model: Any, device: str, batch: int, precision: str) -> None:
        self.model, self.device, self.batch, self.precision = model, device, batch, precision
        self.transfer = Transfer(device)
        self.waiting: list[Any] = []
        self.coming: deque[tuple[list[Any], Callable[[], DeviceBatch]]] = deque()
        self.done: list[Any] = []
        self.count = 0  # images of this chunk that went through
        self.broken: dict[int, str] = {}  # those that did not: which of the chunk's, and why

    def add(self, prepared: Any) -> None:
        self.waiting.append(prepared)
        if len(self.waiting) >= self.batch:
            self._send()

    def finish(self) -> Floats | None:
        if self.waiting:
            self._send()
        while self.coming:
            self._run(*self.coming.popleft())
        done, self.done, self.count = self.done, [], 0
        if not done:
            return None
        if isinstance(done[0], np.ndarray):
            return np.concatenate(done)
        return np.asarray(sys.modules["torch"].cat(done).cpu().numpy())

    def _send(self) -> None:
        batch, self.waiting = self.waiting, []
        self.coming.append((batch, self.transfer.start(batch)))
        while len(self.coming) > self.transfer.ahead:
            self._run(*self.coming.popleft())

    def _run(self, batch: list[Any], arrived: Callable[[], DeviceBatch]) -> None:
        if len(batch) > self.batch:  # more than the memory was found to hold
            while batch:
                part, batch = batch[: self.batch], batch[self.batch :]
                self._run(part, partial(self.transfer.bring, part))
            return
        try:
            vectors = self._vectors(batch, arrived)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error) or len(batch) == 1:
                raise
            self.batch = len(batch) // 2
            self._run(batch, arrived)
            return
        if vectors is not None:
            self.done.append(vectors)
        self.count += len(batch)

    def _vectors(self, batch: list[Any], arrived: Callable[[], DeviceBatch]) -> Any:
        if not hasattr(self.model, "pixels"):
            from PIL import Image

            pictures = [Image.fromarray(one) for one in batch]
            return np.asarray(to_numpy(self.model.encode_images(pictures)), np.float32)
        import torch

        found = arrived()
        self.broken |= {self.count + at: reason for at, reason in found.broken.items()}
        if found.pixels is None:
            return None
        half = self.precision == "bfloat16"
        with (
            torch.inference_mode(),
            torch.autocast(self.device, torch.bfloat16, enabled=half),
        ):
            pixels = found.pixels
            if pixels.dtype == torch.uint8:
                pixels = pixels.float() / 255
            vectors = self.model.encode_images(pixels).float()
            if half:  # their length was made one in half precision
                vectors = torch.nn.functional.normalize(vectors, dim=-1)
            return vectors


def device_of(model: Any) -> str:
    """cpu or cuda."""
    return str(getattr(model, "device", "cpu")).partition(":")[0]


def decoder_of(model: Any, pace: LoaderConfig, device: str | None = None) -> str:
    """Who decodes images for this model, here or on another device than it is on.

    One that takes no tensors is given Pillow's.
    """
    return pace.decoder_on(device or device_of(model)) if hasattr(model, "pixels") else "pillow"


@dataclass(frozen=True, eq=False)
class _Prepare:
    """What a worker does with one image: its hash, and pixels as the model takes them."""

    pictures: ImageFiles | GeneratedImages
    pixels: Callable[[Any], Any] | None
    known: Callable[[str], bool]
    left_alone: KeepsSize | None  # given where a GPU decodes: of which sizes

    def __call__(self, at: int) -> Prepared:
        data, read = None, getattr(self.pictures, "read", None)
        try:
            if read is not None:
                data = read(at)  # what is hashed is what is decoded
            item = self.pictures.hash(at) if data is None else hashlib.sha256(data).hexdigest()
            if self.known(item):
                return item, None, None
            if self.left_alone is not None and data is not None:
                size = jpeg.plain_size(data)
                if size is not None and self.left_alone(size):
                    return item, data, None
            picture = self.pictures[at] if data is None else decode(data)
        except OSError as error:
            return None, None, f"{error.filename}: {error.strerror}"
        except Unreadable as error:
            return None, None, self.named(at, str(error))
        try:
            pixels = np.asarray(picture) if self.pixels is None else _packed(self.pixels([picture]))
        except Exception as error:  # a processor's own; it must not end the whole run
            return None, None, f"{self._name(at)}: {type(error).__name__}: {error}"
        return item, pixels, None

    def block(self, start: int, stop: int) -> list[Prepared]:
        return [self(at) for at in range(start, stop)]

    @property
    def fetches(self) -> bool:
        """Whether images lie on other machines."""
        return len(self.pictures) > 0 and elsewhere(self._name(0))

    def reads_only(self, some: int) -> bool:
        """Whether the first images are all left to the GPU."""
        found = [self(at)[1] for at in range(min(some, len(self.pictures)))]
        return all(isinstance(one, bytes) for one in found)

    def named(self, at: int, said: str) -> str:
        """What was said of an image, with its name: bytes have none of their own."""
        if said.startswith("picture:"):
            return self._name(at) + said.removeprefix("picture")
        return said

    def _name(self, at: int) -> str:
        name = getattr(self.pictures, "name", None)
        return str(name(at)) if name is not None else f"row {at}"


def _packed(pixels: Any) -> Floats:
    """A quarter of the bytes, where pixels are whole steps of 1/255."""
    one = np.asarray(pixels[0], np.float32)
    steps = np.rint(one * 255)
    bytes_only = steps.min() >= 0 and steps.max() <= 255
    return steps.astype(np.uint8) if bytes_only and np.abs(one * 255 - steps).max() < 1e-3 else one


def _prepared(prepare: _Prepare, workers: int, *, threads: bool = False) -> Iterator[Prepared]:
    """Every image in order, prepared by workers that run a few blocks ahead."""
    count = len(prepare.pictures)
    block, ahead = (BLOCK, AHEAD) if prepare.left_alone is None else (FILES, AHEAD // 2)
    if workers == 0 or count <= block:
        yield from map(prepare, range(count))
        return
    pending: deque[Any] = deque()
    work = prepare.block if threads else _work
    try:
        with _threads(workers) if threads else _processes(workers, prepare) as pool:
            for start in range(0, count, block):
                pending.append(pool.submit(work, start, min(start + block, count)))
                if len(pending) > ahead * workers:
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()
    except BrokenProcessPool:
        raise InputError(
            "a process that decodes pictures died, perhaps for want of memory: fewer of them "
            "(--workers 1), or none (--workers 0)"
        ) from None


@contextmanager
def _threads(workers: int) -> Iterator[Executor]:
    """Reading, hashing, Pillow and NumPy let go of Python's lock while they work."""
    if "torch" in sys.modules:
        sys.modules["torch"].get_num_threads()  # settles those of this thread, before others say 1
    with warnings.catch_warnings():
        # decoding turns warnings off and on again, for all threads: so they stay off until the end
        warnings.simplefilter("ignore")
        with ThreadPoolExecutor(workers, initializer=_on_one_core) as pool:
            yield pool


def _processes(workers: int, prepare: _Prepare) -> Executor:
    # forked, so that the model's processor need not travel
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    return ProcessPoolExecutor(workers, context, _begin, (prepare,))


_prepare: _Prepare | None = None  # of this worker process


def _begin(prepare: _Prepare) -> None:
    """A worker process's start: it computes on one core, and it ends when its parent is killed."""
    global _prepare
    _prepare = prepare
    if sys.platform == "linux":
        die_with_parent = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(die_with_parent, signal.SIGKILL)
    _on_one_core()


def _on_one_core() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _work(start: int, stop: int) -> list[Prepared]:
    assert _prepare is not None
    return _prepare.block(start, stop)
