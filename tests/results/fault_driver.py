"""Saves a run, a shard and a bundle with one fault each, in children of this process.

Run by test_faults.py with faults.c preloaded. Prints one JSON line per case: what was done, how the
child ended, and what a reader then finds.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tiltmeter.errors import TiltmeterError
from tiltmeter.judge.bundle.pack import bundle
from tiltmeter.judge.bundle.verify import verify
from tiltmeter.results import INSTANCES, Run, atomic, rows
from tiltmeter.store import Store, StoredEmbeddings

FAULTS = ctypes.CDLL(None)
MODES = {"crash": (2, 0), "ENOSPC": (3, errno.ENOSPC), "EIO": (3, errno.EIO), "short": (4, 0)}


def run(value: float) -> Run:
    table = rows(50, metric="ndkl", probe="ranking", value=value)
    return Run(table, {"seed": 0}, {"ranking": INSTANCES.empty_table()})


def value_of(path: Path) -> float:
    return float(Run.load(path).table["value"][0].as_py())


def child(work: Callable[[], object], mode: str, at: int) -> tuple[str, int]:
    """How work ends with a fault at its operation `at`, and how many it has."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        kind, number = MODES[mode]
        FAULTS.faults_arm(kind, at, number)
        try:
            work()
            end = 0
        except (TiltmeterError, OSError):
            end = 3
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            end = 4
        count = FAULTS.faults_count()
        FAULTS.faults_arm(0, -1, 0)
        os.write(write, str(count).encode())
        os._exit(end)
    os.close(write)
    with os.fdopen(read) as pipe:
        count = int(pipe.read() or 10**6)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {0: "done", 3: "error", 99: "crash"}.get(code, f"code {code}"), count


def cases(
    name: str, mode: str, make: Callable[[], object], work: Callable[[], object],
    look: Callable[[], object],
) -> None:  # fmt: skip
    """A fault at each operation in turn, from the same state each time."""
    at = 0
    while True:
        make()
        end, count = child(work, mode, at)
        found: object
        try:
            found = look()
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        print(json.dumps({"what": name, "mode": mode, "at": at, "end": end, "found": found}))
        at += 1
        if at > count:
            return


def main(folder: Path, modes: list[str]) -> None:
    place = folder / "runs"
    out = place / "run.tiltmeter.zip"

    def fresh() -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        run(1.0).save(place / "run")

    def look() -> object:
        found = value_of(place / "run")
        atomic.recover(place / "run")
        return [found, sorted(path.name for path in place.iterdir())]

    def save() -> None:
        run(2.0).save(place / "run", replace=True)

    exchange = atomic.exchange

    def no_exchange(first: Path, second: Path) -> None:
        raise OSError(errno.ENOSYS, "none here")

    for mode in modes:
        cases("run, exchanged", mode, fresh, save, look)
        atomic.exchange = no_exchange
        cases("run, moved", mode, fresh, save, look)
        atomic.exchange = exchange

        def shard() -> None:
            shutil.rmtree(place, ignore_errors=True)
            (place / "space").mkdir(parents=True)
            StoredEmbeddings(place / "space").add(["first"], np.ones((1, 8), np.float32))

        def add() -> None:
            StoredEmbeddings(place / "space").add(["second"], np.full((1, 8), 2, np.float32))

        def in_store() -> object:
            space = StoredEmbeddings(place / "space")
            found = {item: float(space.vectors([item])[0, 0]) for item in space}
            (place / "space/space.json").write_text("{}")
            Store(place).gc(older=0)
            left = [path.name for path in (place / "space").iterdir() if path.suffix != ".json"]
            return [found, len(left) - 2 * len(found)]

        cases("shard", mode, shard, add, in_store)

        def bundled() -> None:
            fresh()
            bundle(place / "run", out)
            run(2.0).save(place / "run", replace=True)

        def pack() -> None:
            bundle(place / "run", out, replace=True)

        def in_bundle() -> object:
            result = verify(out)
            return [result.problems, result.manifest["parts"]["results.parquet"]["size"] > 0]

        cases("bundle", mode, bundled, pack, in_bundle)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
