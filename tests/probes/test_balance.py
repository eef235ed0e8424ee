"""Which images a convention measures: one gender-balanced sample for all attributes (berg2022)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tiltmeter as tm
from tests.conftest import write_csv
from tiltmeter.engine.ranking.samples import balanced_rows
from tiltmeter.errors import ConventionError
from tiltmeter.judge.bundle.pack import ENDING, bundle
from tiltmeter.judge.bundle.verify import verify
from tiltmeter.judge.gate.comparison import compare
from tiltmeter.metrics.convention import get_convention
from tiltmeter.papers.top_composition import composition
from tiltmeter.planning.power import plan
from tiltmeter.results import Run

K = 30
MEN, WOMEN = 150, 90
EACH = replace(get_convention("berg2022"), name="each", balance="balanced", k=(K,))
QUICK = {"permutations": 0, "bootstraps": 0, "k": [K], "probes": ["ranking"], "seed": 3}


def brought(place: Path, *, without: tuple[str, ...] = ()) -> str:
    """Vectors of 150 men and 90 women, of three races that differ by gender and by vector."""
    rng = np.random.default_rng(0)
    gender = np.repeat(["man", "woman"], [MEN, WOMEN])
    race = np.where(rng.random(MEN + WOMEN) < 0.5, "a", np.where(gender == "man", "b", "c"))
    images = rng.normal(size=(MEN + WOMEN, 8)).astype(np.float32)
    images[:, 0] += race == "a"
    place.mkdir(parents=True)
    np.save(place / "images.npy", images)
    np.save(place / "texts.npy", rng.normal(size=(5, 8)).astype(np.float32))
    labels = [{"id": row, "gender": one, "race": other, "age": ("old", "young")[row % 2]}
              for row, (one, other) in enumerate(zip(gender, race, strict=True))]  # fmt: skip
    write_csv(place / "images.csv", [{name: value for name, value in row.items()
                                      if name not in without} for row in labels])  # fmt: skip
    write_csv(place / "texts.csv", [{"text": f"thing {at}", "concept": f"thing {at}",
                                     "template": "{}"} for at in range(5)])  # fmt: skip
    return f"embeddings:{place}"


@pytest.fixture(scope="module")
def fairface(tmp_path_factory: pytest.TempPathFactory) -> str:
    return brought(tmp_path_factory.mktemp("data") / "fairface-val")


def sizes(run: Run, attribute: str) -> dict[str, int]:
    return {row["group"]: row["n_group"] for row in run.where(metric="skew", attribute=attribute)}


def values(run: Run, metric: str, attribute: str) -> dict[str, float]:
    return {row["concept"]: row["value"] for row in run.where(metric=metric, attribute=attribute)
            if row["concept"] and not row["factor"]}  # fmt: skip


def test_one_sample_balanced_by_gender_serves_every_attribute(fairface: str) -> None:
    """MaxSkew by race is that of the images a sample by gender has: ranked and counted by hand."""
    run = tm.audit(fairface, convention="berg2022", cross=["race*gender"], **QUICK)
    assert sizes(run, "gender") == {"man": WOMEN, "woman": WOMEN}
    faces = tm.load_data(fairface)
    rows = balanced_rows(faces.groups["gender"], np.random.default_rng(3))
    race = faces.groups["race"][rows]
    assert sizes(run, "race") == dict(zip(race.names, race.counts.tolist(), strict=True))
    assert sum(sizes(run, "race*gender").values()) == 2 * WOMEN
    model = tm.load_model(fairface)
    images = faces.vectors[rows] / np.linalg.norm(faces.vectors[rows], axis=1, keepdims=True)
    found = values(run, "max_skew", "race")
    for prompt, vector in zip(model.prompts, model.vectors, strict=True):
        top = np.argsort(-images @ vector, kind="stable")[:K]
        share = np.bincount(race.codes[top], minlength=3) / K
        assert found[prompt.concept] == pytest.approx(np.log(np.maximum(share, 1 / K) * 3).max())
    assert run.instances["ranking"]["experiment"].unique().to_pylist() == ["balanced by gender"]
    shares = [row["value"] for row in composition(run, "race") if row["concept"] == "thing 0"]
    assert np.exp(found["thing 0"]) / 3 == pytest.approx(max(shares))


def test_the_sample_does_not_depend_on_what_is_measured(fairface: str) -> None:
    """Labels of gender are read even where only race is asked for."""
    whole = tm.audit(fairface, convention="berg2022", **QUICK)
    alone = tm.audit(fairface, convention="berg2022", attributes=["race"], **QUICK)
    assert {row["attribute"] for row in alone.where(metric="skew")} == {"race"}
    assert values(alone, "max_skew", "race") == values(whole, "max_skew", "race")
    assert alone.conventions == ["berg2022+k=30"]


def test_each_attribute_by_itself_is_still_a_choice(fairface: str) -> None:
    run = tm.audit(fairface, convention=EACH, **{**QUICK, "k": None})
    assert len(set(sizes(run, "race").values())) == 1
    assert set(sizes(run, "gender").values()) == {WOMEN}


@pytest.mark.parametrize(
    ("name", "without", "convention"),
    [("utkface", (), "berg2022+k=30"), ("pets", ("gender",), "berg2022+k=30+asis")],
)
def test_all_images_of_utkface_and_of_what_has_no_gender(
    tmp_path: Path, name: str, without: tuple[str, ...], convention: str
) -> None:
    spec = brought(tmp_path / name, without=without)
    run = tm.audit(spec, convention="berg2022", **QUICK)
    assert sum(sizes(run, "race").values()) == MEN + WOMEN
    assert run.conventions == [convention] == [run.meta["convention"]["name"]]
    assert run.meta["convention"]["balance"] == "asis"
    parts = tm.audit(spec, convention="berg2022", engine="parts", **QUICK)
    assert parts.conventions == [convention]
    assert values(parts, "max_skew", "race") == values(run, "max_skew", "race")


@pytest.mark.parametrize("convention", ["berg2022", EACH], ids=["gender", "each"])
def test_by_parts_the_sample_is_the_same(fairface: str, convention) -> None:
    asked = {**QUICK, "k": None if convention is EACH else [K], "cross": ["race*gender"]}
    whole, parts = (
        tm.audit(fairface, convention=convention, engine=engine, **asked)
        for engine in ("local", "parts:size=50")
    )
    for attribute in ("race", "gender", "race*gender"):
        assert sizes(parts, attribute) == sizes(whole, attribute)
        assert values(parts, "max_skew", attribute) == values(whole, "max_skew", attribute)
    ids = [run.instances["ranking"].drop_columns(["score"]) for run in (whole, parts)]
    assert ids[0].equals(ids[1])


@pytest.mark.parametrize("convention", ["berg2022", EACH], ids=["gender", "each"])
def test_a_bundle_recomputes_the_sample(fairface: str, tmp_path: Path, convention) -> None:
    run = tm.audit(fairface, convention=convention, attributes=["race", "age"],
                   **{**QUICK, "permutations": 20, "k": [K]})  # fmt: skip
    found = verify(bundle(run.save(tmp_path / "run"), tmp_path / f"x{ENDING}").path)
    assert found.ok, (found.problems, found.recomputed and found.recomputed.differences[:3])
    assert found.recomputed is not None
    assert found.recomputed.compared["max_skew"] > 0


def test_the_gate_balances_by_gender_too(fairface: str, tmp_path: Path) -> None:
    """MaxSkew by race, before and after, of the sample that its own seed gives, by hand."""
    spec = brought(tmp_path / "fairface-val")
    images = np.load(tmp_path / "fairface-val/images.npy")
    images[:MEN, 1] += 3.0
    np.save(tmp_path / "fairface-val/images.npy", images)
    before, after = (tm.audit(one, convention="berg2022", attributes=["race"], **QUICK)
                     for one in (fairface, spec))  # fmt: skip
    found = compare(before, after, bootstraps=39, seed=5)
    faces, model = tm.load_data(spec), tm.load_model(spec)
    rng = np.random.default_rng(5)
    rows = balanced_rows(faces.groups["gender"], rng)
    race = faces.groups["race"][rows]
    unit = images[rows] / np.linalg.norm(images[rows], axis=1, keepdims=True)
    told = {
        row["concept"]: row["after"]
        for row in found.words.to_pylist()
        if (row["metric"], row["attribute"]) == ("max_skew", "race") and row["concept"]
    }
    for prompt, vector in zip(model.prompts, model.vectors, strict=True):
        top = np.argsort(-unit @ vector, kind="stable")[:K]
        share = np.bincount(race.codes[top], minlength=3) / K
        assert told[prompt.concept] == pytest.approx(np.log(np.maximum(share, 1 / K) * 3).max())


def test_two_runs_of_one_name_and_other_choices_are_not_compared(fairface: str) -> None:
    run = tm.audit(fairface, convention="berg2022", **QUICK)
    told = {**run.meta["convention"], "balance": "balanced"}  # as the first release had it
    old = Run(run.table, {**run.meta, "convention": told}, run.instances, run.vectors)
    with pytest.raises(ConventionError, match="balance was 'balanced' before and is 'gender'"):
        compare(old, run, bootstraps=39)


def test_a_plan_is_made_for_the_sample(fairface: str) -> None:
    faces = tm.load_data(fairface)
    convention = get_convention("berg2022").with_(k=(K,))
    race, gender = plan(faces, attributes=["race", "gender"], convention=convention, words=5)
    assert [group.n for group in gender.groups] == [WOMEN, WOMEN]
    assert sum(group.n for group in race.groups) == 2 * WOMEN
    assert len({group.n for group in race.groups}) > 1
