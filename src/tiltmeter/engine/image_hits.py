"""Hits of single images, computed by workers: for datasets whose rows this process knows anyway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiltmeter.engine.engines import Engine, FailedPart
from tiltmeter.engine.parts import ImageParts, PartReader, VectorPart, run_parts
from tiltmeter.engine.vectors import Vectors
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import unit
from tiltmeter.metrics.retrieval import top_k
from tiltmeter.metrics.utility import found_in_top_k, zero_shot_correct
from tiltmeter.types import Floats, Ints, Progress


@dataclass(frozen=True, eq=False)
class ClassHits:
    """Whether the nearest class of an image is its own."""

    captions: Floats  # classes x dimensions, unit length

    def __call__(self, first: int, vectors: Floats, codes: Ints) -> Floats:
        scores = self.captions @ np.asarray(unit(vectors, "images", first)).T
        return zero_shot_correct(scores, codes)


@dataclass(frozen=True, eq=False)
class CaptionHits:
    """Whether a caption of an image is among its nearest k."""

    texts: Floats
    of: Ints  # the image of each text
    ks: Sequence[int]

    def __call__(self, first: int, vectors: Floats, codes: Ints) -> Floats:
        images = first + np.arange(len(vectors))
        found = top_k(vectors, np.asarray(self.texts, vectors.dtype), max(self.ks))
        return found_in_top_k(found.ids, images, self.of, self.ks)


@dataclass(frozen=True, eq=False)
class NearestImages:
    """The k images of a block that are nearest to each text: scores and numbers, texts x 2 x k."""

    texts: Floats
    k: int

    def __call__(self, first: int, vectors: Floats, codes: Ints) -> Floats:
        found = top_k(np.asarray(self.texts, vectors.dtype), vectors, min(self.k, len(vectors)))
        ids = np.asarray(found.ids, np.float64) + first  # exact: far below 2^53
        return np.stack([np.asarray(found.scores, np.float64), ids], axis=1)


@dataclass(frozen=True, eq=False)
class HitsTask:
    """Sent to workers: how images are read, and what is computed of each block."""

    reader: PartReader
    of_block: Callable[[int, Floats, Ints], Floats]

    def __call__(self) -> Callable[[VectorPart | range], list[Floats]]:
        return self.work

    def work(self, part: VectorPart | range) -> list[Floats]:
        """Compute the blocks of a part."""
        return [
            self.of_block(*block)
            for _, _, leaf in self.reader.leaves(part)
            for block in self.reader.blocks(leaf)
        ]


def by_blocks(
    of_block: Callable[[int, Floats, Ints], Floats],
    images: Vectors,
    codes: Ints,
    engine: Engine,
    progress: Progress,
) -> list[Floats]:
    """What is computed of every block of the images, in their order.

    Raises
    ------
    InputError
        Some images cannot be read.
    """
    parts = ImageParts.of(images, codes, engine)
    task = HitsTask(parts.reader, of_block)
    blocks: list[Any] = []
    for found in run_parts(engine, task, parts.parts(engine), progress, "scoring images"):
        if isinstance(found, FailedPart):
            raise InputError(found.reason)
        blocks += found
    return blocks


def nearest_images(
    texts: Floats, images: Vectors, k: int, engine: Engine, progress: Progress
) -> Ints:
    """The k images nearest to each text, best first; of equal ones the earlier: texts x k."""
    codes = np.zeros(len(images), np.int8)
    found = np.concatenate(
        by_blocks(NearestImages(texts, k), images, codes, engine, progress), axis=2
    )
    order = np.lexsort((found[:, 1], -found[:, 0]), axis=-1)[:, :k]
    return np.take_along_axis(found[:, 1], order, axis=1).astype(np.int64)
