"""The lift probe: a biased model and its fair twin, engines, references, and bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiltmeter as tm
from tests.command_line import tiltmeter
from tiltmeter.errors import TiltmeterError
from tiltmeter.pages import terminal
from tiltmeter.probes.lift.contrastive import class_texts
from tiltmeter.probes.lift.words import lift_prompts
from tiltmeter.probes.texts import audit_prompts
from tiltmeter.results import Run
from tiltmeter.stimuli import load
from tiltmeter.types import Prompt

pytest.importorskip("torch")
FEW = {"bootstraps": 20, "options": {"lift": {"splits": 20}}}


def audited(spec: str, **options: object) -> Run:
    return tm.audit(spec, "testbed:?images=700", probes=["lift"], words="sobit",
                    cross=["shape*hue"], **{**FEW, **options})  # fmt: skip


@pytest.fixture(scope="module")
def twins() -> dict[str, Run]:
    return {"biased": audited("testbed:dual"), "fair": audited("testbed:dual?twin=fair")}


@pytest.mark.parametrize("attribute", ["shape", "hue", "shape*hue"])
def test_a_biased_model_and_its_fair_twin(twins: dict[str, Run], attribute: str) -> None:
    biased, fair = (
        [row for row in run.where(metric="lift", attribute=attribute) if row["concept"]]
        for run in twins.values()
    )
    truth, value = (np.array([row[name] for row in biased]) for name in ("truth", "value"))
    # with 14 groups the network falls a little short of the planted size
    assert (0.88 if "*" in attribute else 0.9) < np.polyfit(truth, value, 1)[0] < 1.1
    assert np.corrcoef(truth, value)[0, 1] > 0.97
    planted: dict[str, float] = {}
    for row in biased:
        planted[row["concept"]] = max(planted.get(row["concept"], 0.0), abs(row["truth"]))
    verdicts = {row["concept"]: row["verdict"] for row in biased if row["verdict"]}
    large = [word for word, size in planted.items() if size > 0.3]
    assert np.mean([verdicts[word] == "associated" for word in large]) >= 0.93
    wide = [word for word, size in planted.items() if size > 1.5 * np.log(1.25)]
    assert np.mean([verdicts[word] == "no larger" for word in wide]) <= 0.05
    own = [row for row in fair if row["verdict"]]
    assert sum(row["verdict"] == "associated" for row in own) <= 1
    assert np.mean([row["p_placebo"] < 0.05 for row in own]) < 0.085
    sizes = [run.where(metric="lift_size", attribute=attribute)[0] for run in twins.values()]
    assert [size["verdict"] for size in sizes] == ["clear", "none found"]
    assert sizes[0]["ci_low"] > 0.5 > 0.05 > sizes[1]["ci_high"]


def test_every_row_says_how_sure_it_is(twins: dict[str, Run]) -> None:
    for row in twins["biased"].where(metric="lift"):
        assert row["n"] == 700
        assert row["n_group"] >= 50
        if row["concept"]:
            assert row["ci_low"] < row["value"] < row["ci_high"]
            assert row["null_low"] < 0 < row["null_high"]
            assert (row["verdict"] is None) == (row["p"] is None)


def test_by_parts_the_values_are_the_same(twins: dict[str, Run]) -> None:
    parts = audited("testbed:dual", engine="parts:size=300")
    for one, other in zip(
        twins["biased"].where(metric="lift"), parts.where(metric="lift"), strict=True
    ):
        assert one["value"] == pytest.approx(other["value"], abs=1e-6)
        assert one["verdict"] == other["verdict"]


def test_same_seed_same_rows() -> None:
    first, again = (
        tm.audit("testbed:dual", "testbed:?images=280", probes=["lift"], **FEW) for _ in range(2)
    )
    assert first.table.equals(again.table)


def test_half_the_temperature_is_half_the_lift() -> None:
    """Which is why two scales are never compared unchecked."""
    model = tm.load_model("testbed:dual")

    class Cool:
        name, provenance, world = "cool", model.provenance, model.world
        encode_texts, encode_images = model.encode_texts, model.encode_images
        logit_scale = model.logit_scale / 2

    cool, own = (
        tm.audit(one, "testbed:?images=280", probes=["lift"], **FEW).where(metric="lift")
        for one in (Cool(), model)
    )
    assert cool[0]["value"] == pytest.approx(own[0]["value"] / 2, abs=1e-4)


def test_neutral_words_that_are_given_are_the_ones_used(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text("word,pos\n" + "".join(f"thing{n},noun\n" for n in range(300)))
    prompts = lift_prompts(audit_prompts(object(), "sobit", placebo=str(own)), object())
    assert {p.concept for p in prompts if p.role == "placebo"} == {f"thing{n}" for n in range(300)}


class Random:
    """Texts have random embeddings; the same text always has the same."""

    name, logit_scale = "random", 10.0

    def encode_texts(self, texts: list[str]) -> np.ndarray:
        return np.stack([np.random.default_rng([*text.encode()]).normal(size=8) for text in texts])


@pytest.mark.parametrize("planted", [False, True])
def test_neutral_words_that_are_given_may_be_built_in_ones(tmp_path: Path, planted: bool) -> None:
    own, embeddings = tmp_path / "own.csv", np.random.default_rng(0).normal(size=(140, 8))
    own.write_text("word,pos\nchair,noun\nlamp,noun\n")
    model = "testbed:dual" if planted else Random()
    faces = "testbed:?images=140" if planted else tm.faces(embeddings, {"kind": ["a", "b"] * 70})
    run = tm.audit(model, faces, words="nurse,doctor", placebo=str(own), probes=["lift"],
                   bootstraps=0, options={"lift": {"splits": 0}})  # fmt: skip
    notes = [row["note"] for row in run.where(metric="words_beyond")]
    assert notes
    assert all("judged by 2 neutral words" in note for note in notes)


def test_nouns_are_judged_by_neutral_words_about_people() -> None:
    class Encoder:
        def encode_texts(self, texts: list[str]) -> np.ndarray:
            return np.random.default_rng(0).normal(size=(len(texts), 8))

    prompts = lift_prompts(audit_prompts(Encoder(), "sobit"), Encoder())
    nouns = {p.concept for p in prompts if p.role == "placebo" and p.pos == "noun"}
    assert nouns == {word.text for word in load("neutral-people").words}
    kinds = {one.scored.pos: one for one in class_texts(Encoder(), prompts, 1.0)}
    assert set(kinds) == {"noun", "adjective"}
    nouns_scored = kinds["noun"].scored
    assert len(nouns_scored.neutral) == len(nouns)
    texts = kinds["noun"].vectors[len(nouns_scored.words) :]
    assert np.abs(texts.mean(axis=0)).max() < 1e-12


def test_a_class_without_neutral_words_is_left_out() -> None:
    class Encoder:
        def encode_texts(self, texts: list[str]) -> np.ndarray:
            return np.eye(8)[: len(texts)]

    word = Prompt("a photo of a nurse", "nurse", "a photo of a {}", "work", "word", "noun")
    (found,) = class_texts(Encoder(), [word], 1.0)
    assert len(found.vectors) == 0


@pytest.mark.parametrize(
    ("scale", "message"),
    [(0.0, "positive number"), (float("inf"), "positive number"), (np.nan, "positive number")],
)
def test_a_scale_that_is_none(scale: float, message: str) -> None:
    model = tm.load_model("testbed:dual")

    class Odd:
        name, provenance, world = "odd", model.provenance, model.world
        encode_texts, encode_images = model.encode_texts, model.encode_images
        logit_scale = scale

    with pytest.raises(TiltmeterError, match=message):
        tm.audit(Odd(), "testbed:?images=140", probes=["lift"])


def test_few_images_of_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    run = tm.audit("testbed:dual", "testbed:?images=70", probes=["lift"], **FEW)
    (row,) = run.where(metric="lift", attribute="hue")
    assert row["value"] is None
    assert "fewer than 20 images" in row["note"]
    terminal.run(run)
    assert "hue: not judged: fewer than 20 images" in capsys.readouterr().out
    assert run.where(metric="lift_size", attribute="shape")


def test_the_command(tmp_path: Path) -> None:
    done = tiltmeter("audit", "testbed:dual", "--probe", "lift", "--bootstraps", "20",
                     "--images", "testbed:?images=280",
                     "--option", "lift.splits=10", "--out", "run", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "clear        Words, by shape: " in done.stdout
    assert "Largest lifts by shape" in (tmp_path / "run/report.html").read_text()
