"""Images through a model on some engine: every worker keeps its chunks in the store itself.

Chunks are those of the local engine, and so are their batches: the shards have the same names and
bytes. A chunk that is worked on twice, since a worker died, is written to the same name.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tiltmeter.engine.embedding import jpeg, loader
from tiltmeter.engine.embedding.loader import Chunk, LoaderConfig, decoder_of, device_of
from tiltmeter.engine.engines import Engine, FailedPart
from tiltmeter.errors import InputError
from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.store import EmbeddingSpace

#: Chunks of a part, by device. A GPU is done with one in less than a second: files of the next are
#: read, and vectors of the last written, while it works.
CHUNKS = {"cpu": 1, "cuda": 4}

Part = tuple[int, ImageFiles | GeneratedImages]


@dataclass(frozen=True)
class EmbeddingTask:
    """What travels to a worker: how to load the model, where its vectors go."""

    load: Callable[[], Any]
    space: Path
    pace: LoaderConfig

    def __call__(self) -> Callable[[Part], list[Chunk]]:
        """Loads the model; what the store holds by now is not made again, unless it is damaged."""
        model, space, pace = self.load(), EmbeddingSpace(self.space), self.pace
        before = EmbeddingSpace(self.space)  # not added to, so that its tables are read once
        len(before)  # now, before there are threads
        if decoder_of(model, pace) == "nvjpeg":
            _try_decoding(device_of(model))
        if pace.cores is None:  # threads on those that are this worker's: Ray's must not be forked
            from tiltmeter.metrics.numpy_kernels import cores  # with numba, which is not at hand

            pace = replace(pace, cores=cores())

        def work(part: Part) -> list[Chunk]:
            start, pictures = part
            done, kept = [], []
            with ThreadPoolExecutor(1) as writer:
                for chunk in loader.embed(model, pictures, known=before.__contains__, pace=pace):
                    if chunk.vectors is not None:
                        items = [str(chunk.hashes[at - chunk.start]) for at in chunk.new]
                        kept.append(writer.submit(space.add, items, chunk.vectors))
                    done.append(
                        Chunk(
                            start + chunk.start,
                            chunk.hashes,
                            {start + at: reason for at, reason in chunk.unreadable.items()},
                            [start + at for at in chunk.new],
                        )
                    )
            for writing in kept:
                writing.result()
            damaged = before.discard_damaged(item for one in done for item in one.hashes if item)
            if damaged:
                again = work(part)
                for one, first in zip(again, done, strict=True):
                    one.new += first.new
                again[0].damaged |= damaged
                return again
            return done

        return work


def _try_decoding(device: str) -> None:
    """Refuses a GPU that does not decode: Pillow would stand in, and pixels differ from the name
    of their space."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG")
    try:
        jpeg.decode([file.getvalue()], device)
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"a worker on {socket.gethostname()} cannot decode on its GPU "
            f"({str(error).partition(chr(10))[0]}): --decode cpu does without"
        ) from error


def embed_on(
    engine: Engine,
    load: Callable[[], Any],
    pictures: ImageFiles | GeneratedImages,
    space: EmbeddingSpace,
    pace: LoaderConfig,
    device: str,
) -> Iterator[Chunk]:
    """Chunks in order, without their vectors: those are in the store by then."""
    chunk = pace.chunk_on(device)
    size = chunk * CHUNKS[device]
    pace = replace(pace, chunk=chunk)
    parts = [(at, pictures[at : at + size]) for at in range(0, len(pictures), size)]
    for (start, some), found in zip(
        parts, engine.run(EmbeddingTask(load, space.path, pace), parts), strict=True
    ):
        if isinstance(found, FailedPart):
            at = range(start, start + len(some))
            found = [Chunk(start, [None] * len(some), dict.fromkeys(at, found.reason))]
        yield from found
