"""An engine that stops in the middle of a job until something was killed: never by the clock."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine.collections_in_shards import Letters, clip_retrieval, scaled_model
from tiltmeter.auditing.audit import audit
from tiltmeter.debiasers.fitting import debias
from tiltmeter.engine.engines import Work
from tiltmeter.engine.named import engine_of
from tiltmeter.results import Run

PATIENCE = 300  # seconds until a test that hangs fails
FREE = 3  # parts that are computed before anything is killed


@dataclass(frozen=True)
class Gated:
    """Runs on another engine; of one job, parts after the first few wait for the gate to open.

    When those few are computed, `act` is called in the driver, and the gate opened.
    """

    engine: Any
    place: Path
    job: str  # the class of the task
    act: Callable[[], None] | None = None
    journal: Path | None = None
    name: str = "ray"
    gpus: float = 0.0

    @property
    def size(self) -> int:
        return int(self.engine.size)

    @property
    def slots(self) -> int:
        return int(self.engine.slots)

    def run(self, make: Callable[[], Work], parts: Sequence[Any]) -> Iterator[Any]:
        inner = getattr(make, "task", make)
        if type(inner).__name__ != self.job or not len(parts):
            yield from self.engine.run(make, parts)
            return
        self.place.mkdir(exist_ok=True)
        threading.Thread(target=self._open, args=(min(FREE, len(parts)),), daemon=True).start()
        yield from self.engine.run(_Waiting(make, self.place), list(enumerate(parts)))

    def _open(self, free: int) -> None:
        """Act when the first parts are computed: Ray may deliver them only with the next ones."""
        computed = self.place / "computed"
        wait_for(lambda: computed.exists() and len(computed.read_text().splitlines()) >= free)
        if not (self.place / "open").exists():
            if self.act is not None:
                self.act()
            (self.place / "open").touch()


@dataclass(frozen=True)
class _Waiting:
    make: Callable[[], Work]
    place: Path

    def __call__(self) -> Work:
        work = self.make()

        def waiting(numbered: tuple[int, Any]) -> Any:
            number, part = numbered
            (self.place / f"{os.getpid()}.pid").touch()
            if number >= FREE:
                wait_for(lambda: (self.place / "open").exists())
            result = work(part)
            with (self.place / "computed").open("a") as file:
                file.write(f"{part}\n")
            return result

        return waiting


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError("what was waited for did not happen")
        time.sleep(0.02)


def kill_a_worker(place: Path) -> None:
    """Kill the worker that started last, while it waits or works."""
    newest = max(place.glob("*.pid"), key=lambda path: path.stat().st_mtime_ns)
    os.kill(int(newest.stem), signal.SIGKILL)


#: What is audited: the job that is interrupted, and the probes.
CASES = {
    "lift": ("MomentsTask", ["lift"]),
    "ranking": ("DigestTask", ["ranking"]),
    "harms": ("ClassTask", ["harms"]),
    "leace": ("DigestTask", ["ranking", "lift"]),
    "pbm": ("DigestTask", ["ranking"]),
}


def measure(case: str, place: Path, engine: Any, store: Path | None = None) -> Run:
    """Audit a collection with the model of a case, fitted on another one where it is corrected."""
    model = Letters() if case == "harms" else scaled_model(place / "audited")
    if case in ("leace", "pbm"):
        model = debias(case, model, f"embeddings:{place / 'fitted'}", attribute="gender",
                       engine="parts")  # fmt: skip
    options: dict[str, Any] = {"k": [10, 100], "permutations": 50, "bootstraps": 20}
    return audit(model, f"embeddings:{place / 'audited'}", probes=CASES[case][1], engine=engine,
                 cross=["gender*age"], store=store, **options)  # fmt: skip


def collections(place: Path) -> Path:
    """One collection to audit and another to fit on."""
    clip_retrieval(place / "audited")
    clip_retrieval(place / "fitted", (300, 500), lean=1.0)
    return place


def main() -> None:
    """A driver that is to be killed: `python -m tests.engine.killing CASE PLACE ENGINE STORE`.

    After the first parts it says so (`reached`) and waits until it may go on (`go`).
    """
    case, place, engine, store = sys.argv[1:]
    gate = Path(store) / "gate"

    def act() -> None:
        (gate / "reached").touch()
        wait_for(lambda: (gate / "go").exists())

    journal = Path(store) / "unfinished"
    gated = Gated(engine_of(engine), gate, CASES[case][0], act, journal=journal)
    run = measure(case, Path(place), gated, Path(store))
    run.save(Path(store) / "run")


if __name__ == "__main__":
    main()
