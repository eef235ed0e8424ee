"""The recipe of bias propagation: 114 analyses of three models on one page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tiltmeter.metrics.convention import get_convention
from tiltmeter.pages.sections.propagation import bias_sentences
from tiltmeter.papers.published import published
from tiltmeter.probes.propagation.experiments import ExperimentInput, PropagationConfig
from tiltmeter.probes.propagation.probe import propagation
from tiltmeter.reproduce import PAPERS
from tiltmeter.reproduce.runner import reproduce
from tiltmeter.reproduce.study import Study
from tiltmeter.results import Run
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Groups

RACES, GENDERS = ("Asian", "Black", "White"), ("female", "male")
NAMES = tuple(f"{race} | {gender}" for race in RACES for gender in GENDERS)


def run_of(seed: int, name: str, lean: float) -> Run:
    """A model of six groups; with `lean`, the first is near pleasant items."""
    rng = np.random.default_rng(seed)
    pleasant = rng.normal(size=10)
    sides = {}
    for role, n in (("valence", 40), ("lexicon", 50)):
        valence = rng.uniform(size=n)
        vectors = rng.normal(size=(n, 10)) + (2 * valence - 1)[:, None] * pleasant
        sides[role] = ExperimentInput(role, tuple(map(str, range(n))), [vectors], valence)
    for role, n in (("faces", 120), ("groups", 72)):
        codes = np.arange(n) % 6
        vectors = rng.normal(size=(n, 10)) + lean * (codes == 0)[:, None] * pleasant
        groups = Groups(codes, NAMES, "race*gender")
        sides[role] = ExperimentInput(role, tuple(map(str, range(n))), [vectors], None, groups)
    table, single = propagation(
        sides, model=name, convention=get_convention("tiltmeter"), parameters=10**6 * seed,
        choices=PropagationConfig(k=(8,), extremes=5, members=6), resampling=Resampling(30, 30),
    )  # fmt: skip
    return Run(table, {"model": {"name": name}}, {"propagation": single})


@pytest.fixture(scope="module")
def study() -> Study:
    runs = [run_of(1, "leaning", 1.0), run_of(2, "fair", 0.0), run_of(3, "other", 0.0)]
    return Study({"experiments": {"": runs}})


def test_114_analyses_and_every_item(study: Study) -> None:
    made = {}
    for item in PAPERS["propagation"].items:
        if item.layout is not None and item.label != "Section 5":
            made[item.label] = item.layout(study)
    chart = made["Section 4"][0]
    assert chart.title == "Rho in 114 analyses"
    assert "1*-a · leaning" in chart.description
    assert chart.chart() is not None
    figure = made["Figure 6"][0]
    assert "1-a + 1-b" in figure.title
    assert "all models" in figure.title
    assert "Asian | female +" in figure.description  # the leaning group of one model of three
    rhos = made["Figure 3"][1]
    assert len(rhos.rows) == 3 * 2 * 6
    assert {column.head for column in rhos.columns} >= {"permuted labels", "p, rho = 0"}
    assert any("paper prints" in one.caption for one in made["Figure 3"] if hasattr(one, "rows"))
    data = made["Data statistics"][0]
    assert {row["items"] for row in data.rows if row["group"]} == {20, 12}


def test_sentences_name_a_bias_only_where_there_is_one(study: Study) -> None:
    rows = [row for row in study.rows("experiments")
            if (row["experiment"] or "") in ("1-a", "1-b")]  # fmt: skip
    told = bias_sentences(rows, "extrinsic_difference")
    leaning = [one for one in told if one.startswith("leaning")]
    assert any("Asian | female are more pleasant" in one for one in leaning)
    for name in ("fair", "other"):
        [line] = [one for one in told if one.startswith(name)]
        assert "no difference between groups in what is retrieved is beyond chance" in line


def test_names_in_books_next_to_rho(study: Study, tmp_path: Path) -> None:
    file = tmp_path / "2grams.tsv"
    file.write_text("".join(
        f"{race} {noun}\t1980\t{10 * at + len(noun)}\t1\n"
        for at, race in enumerate(("Asian", "Black", "White"))
        for noun in ("women", "men")
    ))  # fmt: skip
    [item] = [one for one in PAPERS["propagation"].items if one.label == "Section 5"]
    table, note = item.layout(Study(study.measured, {"ngrams": str(file)}))
    assert {row["group"]: row["count"] for row in table.rows}["Black | female"] == 15
    assert "over 6 groups" in note


def test_what_the_text_prints_is_there() -> None:
    values = published("ghate2025")
    means = {
        one.experiment: one.value
        for one in values
        if one.metric == "rho_mean" and one.experiment and "+" not in one.experiment
    }
    assert means == {"1*-a": 0.84, "1*-b": 0.87, "2*-a": 0.94, "2*-b": 0.76, "1-a": 0.81,
                     "1-b": 0.78, "2-a": 0.91, "2-b": 0.78}  # fmt: skip
    assert sum(one.metric == "intrinsic_z" for one in values) == 8


@pytest.mark.slow
def test_the_built_in_world(tmp_path: Path) -> None:
    page = reproduce("propagation", out=tmp_path / "page", permutations=60, bootstraps=30)
    notes = [note for section in page.sections for note in section.notes]
    biased = [note for note in notes if note.startswith("testbed:fusion: ")]
    fair = [note for note in notes if note.startswith("testbed:fusion-fair: ")]
    assert any("images of round are more pleasant" in note for note in biased)
    assert any("Pleasant words retrieve more images of round" in note for note in biased)
    assert fair
    assert all("no difference between groups" in note for note in fair)
