"""Embed images on this machine, decoded ahead by processes or threads, chunk by chunk.

A chunk is embedded completely or not at all. It ends after a number of images, or of seconds, so
that a slow model loses little if it is killed. Batches do not depend on earlier work: a run that
was killed and resumed gives the same embeddings as an uninterrupted one.
"""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tiltmeter.engine.embedding import jpeg
from tiltmeter.engine.embedding.cuda_graph import GraphedCall
from tiltmeter.engine.embedding.jpeg import JpegFile, KeepsSize, can_decode
from tiltmeter.engine.embedding.transfer import DeviceBatch, Transfer, out_of_memory
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.filesystems import is_url
from tiltmeter.io.image_files import GeneratedImages, ImageFiles, UnreadableImageError, decode
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.types import Floats

BATCH = {"cpu": 32, "cuda": 512}
CHUNK = {"cpu": 256, "cuda": 4096}
PRECISIONS = ("auto", "float32", "bfloat16")
DECODERS = ("auto", "cpu", "gpu")
#: Images that a worker decodes at a time, files that it reads at a time, and blocks ahead.
BLOCK, FILES, AHEAD = 16, 64, 4
READERS = 5  # processes that only read files for a GPU; more are slower
REQUESTS = 16  # threads that fetch remote images: they mostly wait

#: Hash, pixels, and the reason if unreadable; each may be None.
Prepared = tuple[str | None, Any, str | None]


@dataclass(frozen=True)
class LoaderConfig:
    """How images are loaded and batched; only `precision` and `decode` affect the embeddings."""

    batch: int | None = None  # None: by device
    workers: int | None = None  # decoding workers; None: by device and cores
    chunk: int | None = None  # images saved together; None: by device
    seconds: float = 60.0  # fewer are saved together if they take longer
    precision: str = "auto"  # float32, bfloat16; auto: bfloat16 on a GPU
    decode: str = "auto"  # where plain JPEG files are decoded: cpu, gpu; auto: gpu if possible
    compiled: bool = False  # torch.compile, for many images
    cores: int | None = None  # number of threads; None: forked processes

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
        """`pillow`, or `nvjpeg`, whose pixels (and so embeddings) differ slightly."""
        if self.decode not in DECODERS:
            raise UnknownNameError("value of --decode", self.decode, DECODERS)
        if self.decode != "cpu" and can_decode(device):
            return "nvjpeg"
        if self.decode == "gpu":
            raise InputError(
                "--decode gpu needs a GPU (--device cuda, --engine ray:gpus=1) and the package "
                "torchvision, here and on the workers; or use --decode cpu"
            )
        return "pillow"

    def workers_on(self, device: str) -> int:
        if self.workers is not None:
            return self.workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
        # if the model runs on the CPU too, one worker is fast enough
        return min(cores, 16) if device == "cuda" else 1


@dataclass
class Chunk:
    """Results of consecutive images."""

    start: int  # row of the first image
    hashes: list[str | None] = field(default_factory=list)  # None: unreadable
    unreadable: dict[int, str] = field(default_factory=dict)  # row -> reason
    new: list[int] = field(default_factory=list)  # rows of the images in `vectors`
    vectors: Floats | None = None
    damaged: dict[str, str] = field(
        default_factory=dict
    )  # shards that were made again, with reasons


