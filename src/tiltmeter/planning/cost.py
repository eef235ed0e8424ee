"""Cost estimate of an audit of N images or captions: hours, bytes, memory, and what fails first.

Speeds are those of one worker or of the driver, measured on this machine or given. The rest is
arithmetic; `limits` compares what is needed with what there is.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.corpus import Vocabulary, count
from tiltmeter.datasets.embeddings import EmbeddingShards
from tiltmeter.datasets.shards import ShardSummary, summarise
from tiltmeter.datasets.webdataset import TarShards
from tiltmeter.engine.parts import MOST_IMAGES, PARTS_PER_WORKER
from tiltmeter.engine.ranking.top_items import top_size
from tiltmeter.errors import InputError
from tiltmeter.io.filesystems import list_files
from tiltmeter.io.tables import Columns
from tiltmeter.metrics.digest import digest
from tiltmeter.metrics.group_lift import GroupScores
from tiltmeter.metrics.histogram import BINS, HistogramGrid
from tiltmeter.metrics.numpy_kernels import use_cores
from tiltmeter.stimuli import load
from tiltmeter.types import Groups

IMAGE_BYTES = 30_000  # a JPEG of 256 x 256, as written by img2dataset
CAPTION_BYTES = 60
VECTORS, TEXTS, CAPTIONS, IMAGES = 32_768, 400, 50_000, 64  # to measure the speed with
HASH_BYTES = 66  # of an image in a store
LABEL_BYTES = 2  # of a label column, compressed
IMAGE_SHARD, VECTOR_SHARD = 10_000, 1_000_000  # rows of a shard: img2dataset's, clip-retrieval's
LISTED = 500  # files and images to measure listing and indexing with
BANDWIDTH = 1.25e9  # bytes per second of a worker: 10 Gbit/s
#: Bytes of a driver that has done nothing, with Ray; and tables of counts that it has at a time.
DRIVER_BYTES, COPIES = 4e8, 4
ONE_CORE = "measured here, 1 core"
NEUTRAL = 358  # words of the default list that lift compares with
#: Steps of the driver, which more workers do not share.
BY_DRIVER = ("list", "merge")


@dataclass(frozen=True)
class CostStep:
    """The cost of one step: its speed, and its hours and bytes for all items."""

    job: str
    unit: str
    rate: float  # of one worker, or of the driver
    source: str  # measured, given
    worker_hours: float  # of all workers together, or of the driver
    hours: float  # with all workers
    read_bytes: float
    stored_bytes: float
    depends_on: str


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
    shard: int | None = None,
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
    shard
        Images of a shard. Defaults to img2dataset's 10,000 per tar file, or to clip-retrieval's
        1,000,000 per file of embeddings.
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
    measured = f"measured here, {cores} core{'s' * (cores != 1)}"

    products = ONE_CORE if os.environ.get("OMP_NUM_THREADS") == "1" else (
        f"{ONE_CORE}, but matrix products on all: set OMP_NUM_THREADS=1"
    )  # fmt: skip
    in_images = rate is not None or model is not None
    shard = shard or (IMAGE_SHARD if in_images else VECTOR_SHARD)
    shards = -(-total // shard)

    def add(
        job: str, unit: str, speed: float, source: str, depends_on: str, *,
        items: float = total, read: float = 0.0, stored: float = 0.0,
    ) -> None:  # fmt: skip
        worker_hours = items / speed / 3600
        hours = worker_hours if job in BY_DRIVER else worker_hours / workers
        steps.append(
            CostStep(job, unit, speed, source, worker_hours, hours, read, stored, depends_on)
        )

    add("list", "names", listing_rate(), "measured here, a local directory",
        "requests to an object store, 1,000 names each", items=shards)  # fmt: skip
    if in_images:
        add("index", "images", tar_rate(seed), ONE_CORE,
            "headers and JSON of tar files, read from a local disk")  # fmt: skip
        add(
            "embed",
            "images",
            rate or embedding_rate(model, seed),
            "given" if rate else measured,
            "the model; decoding, if a GPU waits for it",
            read=image_bytes * total,
            stored=(vector + HASH_BYTES) * total,
        )
    else:
        vector = 2 * dimensions  # made elsewhere, in half precision
        add("index", "labels", label_rate(seed), ONE_CORE, "columns of Parquet files",
            read=LABEL_BYTES * total)  # fmt: skip
    add(
        "ranking",
        "vectors",
        vector_rate(dimensions, texts, groups, seed),
        products,
        f"{texts} texts x {dimensions} dimensions; the top k",
        read=vector * total,
        stored=texts * BINS * groups * 8,
    )
    add("lift", "vectors", lift_rate(dimensions, texts + NEUTRAL, groups, seed), products,
        f"{texts} texts and {NEUTRAL} neutral words x {dimensions} dimensions",
        read=vector * total)  # fmt: skip
    parts = max(PARTS_PER_WORKER * workers, -(-total // MOST_IMAGES))
    add("merge", "parts", merge_rate(texts, groups, seed), ONE_CORE,
        f"{texts} texts x {BINS} bins x {groups} groups of each part", items=parts)  # fmt: skip
    add(
        "captions",
        "captions",
        caption_rate(seed),
        ONE_CORE,
        "bytes of text: disks, then cores",
        read=CAPTION_BYTES * total,
    )
    return steps


class Limit(NamedTuple):
    """Something that may run out: what is needed, what there is, and the ratio."""

    name: str
    needed: float
    available: float
    unit: str
    note: str

    @property
    def ratio(self) -> float:
        return self.needed / self.available


def limits(
    steps: Sequence[CostStep],
    total: int,
    *,
    workers: int,
    texts: int = TEXTS,
    groups: int = 14,
    shard: int | None = None,
    bandwidth: float = BANDWIDTH,
    memory: float | None = None,
) -> list[Limit]:
    """What is needed of memory, network and the driver's time, the scarcest first.

    Parameters
    ----------
    steps
        What `estimate_cost` gave.
    total, workers, texts, groups, shard
        As for `estimate_cost`.
    bandwidth
        Bytes per second that each worker can read.
    memory
        Bytes of memory of the driver. Defaults to those of this machine.

    Returns
    -------
    list of Limit
        A ratio above 1 means that it fails, or that more workers do not help.

    Examples
    --------
    >>> steps = [CostStep("embed", "images", 1000.0, "given", 10.0, 1.0, 3.6e12, 0.0, "")]
    >>> limits(steps, 10**6, workers=10, bandwidth=1e8, memory=4e9)[0].name
    'reading by a worker during embed'
    """
    jobs = {step.job: step for step in steps}
    shard = shard or (IMAGE_SHARD if "embed" in jobs else VECTOR_SHARD)
    table = texts * BINS * groups * 8.0
    driver = DRIVER_BYTES + shard_bytes(groups) * -(-total // shard) + COPIES * table
    found = [
        Limit("memory of the driver", driver, memory or _memory(), "bytes",
              f"{COPIES} tables of {texts} x {BINS} x {groups} counts; names and counts of "
              f"{-(-total // shard):,} shards"),
    ]  # fmt: skip
    each = {step.job: step.read_bytes / (step.hours * 3600) / workers for step in steps
            if step.hours}  # fmt: skip
    most = max(each, key=lambda job: each[job])
    if each[most]:
        found.append(Limit(f"reading by a worker during {most}", each[most], bandwidth,
                           "bytes per second", "network or disk; less in other steps"))  # fmt: skip
    if "merge" in jobs and "ranking" in jobs:
        found.append(Limit("time of the driver", jobs["merge"].hours, jobs["ranking"].hours,
                           "hours", "merging, while workers rank"))  # fmt: skip
    return sorted(found, key=lambda limit: -limit.ratio)


def total_hours(steps: Sequence[CostStep]) -> float:
    """Hours of an audit of the images: steps one after the other, except merging while ranking."""
    hours = {step.job: step.hours for step in steps}
    ranking = max(hours.pop("ranking", 0.0), hours.pop("merge", 0.0))
    return ranking + sum(taken for job, taken in hours.items() if job != "captions")


def shard_bytes(groups: int) -> float:
    """Bytes that the driver keeps of a shard: its name, rows, and images by group."""
    tracemalloc.start()
    try:
        kept = {f"s3://bucket/laion/shards/{at:08d}.tar": ShardSummary(
                    10_000, {(f"group {g}",): 700 + at for g in range(groups)}, f"{at:064d}")
                for at in range(500)}  # fmt: skip
        return tracemalloc.get_traced_memory()[0] / len(kept)
    finally:
        tracemalloc.stop()


def listing_rate() -> float:
    """Names of files per second that this process lists."""
    with tempfile.TemporaryDirectory() as folder:
        for at in range(LISTED):
            Path(folder, f"{at}.tar").touch()
        return LISTED / seconds(lambda: list_files(folder, ".tar"))


def tar_rate(seed: int = 0) -> float:
    """Images per second that a worker finds in tar files, with their labels."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "0.tar")
        with tarfile.open(place, "w") as tar:
            for at in range(LISTED):
                label = json.dumps({"gender": ("man", "woman")[at % 2]}).encode()
                for ending, data in (("jpg", rng.bytes(4000)), ("json", label)):
                    member = tarfile.TarInfo(f"{at:05d}.{ending}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        columns = Columns(("gender",))
        return LISTED / seconds(lambda: TarShards().open(str(place), columns))


def label_rate(seed: int = 0) -> float:
    """Rows per second whose labels a worker counts in Parquet files."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        codes = rng.integers(0, 7, VECTORS)
        np.save(Path(folder, "img_emb_0.npy"), np.zeros((VECTORS, 1), np.float16))
        labels = pa.array([f"group {code}" for code in codes])
        urls = pa.array([f"http://host/{at}.jpg" for at in range(VECTORS)])
        pq.write_table(pa.table({"url": urls, "race": labels}),
                       Path(folder, "metadata_0.parquet"))  # fmt: skip
        columns, name = Columns(("race",)), str(Path(folder, "img_emb_0.npy"))
        return VECTORS / seconds(lambda: summarise(EmbeddingShards().open(name, columns), columns))


def merge_rate(texts: int, groups: int, seed: int = 0) -> float:
    """Parts per second that the driver receives and merges."""
    rng = np.random.default_rng(seed)
    images, words = (rng.normal(size=(n, 8)).astype(np.float32) for n in (4096, texts))
    grid = HistogramGrid.around(words @ images[:1000].T)
    part = digest(words, images, rng.integers(0, groups, 4096), groups=groups,
                  k=top_size(1000, 4096), grid=grid)  # fmt: skip
    sent = pickle.dumps(replace(part, histogram=part.histogram.packed()), protocol=5)
    total = replace(part, histogram=part.histogram.unpacked())
    return 1 / seconds(lambda: total.absorb(pickle.loads(sent)))


def _memory() -> float:
    """Bytes of memory of this machine."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


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


def lift_rate(dimensions: int, texts: int, groups: int, seed: int = 0) -> float:
    """Embeddings per second of which a worker with one core summarises the scores by group."""
    rng = np.random.default_rng(seed)
    images, words = (
        rng.normal(size=(n, dimensions)).astype(np.float32) for n in (VECTORS // 4, texts)
    )  # fmt: skip
    codes = rng.integers(0, groups, len(images))
    by = Groups(codes, tuple(map(str, range(groups))), "cell")
    before = use_cores(1)
    try:
        return len(images) / seconds(lambda: GroupScores.of(words @ images.T, by))
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
