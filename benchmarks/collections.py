"""Memory of driver and workers while a collection in shards is audited on Ray; results as locally.

    python -m benchmarks.collections --images 5000000
    python -m benchmarks.collections --images 20000000
    python -m benchmarks.collections --images 2000000 --dimensions 512 --on-disk /tmp/laion

Without `--on-disk`, shards are made on the fly from a seed by the workers that read them. With it,
they are written in clip-retrieval's layout, in half precision, and removed afterwards. `--tenth`
compares the first tenth with the local engine. Memory is that of a process alone (RssAnon), read
several times per second; pages of memory-mapped files are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.scale import Memory
from tiltmeter.auditing.audit import audit
from tiltmeter.datasets.shards import ShardedFaces, ShardRows
from tiltmeter.engine.indexing import index_shards
from tiltmeter.engine.named import engine_of
from tiltmeter.io.tables import Columns
from tiltmeter.types import Faces, Floats, Groups, Ints, Prompt

BLOCK = 8192  # rows that are made together
GENDERS, AGES = ("man", "woman"), ("young", "middle", "old")
COLUMNS = Columns(("gender", "age"))


@dataclass(frozen=True)
class MadeRows:
    """Embeddings of a shard, made when they are read: the first dimension is higher for women."""

    seed: int
    number: int
    rows: int
    dimensions: int

    def __len__(self) -> int:
        return self.rows

    def labels(self) -> tuple[Ints, Ints]:
        rng = np.random.default_rng([self.seed, self.number])
        return rng.integers(0, 2, self.rows), rng.integers(0, 3, self.rows)

    def __getitem__(self, at: slice) -> Floats:
        start, stop, _ = at.indices(self.rows)
        gender, _ = self.labels()
        first, last = start // BLOCK, -(-stop // BLOCK)
        blocks = [np.random.default_rng([self.seed, self.number, block]).standard_normal(
            (BLOCK, self.dimensions), np.float32) for block in range(first, last)]  # fmt: skip
        made = np.concatenate(blocks)[start - first * BLOCK : stop - first * BLOCK]
        made[:, 0] += gender[start:stop]
        return made.astype(np.float16)


@dataclass(frozen=True)
class MadeShards:
    """Opens shards that do not exist."""

    seed: int
    rows: int
    dimensions: int

    def files(self, name: str) -> list[str]:
        return []

    def open(self, name: str, columns: Columns) -> ShardRows:
        made = MadeRows(self.seed, int(name), self.rows, self.dimensions)
        gender, age = made.labels()
        groups = {"gender": Groups(gender, GENDERS, "gender"), "age": Groups(age, AGES, "age")}
        return ShardRows(groups, lambda rows: [f"{name}/{row}" for row in rows], made)


@dataclass(frozen=True)
class Words:
    """A model of random words, of which the first is nearer to the first dimension."""

    dimensions: int
    name: str = "words"
    logit_scale: float = 10.0

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        return tuple(
            Prompt(f"a photo of thing {at}", f"thing {at}", "a photo of {}", "things",
                   "word" if at < 12 else "placebo", "noun") for at in range(72)
        )  # fmt: skip

    def encode_texts(self, texts: list[str]) -> Floats:
        rng = np.random.default_rng(1)
        known = rng.normal(size=(72, self.dimensions)).astype(np.float32)
        known[0, 0] += 5
        rows = [int(text.rpartition(" ")[2]) if "thing" in text else 71 for text in texts]
        return known[rows]


def made(images: int, shard: int, dimensions: int, seed: int = 0) -> ShardedFaces:
    names = [str(at) for at in range(images // shard)]
    return ShardedFaces(MadeShards(seed, shard, dimensions), names, COLUMNS, "made")


def in_one_piece(faces: ShardedFaces) -> Faces:
    """All rows of a collection, for the local engine."""
    opened = [faces.reader.open(name, faces.columns) for name in faces.shards]
    groups = {
        name: Groups(np.concatenate([one.groups[name].codes for one in opened]),
                     opened[0].groups[name].names, name) for name in ("gender", "age")
    }  # fmt: skip
    vectors = np.concatenate([one.vectors[:].astype(np.float32) for one in opened])
    ids = [one_id for one in opened for one_id in one.ids(np.arange(len(one.vectors)))]
    return Faces(tuple(ids), groups, vectors=vectors, name=faces.name)


def write(faces: ShardedFaces, place: Path) -> Path:
    """The same collection in clip-retrieval's layout."""
    place.mkdir(parents=True)
    for at, name in enumerate(faces.shards):
        rows = faces.reader.open(name, faces.columns)
        out = np.lib.format.open_memmap(place / f"img_emb_{at}.npy", "w+", np.float16,
                                        (len(rows.vectors), rows.vectors.dimensions))  # fmt: skip
        for start in range(0, len(rows.vectors), BLOCK):
            out[start : start + BLOCK] = rows.vectors[start : start + BLOCK]
        out.flush()
        labels = {name: pa.array(by.names).take(pa.array(by.codes))
                  for name, by in rows.groups.items()}  # fmt: skip
        ids = rows.ids(np.arange(len(rows.vectors)))
        pq.write_table(pa.table({"url": ids, **labels}), place / f"metadata_{at}.parquet")
    return place


