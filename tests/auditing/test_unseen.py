"""`audit --unseen`: the rows that a correction was not fitted on, and duplicates by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import tiltmeter as tm
from tests.command_line import tiltmeter
from tests.refusing import refused
from tiltmeter.debiasers.debiased import Debiased
from tiltmeter.debiasers.fitting import debias
from tiltmeter.types import Faces

DATA = "testbed:?images=280"
FEW = {"probes": ["ranking"], "k": [20], "permutations": 0, "bootstraps": 0,
       "templates": ["a photo of a {}"]}  # fmt: skip


@pytest.fixture(scope="module")
def fair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("unseen") / "fair"
    debias("leace", "testbed:dual", DATA, attribute="shape", share=0.5, out=place, device="cpu")
    return place


def images_of(run: tm.Run) -> set[str]:
    return set(run.vectors["faces"]["id"].to_pylist())


def test_before_and_after_on_the_other_half(fair: Path) -> None:
    before = tm.audit("testbed:dual", DATA, unseen=[fair], **FEW)
    after = tm.audit(str(fair), DATA, unseen=[fair], **FEW)
    for run in (before, after):
        faces = run.meta["data"]["faces"]
        assert faces["images"] + faces["unseen"]["left_out"] == 280
        assert faces["unseen"]["left_out"] >= 140
    fitted = tm.load_model(str(fair)).debiaser.rows_.ids
    assert images_of(before) == images_of(after)
    assert images_of(after).isdisjoint(fitted)
    comparison = tm.compare(before, after, bootstraps=39)
    assert comparison.unpaired is None
    assert comparison.left_out == 0
    # the correction of shape holds on images that it has not seen
    shape = {row["attribute"]: row["verdict"] for row in comparison.answers("retrieval")}
    assert shape["shape"] == "better"


def test_seen_rows_are_refused_and_the_refusal_says_what_to_type(fair: Path) -> None:
    with refused("bad-input", "140 of the 280 rows of testbed", "--unseen"):
        tm.audit(str(fair), DATA, **FEW)
    whole = debias("leace", "testbed:dual", DATA, attribute="shape", device="cpu")
    for unseen in ([], [whole]):  # --unseen alone would leave nothing
        with refused("bad-input", "all 280 rows of testbed", "other images", "--share"):
            tm.audit(whole, DATA, unseen=unseen, **FEW)
    with refused("bad-input", "debiased.json"):
        tm.audit("testbed:dual", DATA, unseen=[fair.parent], **FEW)


def renamed(faces: Faces, rows: list[int]) -> Faces:
    chosen = faces.select(rows)
    return Faces(
        tuple(f"copy {row_id}" for row_id in chosen.ids), chosen.groups, images=chosen.images,
        name="copies", world=faces.world,
    )  # fmt: skip


def test_duplicates_are_named_and_left_out(fair: Path) -> None:
    """The same images under other names do not refuse the rest."""
    model = tm.load_model(str(fair))
    assert isinstance(model, Debiased)
    faces = tm.load_data(DATA)
    seen = model.fitted_on(faces)
    unseen = sorted(set(range(280)) - set(seen))
    data = renamed(faces, [*unseen, *seen[:3]])
    run = tm.audit(model, data, **FEW)
    record = run.meta["data"]["faces"]["unseen"]
    assert (record["left_out"], record["duplicates"]) == (3, 3)
    assert record["first_duplicates"][0] == (
        f"copy {faces.ids[seen[0]]} (the same as {faces.ids[seen[0]]})"
    )
    without = tm.audit(model, renamed(faces, unseen), **FEW)
    same = [run.table["value"].to_numpy(), without.table["value"].to_numpy()]
    assert np.array_equal(*same, equal_nan=True)
    with refused("bad-input", "all 60"):
        tm.audit(model, renamed(faces, seen[:60]), **FEW)


def test_from_the_command_line(fair: Path, tmp_path: Path) -> None:
    few = ("--template", "a photo of a {}", "--permutations", 0, "--bootstraps", 0, "--no-report")
    said = tiltmeter("audit", fair, "--images", DATA, "--unseen", fair, "--probe", "ranking",
                     "--k", 20, *few, "--out", tmp_path / "run")  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert "140 that the correction was fitted on are left out" in " ".join(said.stdout.split())
