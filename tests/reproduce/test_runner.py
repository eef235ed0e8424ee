"""`tiltmeter reproduce`: what is made, what is not and why, and continuing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.pages.model import table_of
from tiltmeter.reproduce import PAPERS
from tiltmeter.reproduce.measurements import Audit, Debiasing
from tiltmeter.reproduce.recipe import Item, Paper, Parts
from tiltmeter.reproduce.runner import reproduce
from tiltmeter.reproduce.study import Study

FEW: dict[str, Any] = {"permutations": 0, "bootstraps": 0}
WORDS = Audit(("ranking",), {"words": "berg", "cross": ("race*gender",), "k": (10,)})


def means(study: Study) -> Parts:
    rows = study.rows("words", metric="ndkl", attribute=study.name("gender"), concept=None)
    return [table_of("ndkl", "NDKL", rows, "model")]


def change(study: Study) -> Parts:
    parts = ("before", "after")
    rows = [row for part in parts for row in study.rows("debiased", part, metric="ndkl")]
    return [table_of("ndkl", "NDKL", rows, "model"), "a note"]


SMALL = Paper(
    name="small",
    title="A paper",
    source="Nobody (2026)",
    published="sobit2024",
    tables=4,
    figures=1,
    data={"faces": "faces", "valence": "rated images"},
    measurements={
        "words": WORDS,
        "debiased": Debiasing("leace", "gender", WORDS),
        "trained": Debiasing("prompt-array", "gender", WORDS, trains=True),
        "rated": Audit(("propagation",), roles=("faces", "valence")),
    },
    items=(
        Item("Table 1", "Means", means, ("words",)),
        Item("Table 2", "Change", change, ("debiased",), ("trained",), shortfall="see `this`."),
        Item("Table 3", "Ratings", means, ("rated",)),
        Item("Table 4", "Training", means, ("trained",)),
        Item("Figure 1", "A drawing", reason="nothing is measured."),
    ),
    world_models=("testbed:dual", "testbed:dual?twin=fair"),
    world_attributes={"race": "hue", "gender": "shape"},
)


PLAIN = Audit(("ranking",), {"words": "berg", "k": (10,)})
NARROW = replace(SMALL, measurements={"words": PLAIN}, items=(
    Item("Table 1", "Means", lambda study: [table_of("ndkl", "NDKL", study.rows("words"), "model")],
         ("words",)),
))  # fmt: skip
FACES = {"faces": "testbed:?images=280"}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PAPERS.paths, "small", f"{__name__}:SMALL")
    monkeypatch.setitem(PAPERS.paths, "narrow", f"{__name__}:NARROW")


@pytest.mark.usefixtures("small")
def test_what_can_be_made_is_made_and_the_rest_has_a_reason(tmp_path: Path) -> None:
    page = reproduce("small", out=tmp_path / "out", data=FACES, **FEW)
    assert page.made == {
        "Table 1": "yes",
        "Table 2": "in part (needs a training: pass --train)",
        "Table 3": "Not made: needs data: --data valence=SPEC (rated images)",
        "Table 4": "Not made: needs a training: pass --train",
        "Figure 1": "Not made: nothing is measured.",
    }
    table_1, table_2, *_ = page.sections
    models = [row["model"] for row in table_1.tables[0].rows]
    assert set(models) == {"testbed:dual", "testbed:dual-fair"}
    assert "Unlike the paper: see `this`." in table_2.notes
    assert any(note.startswith("Not comparable with") for note in table_1.notes)
    html = (tmp_path / "out/index.html").read_text()
    assert "Table 3. Ratings" in html
    assert "built-in world" in html
    summary = (tmp_path / "out/summary.md").read_text()
    assert "1 of 5 items made, 1 more in part" in summary
    assert "| Table 2 | Change | in part (needs a training: pass --train) |" in summary
    assert "Unlike the paper: see `this`.\n" in summary
    # the same call reads the runs that are there
    finished = tmp_path / "out/runs/words-1/finished"
    finished.write_text("12345")
    again = reproduce("small", out=tmp_path / "out", data=FACES, **FEW)
    assert again.measured[0]["seconds"] == 12345
    # of an interrupted measurement, the models and runs that were finished
    debiased = tmp_path / "out/runs/debiased-1"
    (debiased / "finished").unlink()
    shutil.rmtree(debiased / "after")
    made = {file: file.stat().st_mtime_ns for file in (tmp_path / "out/models").glob("*/*")}
    assert made
    reproduce("small", out=tmp_path / "out", data=FACES, **FEW)
    assert (debiased / "after/run.json").is_file()
    assert made == {file: file.stat().st_mtime_ns for file in (tmp_path / "out/models").glob("*/*")}
    with pytest.raises(InputError) as error:
        reproduce("small", out=tmp_path / "out", seed=1, data=FACES, **FEW)
    assert error.value.code == "exists"


@pytest.mark.usefixtures("small")
def test_a_model_without_the_protocol_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gives embeddings"):  # no item can be made: nothing stays
        reproduce("narrow", ["testbed:stream"], out=tmp_path / "none", data=FACES, **FEW)
    assert not (tmp_path / "none").exists()
    models = ["testbed:stream", "testbed:dual"]
    page = reproduce("narrow", models, out=tmp_path / "out", data=FACES, **FEW)
    assert page.made["Table 1"] == "yes"
    assert any("testbed:stream" in note and "embeddings" in note for note in page.sections[0].notes)


def test_unknown_names_come_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'sobit'"):
        reproduce("sobitt", out=tmp_path / "out")
    with pytest.raises(UnknownNameError, match="data role of sobit"):
        reproduce("sobit", out=tmp_path / "out", data={"face": "testbed:"})
    with pytest.raises(InputError):
        reproduce("sobit", out=tmp_path / "out", data={"faces": "table:nowhere.csv"})
    with pytest.raises(InputError):  # also next to models that exist
        reproduce("vlstereoset", ["testbed:dual", f"hf:{tmp_path}/none"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
