"""What an audit of N images or captions takes: hours and bytes, from speeds measured here.

Speeds are those of one worker on this machine, unless they are given. What is made of them is
arithmetic: no cluster was asked, and whatever its network and disks cannot deliver comes on top.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.corpus import Vocabulary, count
from tiltmeter.engine.ranking.top_items import held
from tiltmeter.errors import InputError
from tiltmeter.metrics.digest import digest
from tiltmeter.metrics.histogram import BINS, HistogramGrid
from tiltmeter.metrics.numpy_kernels import use_cores
from tiltmeter.stimuli import load

PICTURE = 30_000  # bytes: a JPEG of 256 x 256, as img2dataset writes them
CAPTION = 60  # bytes
VECTORS, TEXTS, CAPTIONS, PICTURES = 32_768, 400, 50_000, 64  # that are measured
ITEM = 66  # bytes of a picture's hash in a store
LOOPS = "measured here (1 core; the product where OMP_NUM_THREADS says)"


@dataclass(frozen=True)
class CostStep:
    """One job over all of N: what a worker does in a second, and what all of it comes to."""

    job: str
    unit: str
    rate: float  # of one worker
    source: str  # measured, given
    hours: float  # of workers: all their time together
    wall: float  # hours, with all workers
    read: float  # bytes
    stored: float  # bytes
    driver: str  # what the cost hangs on


def scale(
    total: int,
    *,
    workers: int = 1,
    model: Any = None,
    rate: float | None = None,
    dimensions: int = 512,
    texts: int = TEXTS,
    groups: int = 14,
    picture: float = PICTURE,
    seed: int = 0,
) -> list[CostStep]:
    """The steps for `total` images and as many captions.

    Without a `model` or its `rate` (images a second of one worker) embedding is left out.
    """
    if total < 1 or workers < 1:
        raise InputError(f"--scale and --workers are at least 1; got {total} and {workers}")
    if rate is not None and rate <= 0:
        raise InputError(f"--rate must be more than 0 images a second; got {rate}")
    steps = []
    vector = 4 * dimensions
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    here = f"measured here ({cores} core{'s' * (cores != 1)})"

    def add(
        job: str, unit: str, speed: float, source: str, read: float, stored: float, driver: str
    ) -> None:
        hours = total / speed / 3600
        steps.append(
            CostStep(job, unit, speed, source, hours, hours / workers, read, stored, driver)
        )  # fmt: skip

    if rate is not None or model is not None:
        speed = rate or embedding_rate(model, seed)
        add("embed", "images", speed, "given" if rate else here, picture * total,
            (vector + ITEM) * total, "the model; decoding, where a GPU waits for it")  # fmt: skip
    summary = texts * BINS * groups * 8
    add("audit", "vectors", vector_rate(dimensions, texts, groups, seed), LOOPS,
        vector * total, summary, f"{texts} texts x {dimensions} dimensions; the top k")  # fmt: skip
    add("captions", "captions", caption_rate(seed), "measured here (1 core)", CAPTION * total, 0.0,
        "bytes of text: disks, then cores")  # fmt: skip
    return steps


def vector_rate(dimensions: int, texts: int, groups: int, seed: int = 0) -> float:
    """Vectors a second that a worker with one core takes into a digest."""
    rng = np.random.default_rng(seed)
    images, words = (
        rng.normal(size=(n, dimensions)).astype(np.float32) for n in (VECTORS, texts)
    )  # fmt: skip
    codes = rng.integers(0, groups, VECTORS)
    grid = HistogramGrid.around(words @ images[:1000].T)

    def work() -> None:
        digest(words, images, codes, groups=groups, k=held(1000, VECTORS), grid=grid)

    before = use_cores(1)  # as a worker does
    try:
        return VECTORS / seconds(work)
    finally:
        use_cores(before)


def caption_rate(seed: int = 0) -> float:
    """Captions a second that one thread counts."""
    rng = np.random.default_rng(seed)
    known = ["a", "the", "of", "photo", "nurse", "doctor", "his", "her", "woman", "kind", "street"]
    rows = pa.array([" ".join(rng.choice(known, 10)) for _ in range(CAPTIONS)])
    words = Vocabulary.of(load("sobit").words)
    return CAPTIONS / seconds(lambda: count(rows, words))


def embedding_rate(model: Any, seed: int = 0) -> float:
    """Pictures a second that the model takes where it is now, made and decoded pixels included."""
    from PIL import Image

    from tiltmeter.engine.embedding.loader import LoaderConfig, embed
    from tiltmeter.io.image_files import GeneratedImages

    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (PICTURES, 256, 256, 3), dtype=np.uint8)
    pictures = GeneratedImages(lambda row: Image.fromarray(pixels[row]), range(PICTURES))
    return PICTURES / seconds(lambda: list(embed(model, pictures, pace=LoaderConfig(workers=0))))


def seconds(work: Callable[[], object]) -> float:
    """The best of three, after one that only warms up."""
    work()
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)
