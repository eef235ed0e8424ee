"""Embed, audit and captions on Ray, again and again, while workers and nodes are killed at random.

    python -m benchmarks.soak --minutes 30

Two nodes as separate processes on this machine. Somebody kills a worker every few seconds, and now
and then the second node, which comes back before the next job. Each result must be that of the
local engine, to the last byte. Memory and open files of all processes are watched: they must not
grow. At the end there is a table, and what was lost, which should be nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.scale import Random
from tiltmeter.corpus import audit_captions
from tiltmeter.engine.embedding.embed_images import Workers, embed
from tiltmeter.engine.embedding.loader import LoaderConfig
from tiltmeter.engine.engines import Engine, PartsEngine
from tiltmeter.engine.named import engine_of
from tiltmeter.engine.vectors import FileVectors
from tiltmeter.errors import InputError
from tiltmeter.io.image_files import ImageFiles
from tiltmeter.metrics.convention import get_convention
from tiltmeter.models import load_model
from tiltmeter.probes.ranking.probe import RankingBackend, ranking
from tiltmeter.stats.resampling import Resampling
from tiltmeter.store import Store
from tiltmeter.types import Faces, Groups, Prompt

PICTURES, VECTORS, DIMENSIONS, FILES = 320, 200_000, 512, 32
KILLS, NODES = (4.0, 12.0), 8  # seconds between kills; one in so many is of a node
MODEL = '''
"""Mean colours of nine parts of a picture, slowly."""
import time
import numpy as np

class Colours:
    name, fingerprint = "colours", "one"

    def encode_texts(self, texts):
        return np.ones((len(texts), 27))

    def encode_images(self, images):
        time.sleep(0.2)
        small = [np.asarray(image.resize((3, 3)), np.float32).ravel() + 1 for image in images]
        return np.stack([x / np.linalg.norm(x) for x in small])
'''


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def family(root: int) -> dict[int, str]:
    """All processes under one, with their names."""
    below: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            below.setdefault(parent(int(place.name)), []).append(int(place.name))
        except (OSError, ValueError):
            continue
    found: dict[int, str] = {}
    waiting = list(below.get(root, ()))
    while waiting:
        pid = waiting.pop()
        waiting += below.get(pid, ())
        try:
            said = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
        except OSError:
            continue
        found[pid] = said
    return found


def usage(pids: list[int]) -> tuple[float, int]:
    """Megabytes in memory and open files of some processes together."""
    memory, files = 0.0, 0
    for pid in pids:
        try:
            told = Path(f"/proc/{pid}/status").read_text()
            files += len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208
        except OSError:
            continue
        resident = [line.split()[1] for line in told.splitlines() if line.startswith("VmRSS")]
        memory += int(resident[0]) / 1024 if resident else 0.0
    return memory, files


@dataclass
class Killer:
    """Kills a worker, or the second node, at random; only what this process has started."""

    cluster: Any
    node: dict[str, Any]
    rng: random.Random
    second: Any = None
    counts: Counter[str] = field(default_factory=Counter)
    stop: threading.Event = field(default_factory=threading.Event)

    def revive(self) -> None:
        """A dead node comes back; Ray starts one from the main thread alone."""
        if self.second is None:
            self.second = self.cluster.add_node(**self.node)

    def run(self) -> None:
        while not self.stop.wait(self.rng.uniform(*KILLS)):
            if self.second is not None and self.rng.randrange(NODES) == 0:
                self.cluster.remove_node(self.second, allow_graceful=False)
                self.second = None
                self.counts["nodes"] += 1
                continue
            # those with a part at hand: on a busy machine none would ever get through its start
            below = family(os.getpid()).items()
            workers = [pid for pid, name in below if "MapWorker" in name and ".submit" in name]
            if workers:
                try:
                    os.kill(self.rng.choice(workers), signal.SIGKILL)
                    self.counts["workers"] += 1
                except ProcessLookupError:
                    continue


def material(place: Path) -> dict[str, Callable[[Engine], Any]]:
    """What is done: each job gives something that can be compared, whoever does it."""
    from PIL import Image

    rng = np.random.default_rng(0)
    (place / "album").mkdir()
    paths = tuple(place / "album" / f"{at}.png" for at in range(PICTURES))
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    pictures = ImageFiles(paths, place / "album")
    (place / "colours.py").write_text(MODEL)
    load = partial(load_model, f"python:{place / 'colours.py'}:Colours")

    def embedding(engine: Engine) -> dict[str, bytes]:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            config = LoaderConfig(batch=8, chunk=16)
            embed(
                load(), pictures, [path.name for path in paths],
                store=Store(Path(folder)), config=config, workers=Workers(engine, load),
            )  # fmt: skip
            kept = sorted(Path(folder).glob("*/*.npy"))
            return {path.name: path.read_bytes() for path in kept}

    file = place / "vectors.npy"
    out = np.lib.format.open_memmap(file, "w+", np.float32, (VECTORS, DIMENSIONS))
    for at in range(0, VECTORS, 10_000):
        out[at : at + 10_000] = rng.standard_normal((10_000, DIMENSIONS), np.float32)
    out.flush()
    del out
    codes = rng.integers(0, 14, VECTORS)
    faces = Faces(
        tuple(map(str, range(VECTORS))),
        {"cell": Groups(codes, tuple(f"g{at}" for at in range(14)), "cell")},
    )
    prompts = [Prompt(f"thing {at}", f"thing {at}", "{}") for at in range(100)]

    def audit(engine: Engine) -> bytes:
        found = ranking(
            Random(), faces, prompts=prompts, attributes=["cell"],
            convention=get_convention("tiltmeter"), resampling=Resampling(0, 0),
            backend=RankingBackend(engine, images=FileVectors(file, 0, VECTORS)),
        )  # fmt: skip
        assert not found.record["parts_not_read"]
        return packed(found.table)

    (place / "captions").mkdir()
    known = ["a", "the", "of", "photo", "nurse", "doctor", "his", "her", "woman", "street"]
    rows = pa.array([" ".join(row) for row in rng.choice(known, (20_000, 10))])
    for at in range(FILES):
        table = pa.table({"caption": rows.take(rng.integers(0, 20_000, 250_000))})
        pq.write_table(table, place / "captions" / f"{at}.parquet")

    def captions(engine: Engine) -> bytes:
        run = audit_captions(place / "captions", engine=engine)
        return packed(run.table) + packed(run.instances["captions"])

    return {"embed": embedding, "audit": audit, "captions": captions}


def packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=2.0, help="minutes between lines")
    given = parser.parse_args()
    os.environ.setdefault("RAY_worker_niceness", "0")  # else they give way to all others
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 200 * 2**20}
    place = Path(tempfile.mkdtemp(prefix="soak"))
    lost, done, again = 0, Counter[str](), 0
    try:
        jobs = material(place)
        expected = {name: job(PartsEngine()) for name, job in jobs.items()}
        cluster = Cluster(initialize_head=True, head_node_args=node)
        rng = random.Random(given.seed)
        killer = Killer(cluster, node, rng)
        killer.revive()
        engine = engine_of(f"ray:workers=2,cpus=0.5,address={cluster.address}")
        for job in jobs.values():  # all that is loaded once is loaded by now
            job(engine)
        thread = threading.Thread(target=killer.run, daemon=True)
        thread.start()
        print(
            "| minute | rounds of embed, audit, captions | results that differ | workers killed "
            "| nodes killed | driver MB | driver files | all others MB | their files | load |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|")
        start, shown = time.monotonic(), -given.every

        def line() -> None:
            others = [pid for pid, name in family(os.getpid()).items() if "MapWorker" not in name]
            mine, theirs = usage([os.getpid()]), usage(others)
            counts = ", ".join(str(done[name]) for name in jobs)
            print(
                f"| {(time.monotonic() - start) / 60:.1f} | {counts} | {lost} "
                f"| {killer.counts['workers']} | {killer.counts['nodes']} | {mine[0]:,.0f} "
                f"| {mine[1]} | {theirs[0]:,.0f} | {theirs[1]} | {os.getloadavg()[0]:.1f} |",
                flush=True,
            )

        while (minute := (time.monotonic() - start) / 60) < given.minutes:
            for name, job in jobs.items():
                killer.revive()
                assert thread.is_alive()
                try:
                    found = job(engine)
                except InputError as error:  # Ray gave up: the user would call once more
                    again += 1
                    print(f"{name} was to be called again: {error}", file=sys.stderr)
                    found = job(engine)
                done[name] += 1
                lost += found != expected[name]
            if minute - shown >= given.every:
                line()
                shown = minute
        line()
        killer.stop.set()
        thread.join()
        print(f"\n{sum(done.values())} jobs, {lost} with another result than the local engine's, "
              f"{again} called again")  # fmt: skip
        import ray

        ray.shutdown()
        cluster.shutdown()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
