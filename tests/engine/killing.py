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

from tests.datasets.test_webdataset import shard
from tests.engine.collections_in_shards import SPEAKS, Letters, clip_retrieval, scaled_model
from tests.engine.test_embedding import MODEL
from tiltmeter.auditing.audit import audit
from tiltmeter.debiasers.fitting import debias
from tiltmeter.engine.engines import Work
from tiltmeter.engine.named import engine_of
from tiltmeter.results import Run

PATIENCE = 300  # seconds until a test that hangs fails
FREE = 3  # parts that are computed before anything is killed


@dataclass(frozen=True)
class Gated:
    """Runs on another engine; of one job, all but a few parts wait for the gate to open.

    When those few, whichever they are, are computed, `act` is called in the driver, and the gate
    opened.
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
        yield from self.engine.run(_Waiting(make, self.place), parts)

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

        def waiting(part: Any) -> Any:
            (self.place / f"{os.getpid()}.pid").touch()
            if not self._is_free():
                wait_for(lambda: (self.place / "open").exists())
            result = work(part)
            with (self.place / "computed").open("a") as file:
                file.write(f"{part}\n")
            return result

        return waiting

    def _is_free(self) -> bool:
        """Whether this part is one of the first that any worker took.

        Not by its number: Ray may put a free part behind a waiting one, in the same worker.
        """
        for number in range(FREE):
            try:
                (self.place / f"{number}.free").touch(exist_ok=False)
            except FileExistsError:
                continue
            return True
        return False


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


#: What is interrupted, and the probes that are run.
CASES = {
    "lift": ("MomentsTask", ["lift"]),
    "ranking": ("DigestTask", ["ranking"]),
    "harms": ("ClassTask", ["harms"]),
    "leace": ("DigestTask", ["ranking", "lift"]),
    "leace fit": ("LabelMomentsTask", ["lift"]),
    "pbm": ("DigestTask", ["ranking"]),
    "embed": ("EmbedShardTask", ["ranking"]),
}


def measure(case: str, place: Path, engine: Any, store: Path) -> Run:
    """Audit a collection with the model of a case, fitted on another one where it is corrected."""
    options: dict[str, Any] = {
        "k": [10, 100], "permutations": 50, "bootstraps": 20, "probes": CASES[case][1],
        "engine": engine, "store": store,
    }  # fmt: skip
    if case == "embed":
        model, words = f"python:{place / 'colours.py'}:Colours", str(place / "words.csv")
        return audit(model, f"webdataset:{place / 'tars'}", words=words, **options)
    model = Letters() if case == "harms" else scaled_model(place / "audited")
    if case in ("leace", "leace fit", "pbm"):
        fits = engine if case == "leace fit" else "parts:size=60"
        model = debias(case.split()[0], model, f"embeddings:{place / 'fitted'}",
                       attribute="gender", engine=fits, store=store)  # fmt: skip
    return audit(model, f"embeddings:{place / 'audited'}", cross=["gender*age"], **options)


def collections(place: Path) -> Path:
    """Embeddings to audit, others to fit on, and tar files of images."""
    clip_retrieval(place / "audited")
    clip_retrieval(place / "fitted", (300, 500), lean=1.0)
    (place / "tars").mkdir()
    for at in range(8):
        shard(place / "tars" / f"{at:05d}.tar", 20, at)
    cut = place / "tars" / "00007.tar"
    cut.write_bytes(cut.read_bytes()[:20_000])
    (place / "colours.py").write_text(MODEL + SPEAKS)
    (place / "words.csv").write_text(
        "word,category,pos\nnurse,work,noun\ndoctor,work,noun\nbaker,work,noun\n"
    )
    return place


def main() -> None:
    """A driver that is to be killed: `python -m tests.engine.killing CASE PLACE ENGINE STORE`.

    After the first parts it says so (`reached`) and waits, unless the gate is open already.
    """
    case, place, engine, store = sys.argv[1:]
    gate = Path(store) / "gate"

    def act() -> None:
        (gate / "reached").touch()
        wait_for(lambda: (gate / "open").exists())

    journal = Path(store) / "unfinished"
    gated = Gated(engine_of(engine), gate, CASES[case][0], act, journal=journal)
    run = measure(case, Path(place), gated, Path(store))
    run.save(Path(store) / "run")


if __name__ == "__main__":
    main()