class WorkerMemory(Memory):
    """The most that any of Ray's workers held."""

    def now(self) -> float:
        most = 0.0
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "cmdline").read_bytes().startswith(b"ray::"):
                    held = (process / "status").read_text().split("RssAnon:")[1].split()[0]
                    most = max(most, int(held) / 1024)
            except (OSError, IndexError):
                continue
        return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=5_000_000)
    parser.add_argument("--shard", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--probes", nargs="+", default=["ranking", "lift"])
    parser.add_argument("--on-disk", type=Path)
    parser.add_argument("--tenth", action="store_true")
    given = parser.parse_args()
    import ray

    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init("local", num_cpus=2, object_store_memory=500 * 2**20, include_dashboard=False,
             logging_level="error", log_to_driver=False)  # fmt: skip
    images = given.images // 10 if given.tenth else given.images
    faces: Any = made(images, given.shard, given.dimensions)
    engine: Any = engine_of(f"ray:workers={given.workers}")
    asked: dict[str, Any] = {"probes": given.probes, "permutations": 200, "bootstraps": 100,
                             "cross": ["gender*age"], "k": [100, 1000]}  # fmt: skip
    try:
        source: Any = faces
        if given.on_disk is not None:
            source = f"embeddings:{write(faces, given.on_disk)}"
        driver, workers = Memory(), WorkerMemory()
        began, cpu = time.perf_counter(), time.process_time()
        if given.on_disk is None:
            source = index_shards(faces, engine, lambda what, share: None)
        indexed = time.perf_counter() - began
        run = audit(Words(given.dimensions), source, engine=engine, **asked)
        found = {
            "images": run.meta["data"]["faces"]["images"], "shards": len(faces.shards),
            "rows of results": run.table.num_rows, "index s": round(indexed, 1),
            "seconds": round(time.perf_counter() - began, 1),
            "driver CPU s": round(time.process_time() - cpu, 1),
            "driver MB": round(driver.most), "driver MB before": round(driver.first),
            "worker MB": round(workers.most),
        }  # fmt: skip
        driver.done.set(), workers.done.set()
        if given.tenth:
            whole = in_one_piece(faces) if given.on_disk is None else source
            found |= difference(run, audit(Words(given.dimensions), whole, **asked))
        print(json.dumps(found))
    finally:
        if given.on_disk is not None:
            shutil.rmtree(given.on_disk, ignore_errors=True)
        ray.shutdown()


def difference(shards: Any, local: Any) -> dict[str, Any]:
    """The largest difference of any value from that of the local engine; NDKL apart."""
    key = ("probe", "metric", "attribute", "group", "concept", "category", "template", "k",
           "experiment")  # fmt: skip
    mine = {tuple(row[name] for name in key): row for row in shards.table.to_pylist()}
    apart: dict[str, float] = {}
    compared = 0
    for row in local.table.to_pylist():
        other = mine[tuple(row[name] for name in key)]
        assert (other["n"], other["n_group"]) == (row["n"], row["n_group"])
        if row["value"] is None:
            continue
        gap = abs(other["value"] - row["value"])
        apart[row["metric"]] = max(apart.get(row["metric"], 0.0), gap)
        compared += 1
    return {"compared with local": compared, "largest difference": apart}


if __name__ == "__main__":
    main()
