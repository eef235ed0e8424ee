"""Embed images on any engine: every worker writes its chunks to the store.

Chunks and batches are those of the local engine: the shards have the same names and bytes. A chunk
that is processed twice, because a worker died, is written to the same name.
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
from tiltmeter.store import StoredEmbeddings

#: Chunks per part, by device. A GPU needs less than a second for one: meanwhile files of the next
#: are read, and embeddings of the last written.
CHUNKS = {"cpu": 1, "cuda": 4}

Part = tuple[int, ImageFiles | GeneratedImages]


@dataclass(frozen=True)
class EmbeddingTask:
    """Sent to workers: how to load the model, and where its embeddings go."""

    load: Callable[[], Any]
    space: Path
    config: LoaderConfig

    def __call__(self) -> Callable[[Part], list[Chunk]]:
        """Load the model; embeddings in the store are not made again, unless damaged."""
        model, space, config = self.load(), StoredEmbeddings(self.space), self.config
        before = StoredEmbeddings(self.space)  # not written to, so that its tables are read once
        len(before)  # read them now, before there are threads
        if decoder_of(model, config) == "nvjpeg":
            try_decoding(device_of(model))
        if config.cores is None:  # use this worker's cores as threads: Ray's must not fork
            from tiltmeter.metrics.numpy_kernels import cores  # imports numba, so only here

            config = replace(config, cores=cores())

        def work(part: Part) -> list[Chunk]:
            start, images = part
            done, writes = [], []
            with ThreadPoolExecutor(1) as writer:
                for chunk in loader.embed(model, images, known=before.__contains__, config=config):
                    if chunk.vectors is not None:
                        items = [str(chunk.hashes[row - chunk.start]) for row in chunk.new]
                        writes.append(writer.submit(space.add, items, chunk.vectors))
                    done.append(
                        Chunk(
                            start + chunk.start,
                            chunk.hashes,
                            {start + row: reason for row, reason in chunk.unreadable.items()},
                            [start + row for row in chunk.new],
                        )
                    )
            for writing in writes:
                writing.result()
            damaged = before.discard_damaged(
                item for finished in done for item in finished.hashes if item
            )
            if damaged:
                again = work(part)
                for repeated, first in zip(again, done, strict=True):
                    repeated.new += first.new
                again[0].damaged |= damaged
                return again
            return done

        return work


def try_decoding(device: str) -> None:
    """Raise if the GPU cannot decode: falling back to Pillow would mix two decoders in a space."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG")
    try:
        jpeg.decode([file.getvalue()], device)
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"a worker on {socket.gethostname()} cannot decode on its GPU "
            f"({str(error).partition(chr(10))[0]}): use --decode cpu"
        ) from error


def embed_on(
    engine: Engine,
    load: Callable[[], Any],
    images: ImageFiles | GeneratedImages,
    space: StoredEmbeddings,
    config: LoaderConfig,
    device: str,
) -> Iterator[Chunk]:
    """Yield chunks in order, without their embeddings, which are in the store."""
    chunk = config.chunk_on(device)
    size = chunk * CHUNKS[device]
    config = replace(config, chunk=chunk)
    parts = [(start, images[start : start + size]) for start in range(0, len(images), size)]
    for (start, part_images), chunks in zip(
        parts, engine.run(EmbeddingTask(load, space.path, config), parts), strict=True
    ):
        if isinstance(chunks, FailedPart):
            rows = range(start, start + len(part_images))
            chunks = [Chunk(start, [None] * len(rows), dict.fromkeys(rows, chunks.reason))]
        yield from chunks
