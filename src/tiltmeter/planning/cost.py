"""Cost estimate of an audit of N images or captions: hours and bytes.

Speeds are those of one worker, measured on this machine or given. The rest is arithmetic: limits of
a cluster's network and disks are not included.
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
from tiltmeter.engine.ranking.top_items import top_size
from tiltmeter.errors import InputError
from tiltmeter.metrics.digest import digest
from tiltmeter.metrics.histogram import BINS, HistogramGrid
from tiltmeter.metrics.numpy_kernels import use_cores
from tiltmeter.stimuli import load

IMAGE_BYTES = 30_000  # a JPEG of 256 x 256, as written by img2dataset
CAPTION_BYTES = 60
VECTORS, TEXTS, CAPTIONS, IMAGES = 32_768, 400, 50_000, 64  # to measure the speed with
HASH_BYTES = 66  # of an image in a store
LOOPS = "measured here (1 core; the product where OMP_NUM_THREADS says)"


@dataclass(frozen=True)
class CostStep:
    """The cost of one step: its speed, and its hours and bytes for all items."""

    job: str
    unit: str
    rate: float  # of one worker
    source: str  # measured, given
    worker_hours: float  # of workers: all their time together
    hours: float  # with all workers
    read_bytes: float
    stored_bytes: float
    driver: str  # what the cost depends on


def estimate_cost(
    total: int,
    *,
    workers: int = 1,
    model: Any = None,
    rate: float | None = None,
    dimensions: int = 512,
    texts: int = TEXTS,
    groups: int = 14,
    image_bytes: float = IMAGE_BYTES,
    seed: int = 0,
) -> list[CostStep]:
    """Estimate the cost of an audit of many images and as many captions.

    Parameters
    ----------
    total
        The number of images.
    workers
        The number of workers.
    model
        A model whose speed is measured. Without `model` and `rate`, embedding is left out.
    rate
        Images per second of one worker.
    dimensions
        Of an embedding.
    texts
        The number of prompts.
    groups
        The number of groups.
    image_bytes
        The size of an image file.
    seed
        For the data that the speeds are measured with.

    Returns
    -------
    list of CostStep
    """
    if total < 1 or workers < 1:
        raise InputError(
            f"--scale and --workers must be at least 1; got {total} and {workers}",
            code="bad-option",
            value=(total, workers),
        )
    if rate is not None and rate <= 0:
        raise InputError(
            f"--rate must be more than 0 images per second; got {rate}",
            code="bad-option",
            value=rate,
        )
    steps = []
    vector = 4 * dimensions
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    measured = f"measured here ({cores} core{'s' * (cores != 1)})"

    def add(
        job: str, unit: str, speed: float, source: str, driver: str, *, read: float, stored: float
    ) -> None:
        worker_hours = total / speed / 3600
        hours = worker_hours / workers
        steps.append(CostStep(job, unit, speed, source, worker_hours, hours, read, stored, driver))

    if rate is not None or model is not None:
        add(
            "embed",
            "images",
            rate or embedding_rate(model, seed),
            "given" if rate else measured,
            "the model; decoding, if a GPU waits for it",
            read=image_bytes * total,
            stored=(vector + HASH_BYTES) * total,
        )
    add(
        "audit",
        "vectors",
        vector_rate(dimensions, texts, groups, seed),
        LOOPS,
        f"{texts} texts x {dimensions} dimensions; the top k",
        read=vector * total,
        stored=texts * BINS * groups * 8,
    )
    add(
        "captions",
        "captions",
        caption_rate(seed),
        "measured here (1 core)",
        "bytes of text: disks, then cores",
        read=CAPTION_BYTES * total,
        stored=0.0,
    )
    return steps


def vector_rate(dimensions: int, texts: int, groups: int, seed: int = 0) -> float:
    """Embeddings per second that a worker with one core summarises."""
    rng = np.random.default_rng(seed)
    images, words = (
        rng.normal(size=(n, dimensions)).astype(np.float32) for n in (VECTORS, texts)
    )  # fmt: skip
    codes = rng.integers(0, groups, VECTORS)
    grid = HistogramGrid.around(words @ images[:1000].T)

    def work() -> None:
        digest(words, images, codes, groups=groups, k=top_size(1000, VECTORS), grid=grid)

    before = use_cores(1)  # as a worker does
    try:
        return VECTORS / seconds(work)
    finally:
        use_cores(before)


def caption_rate(seed: int = 0) -> float:
    """Captions per second that one thread counts."""
    rng = np.random.default_rng(seed)
    known = ["a", "the", "of", "photo", "nurse", "doctor", "his", "her", "woman", "kind", "street"]
    rows = pa.array([" ".join(rng.choice(known, 10)) for _ in range(CAPTIONS)])
    words = Vocabulary.of(load("sobit").words)
    return CAPTIONS / seconds(lambda: count(rows, words))


def embedding_rate(model: Any, seed: int = 0) -> float:
    """Images per second that a model embeds on its device, including preprocessing."""
    from PIL import Image

    from tiltmeter.engine.embedding.loader import LoaderConfig, embed
    from tiltmeter.io.image_files import GeneratedImages

    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (IMAGES, 256, 256, 3), dtype=np.uint8)
    images = GeneratedImages(lambda row: Image.fromarray(pixels[row]), range(IMAGES))
    return IMAGES / seconds(lambda: list(embed(model, images, config=LoaderConfig(workers=0))))


def seconds(work: Callable[[], object]) -> float:
    """The best time of three runs, after one to warm up."""
    work()
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)
