"""Files in memory of Python are read without threads of Arrow, which can abort the process at its
end: such a thread frees memory of an interpreter that is gone (apache/arrow#34314)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tiltmeter as tm

READ_ALL = """
import os, sys
from pathlib import Path

import numpy as np

from tiltmeter.judge.bundle.pack import bundle
from tiltmeter.judge.bundle.verify import verify
from tiltmeter.results import Run
from tiltmeter.store import StoredEmbeddings

run, space, out = map(Path, sys.argv[1:])
space.mkdir()
StoredEmbeddings(space).add(["image"], np.ones((1, 8), np.float32))

before = len(os.listdir("/proc/self/task"))
bundle(run, out)
assert len(Run.load(run).table)
assert verify(out).ok
assert StoredEmbeddings(space).vectors(["image"]).shape == (1, 8)
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted in /proc")
def test_no_thread_reads_memory_of_python(embeddings: Path, tmp_path: Path) -> None:
    run = tm.audit(f"embeddings:{embeddings}", k=[20], permutations=0, bootstraps=0)
    run.save(tmp_path / "run")
    places = [tmp_path / name for name in ("run", "space", "run.tiltmeter.zip")]
    ran = subprocess.run(
        [sys.executable, "-c", READ_ALL, *places], capture_output=True, text=True, check=False
    )
    assert ran.stdout.strip() == "0", ran.stderr
