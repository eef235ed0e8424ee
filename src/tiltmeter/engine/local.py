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
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tiltmeter.images import Made, Pictures, Unreadable, decode
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.types import Floats

BATCH = {"cpu": 32, "cuda": 512}
BLOCK = 16  # pictures that a worker prepares at a time
AHEAD = 4  # blocks a worker

#: A picture's hash, its pixels, and why there are none: None where it does not apply.
Prepared = tuple[str | None, Any, str | None]


@dataclass(frozen=True)
class Effort:
    """How the work is spread; none of it changes which vectors come out, but for rounding."""

    batch: int | None = None  # None: by device
    workers: int | None = None  # processes that decode; None: by device and cores
    chunk: int = 1024  # pictures that are kept together or not at all

    def batch_on(self, device: str) -> int:
        return self.batch or BATCH.get(device, BATCH["cpu"])

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
    effort: Effort = Effort(),  # noqa: B008
) -> Iterator[Chunk]:
    """Goes over the pictures chunk by chunk; those `known` by their hash are not embedded."""
    device = str(getattr(model, "device", "cpu")).partition(":")[0]
    encode = _Encoder(model, device, effort.batch_on(device))
    prepare = _Prepare(pictures, getattr(model, "pixels", None), known)
    current = Chunk(0)
    seen: set[str] = set()
    for place, (item, prepared, reason) in enumerate(_prepared(prepare, effort.workers_on(device))):
        if place - current.start == effort.chunk:
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

    def __init__(self, model: Any, device: str, batch: int) -> None:
        self.model, self.device, self.batch = model, device, batch
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

        pixels = torch.from_numpy(np.stack(list(prepared)))
        with (
            torch.inference_mode(),
            torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"),
        ):
            pixels = pixels.to(self.device, non_blocking=True)
            if pixels.dtype == torch.uint8:
                pixels = pixels.float() / 255
            return np.asarray(self.model.encode_images(pixels).float().cpu().numpy())


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
        pixels = np.asarray(picture) if self.pixels is None else _packed(self.pixels([picture]))
        return item, pixels, None

    def _name(self, at: int) -> str:
        return str(self.pictures.paths[at]) if isinstance(self.pictures, Pictures) else f"row {at}"


def _packed(pixels: Any) -> Floats:
    """A quarter of the bytes, where pixels are whole steps of 1/255."""
    one = np.asarray(pixels[0], np.float32)
    steps = np.rint(one * 255)
    return steps.astype(np.uint8) if np.abs(one * 255 - steps).max() < 1e-3 else one


def _prepared(prepare: _Prepare, workers: int) -> Iterator[Prepared]:
    """Every picture in order, prepared by processes that run a few blocks ahead."""
    count = len(prepare.pictures)
    if workers == 0 or count <= BLOCK:
        yield from map(prepare, range(count))
        return
    # forked, so that the model's processor need not travel
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    pending: deque[Any] = deque()
    with ProcessPoolExecutor(workers, context, _begin, (prepare,)) as pool:
        for start in range(0, count, BLOCK):
            pending.append(pool.submit(_work, start, min(start + BLOCK, count)))
            if len(pending) > AHEAD * workers:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


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
