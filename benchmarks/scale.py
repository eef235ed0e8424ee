"""What the seam and Ray cost beside the plain loop, with one and two workers: one run, one table.

    python -m benchmarks.scale --vectors 250000 --captions 2000000

Ray is started once, before anything is timed. A job of one empty part shows what the start of a
pool of actors takes; `work` is what is left beyond it. Seconds of the clock say little where others
work on the same machine; those of the processor, of workers and of the driver, say what is paid.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
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
from tiltmeter.engine.seam import Engine, Local, engine_of
from tiltmeter.engine.vectors import Mapped
from tiltmeter.metrics.convention import get_convention
from tiltmeter.probes.ranking_by_parts import ranking_by_parts
from tiltmeter.stimuli import load
from tiltmeter.types import Faces, Groups, Prompt

DIMENSIONS, TEXTS, FILES = 512, 400, 16


class Random:
    name = "random"

    def encode_texts(self, texts: list[str]) -> np.ndarray:
        return np.random.default_rng(1).normal(size=(len(texts), DIMENSIONS)).astype(np.float32)


@dataclass(frozen=True)
class Watched:
    """An engine whose workers write down the most memory that they had."""

    engine: Engine
    place: Path
    name: str = "watched"
    gpus: float = 0.0

    def run(self, make: Callable[[], Any], parts: Any) -> Iterator[Any]:
        return self.engine.run(Noting(make, self.place), parts)


@dataclass(frozen=True)
class Noting:
    make: Callable[[], Any]
    place: Path

    def __call__(self) -> Callable[[Any], Any]:
        work, begun = self.make(), time.process_time()

        def noted(part: Any) -> Any:
            found = work(part)
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            (self.place / str(os.getpid())).write_text(f"{most} {time.process_time() - begun}")
            return found

        return noted


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


def vectors_file(place: Path, count: int) -> Path:
    file = place / f"vectors{count}.npy"
    out = np.lib.format.open_memmap(file, "w+", np.float32, (count, DIMENSIONS))
    rng = np.random.default_rng(0)
    for at in range(0, count, 10_000):
        stop = min(at + 10_000, count)
        out[at:stop] = rng.standard_normal((stop - at, DIMENSIONS), np.float32)
    out.flush()
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
    given = parser.parse_args()
    os.environ.setdefault("RAY_worker_niceness", "0")  # else they give way to all others
    engines: dict[str, Engine] = {"local": Local()}
    engines |= {f"ray, {n} workers": engine_of(f"ray:workers={n}") for n in given.workers}
    prompts = [Prompt(f"thing {at}", f"thing {at}", "{}") for at in range(TEXTS)]
    starts = {}
    for name, engine in engines.items():
        list(engine.run(lambda: str, [0]))  # the cluster starts with the first
        starts[name] = timed(lambda engine=engine: list(engine.run(lambda: str, [0])))[0]
    print(
        "| job | engine | start s | work s | x local | CPU s, workers | CPU s, driver "
        "| most memory of a worker, MB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)

        def row(job: str, work: Callable[[Engine], Any], same: Callable[[Any, Any], bool]) -> None:
            first: Any = None
            for name, engine in engines.items():
                notes = place / f"{job} {name}"
                notes.mkdir()
                cpu = time.process_time()
                took, found = timed(partial(work, Watched(engine, notes)))
                cpu = time.process_time() - cpu
                noted = [one.read_text().split() for one in notes.iterdir()]
                most, worked = max(int(one[0]) for one in noted), sum(float(x[1]) for x in noted)
                cpu -= worked if name == "local" else 0.0
                took -= starts[name] if name != "local" else 0.0
                first = first or (took, found)
                assert same(first[1], found), "engines must agree"
                start = f"{starts[name]:.1f}" if name != "local" else ""
                ratio = took / first[0]
                print(
                    f"| {job} | {name} | {start} | {took:.1f} | {ratio:.2f} | {worked:.1f} "
                    f"| {cpu:.1f} | {most:,} |",
                    flush=True,
                )

        for count in given.vectors:
            file = vectors_file(place, count)
            codes = np.random.default_rng(2).integers(0, 14, count)
            groups = Groups(codes, tuple(f"g{at}" for at in range(14)), "cell")
            faces = Faces(tuple(map(str, range(count))), {"cell": groups})

            def audit(engine: Engine, file: Path = file, faces: Faces = faces) -> Any:
                return ranking_by_parts(
                    Random(), faces, Mapped(file, 0, len(faces)), prompts=prompts,
                    attributes=["cell"], convention=get_convention("tiltmeter"), engine=engine,
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
                lambda one, other: bool((one.holding == other.holding).all()),
            )


if __name__ == "__main__":
    main()