def embed(
    model: Any,
    images: ImageFiles | GeneratedImages,
    *,
    known: Callable[[str], bool] = lambda item: False,
    config: LoaderConfig = LoaderConfig(),  # noqa: B008
    tell: Callable[[int], None] = lambda done: None,
) -> Iterator[Chunk]:
    """Embed images chunk by chunk; those whose hash is `known` are skipped.

    `tell` is called after every batch, with the number of images so far.
    """
    device = device_of(model)
    chunk = config.chunk_on(device)
    encode = _Encoder(model, device, config.batch_on(device), config.precision_on(device))
    pixels = getattr(model, "pixels", None)
    alone = KeepsSize(pixels) if pixels and decoder_of(model, config) == "nvjpeg" else None
    prepare = _Prepare(images, pixels, known, alone)
    network = getattr(model, "network", None)
    if config.compiled and network is not None and network._compiled_call_impl is None:
        network.compile()
    current, ended = Chunk(0), deque[tuple[Chunk, _Vectors]]()
    embedded: set[str] = set()
    ready = _prepared(prepare, _workers(prepare, device, config), threads=config.cores is not None)
    started = time.monotonic()
    for row, (item, prepared, reason) in enumerate(ready):
        # between batches only: which images are in one batch does not depend on time
        late = not encode.waiting and time.monotonic() - started > config.seconds
        if row > current.start and (row % chunk == 0 or late):
            ended.append((current, encode.end()))
            current, started = Chunk(row), time.monotonic()
        while ended and encode.is_ready(ended[0][1]):
            yield _finished(*ended.popleft(), prepare)
        current.hashes.append(item)
        if reason is not None:
            current.unreadable[row] = reason
        elif prepared is not None and item not in embedded:
            embedded.add(str(item))
            current.new.append(row)
            encode.add(prepared)
            if not encode.waiting:
                tell(row + 1)
    ended.append((current, encode.end()))
    encode.run_all()
    for finished in ended:
        yield _finished(*finished, prepare)


def _workers(prepare: _Prepare, device: str, config: LoaderConfig) -> int:
    """The requested number of workers, by default enough to keep the model busy."""
    if config.workers is not None:
        return config.workers
    if config.cores is not None:  # threads: more than one would wait for the GIL
        return REQUESTS if prepare.fetches else int(device == "cuda" or config.cores > 1)
    workers = config.workers_on(device)
    if prepare.keeps_size is not None and prepare.reads_only(BLOCK):
        return min(workers, READERS)
    return workers


def _finished(chunk: Chunk, vectors: _Vectors, prepare: _Prepare) -> Chunk:
    chunk.vectors = vectors.read()
    for index in sorted(vectors.broken, reverse=True):  # found only on decoding
        row = chunk.new.pop(index)
        chunk.unreadable[row] = prepare.with_name(row, vectors.broken[index])
        chunk.hashes[row - chunk.start] = None
    return chunk


