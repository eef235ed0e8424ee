"""What a newcomer types in Python: data of any kind, string labels, results in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from PIL import Image

import tiltmeter as tm
from tests.refusing import refused
from tiltmeter.metrics import METRICS
from tiltmeter.results import Run, rows

RNG = np.random.default_rng(3)
GENDER = ["woman", "man", "man", "woman"] * 10
SCORES = RNG.normal(size=(3, 40))
CODES = [int(label == "woman") for label in GENDER]
QUICK: dict[str, Any] = {"permutations": 0, "bootstraps": 0, "k": [5], "words": "nurse,doctor"}


@pytest.fixture(scope="module")
def biased() -> Run:
    return tm.audit("testbed:dual", limit=560, k=[20], permutations=99, bootstraps=20,
                    options={"lift": {"splits": 40}})  # fmt: skip


@pytest.mark.parametrize("labels", [GENDER, np.array(GENDER), np.array(GENDER, object),
                                    pd.Series(GENDER), pl.Series(GENDER)])  # fmt: skip
def test_metrics_take_labels(labels: Any) -> None:
    expected = tm.metrics.c_asc(SCORES, CODES)
    assert np.array_equal(tm.metrics.c_asc(SCORES, labels), expected)


def test_a_missing_label_is_refused() -> None:
    with refused("bad-input", "1 of 40"):
        tm.metrics.c_asc(SCORES, ["", *GENDER[1:]])


@pytest.mark.parametrize("name", ["skew", "max_skew", "min_skew", "ndkl"])
@pytest.mark.parametrize("convention", ["tiltmeter", "berg2022", "sfid"])
def test_a_convention_answers_what_is_not_given(name: str, convention: str) -> None:
    known = tm.metrics.get_convention(convention)
    spelled = {"k": 7, "target": known.target, "empty": known.empty, "ties": known.ties}
    if name == "max_skew":
        spelled["absolute"] = known.skew == "absolute"
    if name == "ndkl":
        spelled = {"target": known.target, "k": 7}
    short = METRICS[name](SCORES, GENDER, k=7, convention=convention)
    assert np.array_equal(short, METRICS[name](SCORES, CODES, **spelled), equal_nan=True)


def test_what_is_given_comes_before_the_convention() -> None:
    by_hand = tm.metrics.ndkl(SCORES, GENDER, target="uniform")
    assert np.array_equal(
        tm.metrics.ndkl(SCORES, GENDER, target="uniform", convention="tiltmeter"), by_hand
    )


def test_nothing_is_chosen_for_the_caller() -> None:
    with refused("bad-input", "target and empty and ties", "convention='tiltmeter'"):
        tm.metrics.max_skew(SCORES, GENDER, k=5)
    with refused("bad-input", "100 and 1000"):
        tm.metrics.max_skew(SCORES, GENDER, convention="tiltmeter")
    assert tm.metrics.max_skew(np.tile(SCORES, 3), GENDER * 3, convention="sfid").shape == (3,)


LABELS = {"gender": GENDER, "age": [1, 2] * 20}


@pytest.mark.parametrize(
    ("labels", "attributes"),
    [
        (LABELS, {"gender", "age"}),
        (pd.DataFrame(LABELS), {"gender"}),  # numbers are labels only if they are named
        (pl.DataFrame(LABELS), {"gender"}),
        (GENDER, {"group"}),
        (tm.Groups.from_labels(GENDER, attribute="gender"), {"gender"}),
    ],
    ids=["dict", "pandas", "polars", "list", "groups"],
)
def test_faces_from_embeddings_and_labels_of_any_kind(labels: Any, attributes: set[str]) -> None:
    made = tm.faces(RNG.normal(size=(40, 8)), labels)
    assert set(made.groups) == attributes
    assert len(made) == 40
    assert made.ids[:2] == ("0", "1")


def test_named_columns_are_labels() -> None:
    made = tm.faces(np.eye(40), pd.DataFrame(LABELS), attributes=["age"])
    assert made.groups["age"].names == ("1", "2")


def test_faces_from_paths_are_audited_like_their_table(tmp_path: Path) -> None:
    lines = ["file,gender"]
    for at, label in enumerate(GENDER):
        Image.new("RGB", (32, 32), (6 * at, 90, 30)).save(tmp_path / f"{at}.png")
        lines.append(f"{at}.png,{label}")
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    paths = [tmp_path / f"{at}.png" for at in range(40)]
    table = tm.audit(
        "testbed:dual", f"table:{tmp_path}/mine.csv?path=file", probes=["ranking"], **QUICK
    )
    opened = [Image.open(path).convert("RGB") for path in paths]
    for images in (paths, pd.Series([str(path) for path in paths]), opened):
        run = tm.audit(
            "testbed:dual", tm.faces(images, {"gender": GENDER}), probes=["ranking"], **QUICK
        )
        np.testing.assert_allclose(
            run["c_asc"]["value"].to_numpy(), table["c_asc"]["value"].to_numpy(), atol=1e-5
        )


def test_faces_that_cannot_be_used(tmp_path: Path) -> None:
    with refused("bad-labels", "39"):
        tm.faces(np.eye(40), {"gender": GENDER[:-1]})
    with refused("not-found", "nowhere.png"):
        tm.faces([tmp_path / "nowhere.png"], {"gender": ["man"]})
    with refused("bad-input", "1 of 40"):
        tm.faces(np.eye(40), {"gender": [None, *GENDER[1:]]})
    with refused("bad-labels", "{'gender': [...]}"):
        tm.faces(np.eye(40), "gender")
    with refused("unknown-name", "'gender'"):
        tm.faces(np.eye(40), LABELS, attributes=["gendr"])
    with refused("bad-labels", "different"):
        tm.faces(np.eye(40), LABELS, ids=["a"] * 40)
    with refused("bad-input", "NaN"):
        tm.faces(np.full((40, 2), np.nan), LABELS)


@pytest.mark.parametrize("images", [np.eye(40), LABELS, pd.DataFrame(LABELS)])
def test_an_audit_of_bare_arrays_names_faces(images: Any) -> None:
    with refused("bad-input", "tiltmeter.faces("):
        tm.audit("testbed:dual", images)


def test_a_run_says_what_it_found(biased: Run, tmp_path: Path) -> None:
    found = biased.findings()
    assert {"section", "verdict", "text", "numbers"} == set(found[0])
    assert any(one["verdict"] == "clear" and "shape" in one["text"] for one in found)
    assert "shape" in biased.summary()
    assert "<h4>" in biased._repr_html_()
    assert biased["max_skew"].num_rows > 0
    assert set(biased["max_skew"]["metric"].to_pylist()) == {"max_skew"}
    page = biased.report(tmp_path / "a.html")
    assert page.read_text().startswith("<!doctype html>")
    assert biased.plot().to_dict()
    with refused("unknown-name", "figure of the run"):
        biased.plot("nothing like it")
    with refused("unknown-name", suggests="max_skew"):
        biased["max_skw"]
    with refused("unknown-name", suggests="metric"):
        biased.where(metrik="c_asc")


def test_one_row_per_finding(biased: Run) -> None:
    every = biased.where(metric="c_asc", attribute="shape")
    whole = biased.where(metric="c_asc", attribute="shape", over_templates=True)
    words = [(row["concept"], row["group"]) for row in whole if row["concept"]]
    assert len(words) == len(set(words)) == 78 * 2
    assert len(every) > len(whole)


def test_labels_of_users_are_text_in_a_notebook() -> None:
    run = Run(rows(1, probe="mine", metric="gap", value=0.2, group="<b>x</b>"),
              {"model": {"name": "<script>alert(1)</script>"}})  # fmt: skip
    assert "<script>" not in run._repr_html_()


def test_compare_takes_paths(biased: Run, tmp_path: Path) -> None:
    place = biased.save(tmp_path / "run")
    by_path, by_run = tm.compare(place, str(place)), tm.compare(biased, biased)
    assert by_path.tests.equals(by_run.tests)
    assert "<table>" in by_run._repr_html_()


@pytest.mark.parametrize("kind", ["models", "datasets", "probes", "debiasers", "metrics",
                                  "conventions", "stimuli", "papers"])  # fmt: skip
def test_names_can_be_listed(kind: str) -> None:
    listed = getattr(tm, f"list_{kind}")()
    assert all(listed.values())
    expected = {"models": "hf:", "datasets": "fairface:", "probes": "ranking", "metrics": "c_asc",
                "debiasers": "leace", "conventions": "berg2022", "stimuli": "default"}  # fmt: skip
    assert kind == "papers" or expected[kind] in listed


def test_scores_in_single_precision_give_no_warning() -> None:
    """Embeddings mostly are; a warning fails this suite."""
    assert np.allclose(
        tm.metrics.c_asc(SCORES.astype(np.float32), GENDER),
        tm.metrics.c_asc(SCORES, GENDER),
        atol=1e-5,
    )
