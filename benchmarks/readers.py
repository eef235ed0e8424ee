"""Ray Data's readers next to ours: time, memory of a worker, and a file that is cut off.

    python -m benchmarks.readers --shards 8 --images 2000 --rows 250000

Tar files of images of 20 kB, and embeddings of 512 dimensions in half precision with their labels.
What is read is summed up, so that nothing is returned before it was read. Memory is that of a
process alone (RssAnon), the largest of all workers.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.collections import WorkerMemory
from tiltmeter.datasets.embeddings import EmbeddingShards, metadata_of
from tiltmeter.datasets.webdataset import TarShards
from tiltmeter.engine.engines import FailedPart
from tiltmeter.engine.named import engine_of
from tiltmeter.io.tables import Columns

BYTES, DIMENSIONS, BLOCK = 20_000, 512, 16_384
LABELS = Columns(("gender",))


def write_tars(place: Path, shards: int, images: int) -> list[str]:
    rng = np.random.default_rng(0)
    for shard in range(shards):
        with tarfile.open(place / f"{shard:05d}.tar", "w") as tar:
            for at in range(images):
                label = json.dumps({"gender": ("man", "woman")[at % 2]}).encode()
                for ending, data in (("jpg", rng.bytes(BYTES)), ("json", label)):
                    member = tarfile.TarInfo(f"{at:05d}.{ending}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return sorted(map(str, place.glob("*.tar")))


def write_embeddings(place: Path, shards: int, rows: int) -> list[str]:
    rng = np.random.default_rng(0)
    for shard in range(shards):
        out = np.lib.format.open_memmap(place / f"img_emb_{shard}.npy", "w+", np.float16,
                                        (rows, DIMENSIONS))  # fmt: skip
        for start in range(0, rows, BLOCK):
            part = out[start : start + BLOCK]
            part[:] = rng.standard_normal(part.shape, np.float32)
        out.flush()
        labels = pa.array(["man", "woman"]).take(pa.array(rng.integers(0, 2, rows)))
        captions = pa.array([f"a caption of the image with the number {at}" for at in range(rows)])
        pq.write_table(pa.table({"caption": captions, "gender": labels}),
                       place / f"metadata_{shard}.parquet")  # fmt: skip
    return sorted(map(str, place.glob("img_emb_*.npy")))


def tar_sizes(name: str) -> int:
    rows = TarShards().open(name, LABELS)
    assert rows.images is not None
    return sum(len(rows.images.read(at)) for at in range(len(rows.images)))  # type: ignore[attr-defined]


def vector_sum(name: str) -> float:
    rows = EmbeddingShards().open(name, LABELS)
    women = rows.groups["gender"].codes == rows.groups["gender"].names.index("woman")
    return sum(float(rows.vectors[at : at + BLOCK][women[at : at + BLOCK], 0].astype(float).sum())
               for at in range(0, len(rows.vectors), BLOCK))  # fmt: skip


def by_ours(work: Callable[[str], Any], files: list[str]) -> Any:
    found = list(engine_of("ray:workers=2").run(lambda: work, files))
    failed = [one.reason for one in found if isinstance(one, FailedPart)]
    assert not failed, failed
    return sum(found)


def by_read_webdataset(files: list[str]) -> Any:
    import ray

    found = ray.data.read_webdataset(files, decoder=None)
    return found.map_batches(lambda rows: {"bytes": [sum(map(len, rows["jpg"]))]}).sum("bytes")


def by_read_numpy(files: list[str]) -> Any:
    """Embeddings and labels are two datasets, which `zip` joins row by row."""
    import ray

    labels = ray.data.read_parquet([metadata_of(file) for file in files])
    labels = labels.select_columns(["gender"])
    both = ray.data.read_numpy(files).zip(labels)

    def women(rows: dict[str, Any]) -> dict[str, Any]:
        own = rows["gender"] == "woman"
        return {"sum": [float(np.stack(rows["data"])[own, 0].astype(float).sum())]}

    return both.map_batches(women, batch_size=BLOCK).sum("sum")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=250_000)
    given = parser.parse_args()
    import ray

    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init("local", num_cpus=2, object_store_memory=2 * 2**30, include_dashboard=False,
             logging_level="error", log_to_driver=False)  # fmt: skip
    ray.data.DataContext.get_current().enable_progress_bars = False
    with tempfile.TemporaryDirectory() as folder:
        tars = write_tars(Path(folder), given.shards, given.images)
        embeddings = write_embeddings(Path(folder), given.shards // 2, given.rows)
        cut = Path(folder, "cut.tar")
        cut.write_bytes(Path(tars[0]).read_bytes()[: BYTES * 50])
        jobs: dict[str, Callable[[], Any]] = {
            "tar files, ours": partial(by_ours, tar_sizes, tars),
            "tar files, read_webdataset": partial(by_read_webdataset, tars),
            "embeddings, ours": partial(by_ours, vector_sum, embeddings),
            "embeddings, read_numpy": partial(by_read_numpy, embeddings),
            "a truncated tar file, ours": partial(by_ours, tar_sizes, [*tars[:1], str(cut)]),
            "a truncated tar file, read_webdataset":
                partial(by_read_webdataset, [*tars[:1], str(cut)]),
        }  # fmt: skip
        for name, job in jobs.items():
            memory, began = WorkerMemory(), time.perf_counter()
            try:
                found = job()
            except Exception as error:  # what a reader raises is what is asked
                found = f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"
            memory.done.set()
            seconds = round(time.perf_counter() - began, 1)
            line = {"job": name, "found": found, "worker MB": round(memory.most), "s": seconds}
            print(json.dumps(line), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