class _Vectors:
    """Embeddings of a chunk, batch by batch."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.count = 0  # images done
        self.broken: dict[int, str] = {}  # undecodable ones: number in the chunk, and reason
        self.coming = 0  # batches that the model has not seen
        self.copied: Any = None  # event: when embeddings of a GPU have been copied

    def copy(self) -> None:
        """Start to copy embeddings from a GPU, while the model goes on with the next chunk."""
        if not self.done or isinstance(self.done[0], np.ndarray) or not self.done[0].is_cuda:
            return
        torch = sys.modules["torch"]
        made = torch.cat(self.done)
        self.done = [torch.empty(made.shape, dtype=made.dtype, pin_memory=True)]
        self.done[0].copy_(made, non_blocking=True)
        self.copied = torch.cuda.Event()
        self.copied.record()

    def read(self) -> Floats | None:
        if self.copied is not None:
            self.copied.synchronize()
        parts = [to_numpy(part) for part in self.done]
        return np.concatenate(parts) if parts else None


class _Encoder:
    """Collects images into batches; the batch size is halved if memory runs out.

    On a GPU batches are transferred while the model works on others, also on those of the chunk
    before: at the end of a chunk nothing waits for it.
    """

    def __init__(self, model: Any, device: str, batch: int, precision: str) -> None:
        self.model, self.device, self.batch, self.precision = model, device, batch, precision
        self.transfer = Transfer(device)
        self.waiting: list[Any] = []
        self.coming: deque[tuple[_Vectors, list[Any], Callable[[], DeviceBatch]]] = deque()
        self.vectors = _Vectors()  # of the chunk that images are added to
        self.forward: Callable[[Any], Any] = self._forward
        if device == "cuda":
            self.forward = GraphedCall(self._forward, batch)

    def add(self, prepared: Any) -> None:
        self.waiting.append(prepared)
        if len(self.waiting) >= self.batch:
            self._send()

    def end(self) -> _Vectors:
        """End a chunk: the next image belongs to another one."""
        if self.waiting:
            self._send()
        ended, self.vectors = self.vectors, _Vectors()
        if not ended.coming:
            ended.copy()
        return ended

    def is_ready(self, ended: _Vectors) -> bool:
        """Whether to read a chunk: its batches are done, and the model has more to do meanwhile."""
        return not ended.coming and bool(self.vectors.done or not self.coming)

    def run_all(self) -> None:
        """Run the batches that are still coming."""
        while self.coming:
            self._next()

    def _send(self) -> None:
        batch, self.waiting = self.waiting, []
        self.coming.append((self.vectors, batch, self.transfer.start(batch)))
        self.vectors.coming += 1
        while len(self.coming) > self.transfer.ahead:
            self._next()

    def _next(self) -> None:
        vectors, batch, arrived = self.coming.popleft()
        self._run(vectors, batch, arrived)
        vectors.coming -= 1
        if not vectors.coming and vectors is not self.vectors:
            vectors.copy()

    def _run(self, vectors: _Vectors, batch: list[Any], arrived: Callable[[], DeviceBatch]) -> None:
        if len(batch) > self.batch:  # larger than the reduced batch size
            while batch:
                part, batch = batch[: self.batch], batch[self.batch :]
                self._run(vectors, part, partial(self.transfer.bring, part))
            return
        try:
            made = self._embed(vectors, batch, arrived)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error) or len(batch) == 1:
                raise
            self.batch, self.forward = len(batch) // 2, self._forward
            self._run(vectors, batch, arrived)
            return
        if made is not None:
            vectors.done.append(made)
        vectors.count += len(batch)

    def _embed(
        self, vectors: _Vectors, batch: list[Any], arrived: Callable[[], DeviceBatch]
    ) -> Any:
        if not hasattr(self.model, "pixels"):
            from PIL import Image

            images = [Image.fromarray(array) for array in batch]
            return np.asarray(to_numpy(self.model.encode_images(images)), np.float32)
        import torch

        arrived_batch = arrived()
        vectors.broken |= {
            vectors.count + index: reason for index, reason in arrived_batch.broken.items()
        }
        if arrived_batch.pixels is None:
            return None
        with torch.inference_mode():
            return self.forward(arrived_batch.pixels)

    def _forward(self, pixels: Any) -> Any:
        """Embeddings of a batch on the device: bytes, or pixels from 0 to 1."""
        import torch

        half = self.precision == "bfloat16"
        with torch.autocast(self.device, torch.bfloat16, enabled=half), self._patches():
            if pixels.dtype == torch.uint8:
                pixels = pixels.float() / 255
            made = self.model.encode_images(pixels).float()
            # a model normalises in half precision
            return torch.nn.functional.normalize(made, dim=-1) if half else made

    def _patches(self) -> AbstractContextManager[Any]:
        """How patches of images are read: on a GPU, a product is faster than a convolution."""
        network = getattr(self.model, "network", None)
        compiled = getattr(network, "_compiled_call_impl", None) is not None
        if self.device != "cuda" or compiled:
            return nullcontext()
        from tiltmeter.engine.embedding.patches import PatchesAsProducts

        return PatchesAsProducts()


def device_of(model: Any) -> str:
    """cpu or cuda."""
    return str(getattr(model, "device", "cpu")).partition(":")[0]


def decoder_of(model: Any, config: LoaderConfig, device: str | None = None) -> str:
    """The decoder for this model, on its device or another one.

    A model that takes no tensors needs Pillow.
    """
    return config.decoder_on(device or device_of(model)) if hasattr(model, "pixels") else "pillow"


@dataclass(frozen=True, eq=False)
class _Prepare:
    """Prepares one image: its hash, and pixels as model input."""

    images: ImageFiles | GeneratedImages
    pixels: Callable[[Any], Any] | None
    known: Callable[[str], bool]
    keeps_size: KeepsSize | None  # if a GPU decodes: whether it may decode a size

    def __call__(self, row: int) -> Prepared:
        data, read = None, getattr(self.images, "read", None)
        try:
            if read is not None:
                data = read(row)  # hash and decode the same bytes
            item = self.images.hash(row) if data is None else hashlib.sha256(data).hexdigest()
            if self.known(item):
                return item, None, None
            if self.keeps_size is not None and data is not None:
                size = jpeg.plain_size(data)
                if size is not None and self.keeps_size(size):
                    return item, JpegFile(data, size), None
            image = self.images[row] if data is None else decode(data)
        except OSError as error:
            return None, None, f"{error.filename}: {error.strerror}"
        except UnreadableImageError as error:
            return None, None, self.with_name(row, str(error))
        try:
            pixels = np.asarray(image) if self.pixels is None else _packed(self.pixels([image]))
        except Exception as error:  # a processor's error must not stop the run
            return None, None, f"{self._name(row)}: {type(error).__name__}: {error}"
        return item, pixels, None

    def block(self, start: int, stop: int) -> list[Prepared]:
        return [self(row) for row in range(start, stop)]

    @property
    def fetches(self) -> bool:
        """Whether images are remote."""
        return len(self.images) > 0 and is_url(self._name(0))

    def reads_only(self, count: int) -> bool:
        """Whether the first `count` images are all decoded by the GPU."""
        prepared = [self(row)[1] for row in range(min(count, len(self.images)))]
        return all(isinstance(data, JpegFile) for data in prepared)

    def with_name(self, row: int, reason: str) -> str:
        """The reason with the image's name, which raw bytes do not have."""
        kind, colon, rest = reason.partition(":")
        return f"{self._name(row)}:{rest}" if colon and kind == "image" else reason

    def _name(self, row: int) -> str:
        name = getattr(self.images, "name", None)
        return str(name(row)) if name is not None else f"row {row}"


