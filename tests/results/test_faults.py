"""Faults below our writes: after a crash, a full disk or a broken one, the old or the new is there.

`faults.c` is preloaded into a process that saves a run, a shard and a bundle again and again, each
time with a fault at another file operation.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc")


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None or not sys.platform.startswith("linux"):
        pytest.skip("faults need Linux and a C compiler")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-o", library, HERE / "faults.c", "-ldl"], check=True
    )
    return library


def drive(faults: Path, folder: Path, *modes: str) -> list[dict[str, object]]:
    ran = subprocess.run(
        [sys.executable, HERE / "fault_driver.py", folder, *modes],
        env={**os.environ, "LD_PRELOAD": str(faults), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is possible: a disk that others use takes minutes to sync."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as place:
        yield Path(place)


@pytest.mark.parametrize(
    "mode",
    [
        "crash",
        pytest.param("ENOSPC", marks=pytest.mark.slow),
        pytest.param("EIO", marks=pytest.mark.slow),
        pytest.param("short", marks=pytest.mark.slow),
    ],
)
def test_every_state_is_recoverable(faults: Path, folder: Path, mode: str) -> None:
    found = drive(faults, folder, mode)
    ends = Counter((case["what"], case["end"]) for case in found)
    for what in ("run, exchanged", "run, moved", "shard", "bundle"):
        assert ends[what, "done"] >= 1  # the last case has no fault left
        if mode == "crash":
            assert ends[what, "crash"] >= 5
    assert not [case for case in found if str(case["end"]).startswith("code")]
    for case in found:
        what, state = str(case["what"]), case["found"]
        assert isinstance(state, list), case  # an error otherwise
        if what.startswith("run"):
            value, names = state
            assert names == ["run"], case  # nothing is left over
            assert value == 2 if case["end"] == "done" else value in (1, 2), case
        elif what == "shard":
            items, left = state
            assert items == {"first": 1, "second": 2} or (
                items == {"first": 1} and case["end"] != "done"
            ), case
            assert left == 0, case
        else:
            problems, whole = state
            assert problems == [], case
            assert whole, case
