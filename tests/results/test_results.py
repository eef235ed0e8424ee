"""Runs on disk: whole or not at all, the same bytes for the same inputs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tiltmeter as tm
from tests.refusing import refused
from tiltmeter.errors import ConventionError, InputError, TiltmeterError
from tiltmeter.results import COMPARISON, KEY, RESULTS, Run, rows


@pytest.fixture
def run(embeddings: Path) -> Run:
    return tm.audit(f"embeddings:{embeddings}", k=[20], permutations=99, bootstraps=50)


def test_a_run_comes_back_as_it_was(run: Run, tmp_path: Path) -> None:
    back = Run.load(run.save(tmp_path / "run"))
    assert back.table.equals(run.table)
    assert back.instances["ranking"].equals(run.instances["ranking"])
    assert back.meta == json.loads(json.dumps(run.meta))


def test_same_inputs_and_seed_give_the_same_bytes(embeddings: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        again = tm.audit(f"embeddings:{embeddings}", k=[20], permutations=99, bootstraps=50, seed=3)
        again.save(tmp_path / name)
    one, two = ((tmp_path / name / "results.parquet").read_bytes() for name in ("one", "two"))
    assert one == two
    hashes = [
        json.loads((tmp_path / name / "run.json").read_text())["hash"] for name in ("one", "two")
    ]
    assert hashes[0] == hashes[1]  # time and host are not in it


def test_another_seed_changes_draws_but_no_value(embeddings: Path) -> None:
    one, two = (
        tm.audit(f"embeddings:{embeddings}", k=[20], permutations=99, bootstraps=50, seed=seed)
        for seed in (0, 1)
    )
    assert one.table["value"].equals(two.table["value"])
    assert not one.table["null_mean"].equals(two.table["null_mean"])


def test_provenance_says_what_was_given_and_what_was_taken(run: Run) -> None:
    assert run.meta["arguments"]["given"] == {"k": [20], "permutations": 99, "bootstraps": 50}
    assert run.meta["arguments"]["defaulted"]["seed"] == 0
    assert len(run.meta["model"]["vectors"]) == len(run.meta["data"]["faces"]["labels"]) == 64
    assert run.meta["convention"]["name"] == "tiltmeter+k=20"
    assert "numpy" in run.meta["versions"]
    assert set(run.meta["environment"]) >= {"time", "platform"}


def test_undefined_is_null_with_a_note() -> None:
    table = rows(2, metric="skew", value=[np.nan, 1.0], note=["absent", None])
    assert table["value"].to_pylist() == [None, 1.0]
    with pytest.raises(InputError, match="needs a note"):
        rows(1, metric="skew", value=[np.nan])
    with pytest.raises(InputError, match="no such columns in results: valu"):
        rows(1, valu=1.0)


def test_a_changed_file_is_noticed(run: Run, tmp_path: Path) -> None:
    place = run.save(tmp_path / "run")
    path = place / "results.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match="was changed since it was saved"):
        Run.load(place)


def test_nothing_is_written_over_unasked(run: Run, tmp_path: Path) -> None:
    place = run.save(tmp_path / "run")
    with pytest.raises(InputError, match="exists already"):
        run.save(place)
    run.save(place, replace=True)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="not a run of tiltmeter"):
        run.save(mine, replace=True)
    assert (mine / "thesis.txt").read_text() == "years of work"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["brought", "mine", "run"]


def test_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no run.json"):
        Run.load(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        Run.load(tmp_path)


FULL_DISK = """
import resource, signal, sys
import tiltmeter as tm
from tiltmeter.errors import TiltmeterError
run = tm.Run.load(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # every file ends there, as on a full disk
try:
    run.save(sys.argv[2], replace=True)
except TiltmeterError as error:
    print(error)
"""


@pytest.mark.parametrize("before", [False, True])
def test_a_disk_that_fills_up_leaves_nothing_half_written(
    run: Run, tmp_path: Path, before: bool
) -> None:
    source, place = run.save(tmp_path / "source"), tmp_path / "place"
    if before:
        run.save(place)
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, source, place], capture_output=True, text=True, check=True
    )
    assert "could not save" in done.stdout
    assert "What was there is unchanged" in done.stdout
    assert place.exists() is before
    if before:
        Run.load(place)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_a_place_that_cannot_be_written_to(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TiltmeterError, match="cannot write to"):
        run.save(tmp_path / "file" / "run")


def test_results_of_two_conventions_are_not_compared(embeddings: Path) -> None:
    spec = f"embeddings:{embeddings}"
    kind = {"k": [20], "permutations": 0, "bootstraps": 0, "probes": ["ranking"]}
    ours, theirs = (tm.audit(spec, convention=name, **kind) for name in ("tiltmeter", "bendvlm"))
    with pytest.raises(
        ConventionError, match=r"different conventions.*bendvlm\+k=20, tiltmeter\+k=20"
    ):
        tm.compare(ours, theirs)
    same = tm.compare(ours, ours)
    assert same.table.schema == COMPARISON
    assert set(same.table["direction"].to_pylist()) == {"same"}
    assert same.worse.num_rows == 0


def test_compare_says_which_way_things_moved(tmp_path: Path) -> None:
    from tests.conftest import brought_embeddings

    mild, strong = (
        tm.audit(f"embeddings:{brought_embeddings(tmp_path / str(lean) / 'd', lean=lean)}",
                 k=[20], permutations=0, bootstraps=0)
        for lean in (0.5, 2.5)
    )  # fmt: skip
    moved = tm.compare(mild, strong)
    key = {"metric": "c_asc", "concept": "thing 0", "group": "woman"}
    first = [row for row in moved.table.to_pylist() if key.items() <= row.items()]
    assert first[0]["direction"] == "worse"
    assert first[0]["excess"] == pytest.approx(first[0]["difference"])
    assert first[0]["excess"] > 0
    assert tm.compare(strong, mild).worse.num_rows == 0


def test_runs_without_common_measurements(run: Run, tmp_path: Path) -> None:
    other = Run(run.table.slice(0, 0), run.meta)
    with pytest.raises(InputError, match="share no measurement"):
        tm.compare(Run(RESULTS.empty_table()), other)
    renamed = run.table.set_column(
        RESULTS.get_field_index("dataset"),
        RESULTS.field("dataset"),
        pa.array(["x"] * run.table.num_rows),
    )
    with pytest.raises(InputError, match="share no measurement"):
        tm.compare(run, Run(renamed, run.meta))


def test_rows_are_told_apart_by_their_key(run: Run) -> None:
    keys = [tuple(row[name] for name in KEY) for row in run.table.to_pylist()]
    assert len(set(keys)) == len(keys)


def test_frames(run: Run) -> None:
    pandas = pytest.importorskip("pandas")
    assert isinstance(run.to_pandas(), pandas.DataFrame)


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_without_the_package_of_a_frame(
    run: Run, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with refused("missing-package", package, "pip install 'tiltmeter[frames]'"):
        getattr(run, f"to_{package}")()