def _packed(pixels: Any) -> Floats:
    """Pixels as uint8 if they are multiples of 1/255, which takes a quarter of the memory."""
    array = np.asarray(pixels[0], np.float32)
    steps = np.rint(array * 255)
    bytes_only = steps.min() >= 0 and steps.max() <= 255
    return (
        steps.astype(np.uint8) if bytes_only and np.abs(array * 255 - steps).max() < 1e-3 else array
    )


def _prepared(prepare: _Prepare, workers: int, *, threads: bool = False) -> Iterator[Prepared]:
    """Prepare every image in order, by workers that run a few blocks ahead."""
    count = len(prepare.images)
    block, ahead = (BLOCK, AHEAD) if prepare.keeps_size is None else (FILES, AHEAD // 2)
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
            "a process that decodes images died, perhaps out of memory: use fewer of them "
            "(--workers 1), or none (--workers 0)"
        ) from None


@contextmanager
def _threads(workers: int) -> Iterator[Executor]:
    """A pool of threads: reading, hashing, Pillow and NumPy release the GIL."""
    if "torch" in sys.modules:
        sys.modules[
            "torch"
        ].get_num_threads()  # fixes the number for this thread before others set 1
    with warnings.catch_warnings():
        # decoding switches warnings for all threads: keep them off until the end
        warnings.simplefilter("ignore")
        with ThreadPoolExecutor(workers, initializer=_on_one_core) as pool:
            yield pool


def _processes(workers: int, prepare: _Prepare) -> Executor:
    # forked, so that the model's processor need not be pickled
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    return ProcessPoolExecutor(workers, context, _begin, (prepare,))


_prepare: _Prepare | None = None  # of this worker process


def _begin(prepare: _Prepare) -> None:
    """Start of a worker process: it uses one core, and dies with its parent."""
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
