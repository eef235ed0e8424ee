"""What the seam and Ray cost beside the plain loop, with one and two workers: one run, one table.

    python -m benchmarks.scale --vectors 250000 --captions 2000000

Ray is started once, before anything is timed. A job of one empty part shows what the start of a
pool of actors takes; `work` is what is left beyond it. Seconds of the clock say little where others
work on the same machine; those of the processor, of workers and of the driver, say what is paid,
and `busy` is the share of their time that workers had a part at hand, not waiting for Ray. Every
engine has one thread per process (set OMP_NUM_THREADS=1 for matrix products).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.corpus import Vocabulary, count_files
from tiltmeter.corpus.auditing import count_files_on
from tiltmeter.engine.engines import Engine, PartsEngine
from tiltmeter.engine.named import engine_of
from tiltmeter.engine.vectors import FileVectors
from tiltmeter.metrics.convention import get_convention
from tiltmeter.metrics.numpy_kernels import use_cores
from tiltmeter.probes.ranking.probe import RankingBackend, ranking
from tiltmeter.stats.resampling import Resampling
from tiltmeter.stimuli import load
from tiltmeter.types import Faces, Groups, Prompt

FILES = 16


@dataclass(frozen=True)
class Random:
    dimensions: int = 512
    name: str = "random"

    def encode_texts(self, texts: list[str]) -> np.ndarray:
        shape = (len(texts), self.dimensions)
        return np.random.default_rng(1).normal(size=shape).astype(np.float32)


@dataclass(frozen=True)
class Watched:
    """An engine whose workers write down what they took."""

    engine: Engine
    place: Path
    name: str = "watched"
    gpus: float = 0.0
    journal: None = None

    @property
    def size(self) -> int:
        return self.engine.size

    @property
    def slots(self) -> int:
        return self.engine.slots

    def run(self, make: Callable[[], Any], parts: Any) -> Iterator[Any]:
        return self.engine.run(Noting(make, self.place), parts)


@dataclass(frozen=True)
class Noting:
    make: Callable[[], Any]
    place: Path

    def __call__(self) -> Callable[[Any], Any]:
        memory, begun, first = Memory(), time.process_time(), time.time()
        work, busy = self.make(), 0.0

        def noted(part: Any) -> Any:
            nonlocal busy
            start = time.time()
            found = work(part)
            busy += time.time() - start
            told = (memory.most, time.process_time() - begun, first, time.time(), busy)
            (self.place / str(os.getpid())).write_text(" ".join(map(str, told)))
            return found

        return noted


class Memory:
    """Watches what this process holds of its own (not pages of mapped files), in MB."""

    def __init__(self) -> None:
        self.first = self.most = self.now()
        self.done = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def now(self) -> float:
        told = Path("/proc/self/status").read_text().split("RssAnon:")[1]
        return int(told.split()[0]) / 1024

    def _watch(self) -> None:
        while not self.done.wait(0.05):
            self.most = max(self.most, self.now())


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


def vectors_file(place: Path, count: int, dimensions: int) -> Path:
    file = place / f"vectors{count}.npy"
    np.lib.format.open_memmap(file, "w+", np.float32, (count, dimensions)).flush()
    rng = np.random.default_rng(0)
    with file.open("rb+") as out:
        out.seek(-4 * count * dimensions, os.SEEK_END)
        for at in range(0, count, 10_000):
            rows = min(10_000, count - at)
            out.write(rng.standard_normal((rows, dimensions), np.float32).tobytes())
    return file


def caption_files(place: Path, count: int) -> list[Path]:
    rng = np.random.default_rng(0)
    known = np.array(
        ["a", "the", "of", "photo", "nurse", "doctor", "his", "her", "woman", "street"]
    )
    rows = [" ".join(row) for row in known[rng.integers(0, len(known), (20_000, 10))]]
    files = []
    for at in range(FILES):
        table = pa.table({"caption": pa.array(rows).take(rng.integers(0, 20_000, count // FILES))})
        files.append(place / f"{at}.parquet")
        pq.write_table(table, files[-1])
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vectors", type=int, nargs="+", default=[250_000])
    parser.add_argument("--captions", type=int, default=2_000_000)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--dimensions", type=int, default=512)
    given = parser.parse_args()
    os.environ.setdefault("RAY_worker_niceness", "0")  # else they give way to all others
    use_cores(1)  # of the local engine too: a worker has one
    engines: dict[str, Engine] = {"local": PartsEngine()}
    engines |= {f"ray, {n} workers": engine_of(f"ray:workers={n}") for n in given.workers}
    prompts = [Prompt(f"thing {at}", f"thing {at}", "{}") for at in range(given.texts)]
    starts = {}
    for name, engine in engines.items():
        list(engine.run(lambda: str, [0]))  # the cluster starts with the first
        starts[name] = timed(lambda engine=engine: list(engine.run(lambda: str, [0])))[0]
    print(
        "| job | engine | start s | work s | x local | CPU s, workers | CPU s, driver | busy "
        "| a worker's memory, MB | more in the driver, MB | load |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)

        def row(job: str, work: Callable[[Engine], Any], same: Callable[[Any, Any], bool]) -> None:
            first: Any = None
            for name, engine in engines.items():
                notes = place / f"{job} {name}"
                notes.mkdir()
                memory, cpu = Memory(), time.process_time()
                took, found = timed(partial(work, Watched(engine, notes)))
                cpu = time.process_time() - cpu
                memory.done.set()
                noted = [[float(x) for x in one.read_text().split()] for one in notes.iterdir()]
                most, worked, begun, ended, busy = zip(*noted, strict=True)
                share = sum(busy) / len(busy) / (max(ended) - min(begun))
                local = name == "local"
                cpu -= sum(worked) if local else 0.0
                took -= 0.0 if local else starts[name]
                first = first or (took, found)
                assert same(first[1], found), "engines must agree"
                cells = (
                    job, name, "" if local else f"{starts[name]:.1f}", f"{took:.1f}",
                    f"{took / first[0]:.2f}", f"{sum(worked):.1f}", f"{cpu:.1f}", f"{share:.2f}",
                    f"{max(most):,.0f}", f"{memory.most - memory.first:,.0f}",
                    f"{os.getloadavg()[0]:.1f}",
                )  # fmt: skip
                print(f"| {' | '.join(cells)} |", flush=True)

        for count in given.vectors:
            file = vectors_file(place, count, given.dimensions)
            codes = np.random.default_rng(2).integers(0, 14, count)
            groups = Groups(codes, tuple(f"g{at}" for at in range(14)), "cell")
            faces = Faces(tuple(map(str, range(count))), {"cell": groups})

            def audit(engine: Engine, file: Path = file, faces: Faces = faces) -> Any:
                return ranking(
                    Random(given.dimensions), faces, prompts=prompts, attributes=["cell"],
                    convention=get_convention("tiltmeter"), resampling=Resampling(0, 0),
                    backend=RankingBackend(engine, images=FileVectors(file, 0, len(faces))),
                ).table  # fmt: skip

            row(f"{count:,} vectors", audit, lambda one, other: one.equals(other))
            file.unlink()
        if given.captions:
            files = caption_files(place, given.captions)
            words = Vocabulary.of(load("sobit").words)
            count_files(files[:1], words)  # compiled by now

            def captions(engine: Engine) -> Any:
                return count_files_on(engine, files, words)[0]

            row(
                f"{given.captions:,} captions",
                captions,
                lambda one, other: bool((one.containing == other.containing).all()),
            )


if __name__ == "__main__":
    main()
