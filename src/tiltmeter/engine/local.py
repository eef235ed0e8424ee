"""Pictures through a model on this machine: decoded ahead in worker processes, in fixed chunks.

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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.images import Made, Pictures, Unreadable, decode
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.types import Floats

BATCH = {"cpu": 32, "cuda": 512}
CHUNK = {"cpu": 256, "cuda": 4096}
PRECISIONS = ("auto", "float32", "bfloat16")
BLOCK = 16  # pictures that a worker prepares at a time
AHEAD = 4  # blocks a worker

#: A picture's hash, its pixels, and why there are none: None where it does not apply.
Prepared = tuple[str | None, Any, str | None]


@dataclass(frozen=True)
class Pace:
    """How the work is spread; only `precision` changes what comes out by more than rounding."""

    batch: int | None = None  # None: by device
    workers: int | None = None  # processes that decode; None: by device and cores
    chunk: int | None = None  # pictures that are kept together or not at all; None: by device
    precision: str = "auto"  # float32, bfloat16; auto: the second on a GPU

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

    def workers_on(self, device: str) -> int:
        if self.workers is not None:
            return self.workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
        # where the model computes on the cores too, one process is enough to stay ahead of it
        return min(cores, 16) if device == "cuda" else 1


@dataclass
class Chunk:
    """What became of some pictures in a row."""

    start: int  # the first one's place
    hashes: list[str | None] = field(default_factory=list)  # None: not readable
    unreadable: dict[int, str] = field(default_factory=dict)  # place -> reason
    new: list[int] = field(default_factory=list)  # places of pictures that `vectors` are of
    vectors: Floats | None = None


def embed(
    model: Any,
    pictures: Pictures | Made,
    *,
    known: Callable[[str], bool] = lambda item: False,
    pace: Pace = Pace(),  # noqa: B008
) -> Iterator[Chunk]:
    """Goes over the pictures chunk by chunk; those `known` by their hash are not embedded."""
    device = device_of(model)
    chunk = pace.chunk_on(device)
    encode = _Encoder(model, device, pace.batch_on(device), pace.precision_on(device))
    prepare = _Prepare(pictures, getattr(model, "pixels", None), known)
    current = Chunk(0)
    seen: set[str] = set()
    for place, (item, prepared, reason) in enumerate(_prepared(prepare, pace.workers_on(device))):
        if place - current.start == chunk:
            current.vectors = encode.finish()
            yield current
            current = Chunk(place)
        current.hashes.append(item)
        if reason is not None:
            current.unreadable[place] = reason
        elif prepared is not None and item not in seen:
            seen.add(str(item))
            current.new.append(place)
            encode.add(prepared)
    current.vectors = encode.finish()
    yield current


class _Encoder:
    """Gathers prepared pictures into batches; one too large for the memory is halved for good."""

    def __init__(self, model: Any, device: str, batch: int, precision: str) -> None:
        self.model, self.device, self.batch, self.precision = model, device, batch, precision
        self.waiting: list[Any] = []
        self.done: list[Floats] = []

    def add(self, prepared: Any) -> None:
        self.waiting.append(prepared)
        if len(self.waiting) >= self.batch:
            self._run()

    def finish(self) -> Floats | None:
        while self.waiting:
            self._run()
        done, self.done = self.done, []
        return np.concatenate(done) if done else None

    def _run(self) -> None:
        now = self.waiting[: self.batch]
        try:
            vectors = self._vectors(now)
        except (MemoryError, RuntimeError) as error:
            if not _out_of_memory(error) or self.batch == 1:
                raise
            self.batch = max(1, self.batch // 2)
            return
        self.done.append(vectors)
        self.waiting = self.waiting[self.batch :]

    def _vectors(self, prepared: Sequence[Any]) -> Floats:
        if not hasattr(self.model, "pixels"):
            from PIL import Image

            pictures = [Image.fromarray(one) for one in prepared]
            return np.asarray(to_numpy(self.model.encode_images(pictures)), np.float32)
        import torch

        if len({one.dtype for one in prepared}) > 1:  # some in bytes, some not
            prepared = [one / np.float32(255) if one.dtype == np.uint8 else one for one in prepared]
        pixels = torch.from_numpy(np.stack(list(prepared)))
        half = self.precision == "bfloat16"
        with (
            torch.inference_mode(),
            torch.autocast(self.device, torch.bfloat16, enabled=half),
        ):
            pixels = pixels.to(self.device, non_blocking=True)
            if pixels.dtype == torch.uint8:
                pixels = pixels.float() / 255
            vectors = self.model.encode_images(pixels).float()
            if half:  # their length was made one in half precision
                vectors = torch.nn.functional.normalize(vectors, dim=-1)
            return np.asarray(vectors.cpu().numpy())


def device_of(model: Any) -> str:
    """cpu or cuda."""
    return str(getattr(model, "device", "cpu")).partition(":")[0]


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "out of memory" in str(error).lower()


@dataclass(frozen=True, eq=False)
class _Prepare:
    """What a worker does with one picture: its hash, and pixels as the model takes them."""

    pictures: Pictures | Made
    pixels: Callable[[Any], Any] | None
    known: Callable[[str], bool]

    def __call__(self, at: int) -> Prepared:
        data = None
        try:
            if isinstance(self.pictures, Pictures):
                data = self.pictures.paths[at].read_bytes()  # what is hashed is what is decoded
            item = self.pictures.hash(at) if data is None else hashlib.sha256(data).hexdigest()
            if self.known(item):
                return item, None, None
            picture = self.pictures[at] if data is None else decode(data)
        except OSError as error:
            return None, None, f"{error.filename}: {error.strerror}"
        except Unreadable as error:
            return None, None, str(error).replace("picture", self._name(at), 1)
        try:
            pixels = np.asarray(picture) if self.pixels is None else _packed(self.pixels([picture]))
        except Exception as error:  # a processor's own; it must not end the whole run
            return None, None, f"{self._name(at)}: {type(error).__name__}: {error}"
        return item, pixels, None

    def _name(self, at: int) -> str:
        return str(self.pictures.paths[at]) if isinstance(self.pictures, Pictures) else f"row {at}"


def _packed(pixels: Any) -> Floats:
    """A quarter of the bytes, where pixels are whole steps of 1/255."""
    one = np.asarray(pixels[0], np.float32)
    steps = np.rint(one * 255)
    bytes_only = steps.min() >= 0 and steps.max() <= 255
    return steps.astype(np.uint8) if bytes_only and np.abs(one * 255 - steps).max() < 1e-3 else one


def _prepared(prepare: _Prepare, workers: int) -> Iterator[Prepared]:
    """Every picture in order, prepared by processes that run a few blocks ahead."""
    count = len(prepare.pictures)
    if workers == 0 or count <= BLOCK:
        yield from map(prepare, range(count))
        return
    # forked, so that the model's processor need not travel
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    pending: deque[Any] = deque()
    try:
        with ProcessPoolExecutor(workers, context, _begin, (prepare,)) as pool:
            for start in range(0, count, BLOCK):
                pending.append(pool.submit(_work, start, min(start + BLOCK, count)))
                if len(pending) > AHEAD * workers:
                    yield from pending.popleft().result()
            while pending:
                yield from pending.popleft().result()
    except BrokenProcessPool:
        raise InputError(
            "a process that decodes pictures died, perhaps for want of memory: fewer of them "
            "(--workers 1), or none (--workers 0)"
        ) from None


_prepare: _Prepare | None = None  # of this worker process


def _begin(prepare: _Prepare) -> None:
    """A worker's start: it computes on one core, and it ends when its parent is killed."""
    global _prepare
    _prepare = prepare
    if sys.platform == "linux":
        die_with_parent = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(die_with_parent, signal.SIGKILL)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _work(start: int, stop: int) -> list[Prepared]:
    assert _prepare is not None
    return [_prepare(at) for at in range(start, stop)]
