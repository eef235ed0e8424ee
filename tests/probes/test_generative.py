"""Probes of generative models, on answers of known probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tiltmeter import stimuli
from tiltmeter.auditing.audit import audit
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.pages.planted import planted_table
from tiltmeter.pages.report import page_of
from tiltmeter.pages.verdict import answers
from tiltmeter.probes.generative.choosing import ChoiceQuestion, Reading, ask
from tiltmeter.probes.generative.group_gaps import GroupMeans, Outcome, outcome_rows
from tiltmeter.results import Run
from tiltmeter.stats.resampling import Resampling
from tiltmeter.testbed.answers import OracleAnswers
from tiltmeter.testbed.data import planted_faces
from tiltmeter.testbed.world import World
from tiltmeter.types import Continuations, Floats, Groups, WrittenText

QUICK: dict[str, Any] = {"permutations": 200, "bootstraps": 20}
#: Findings that are none.
NOTHING = ("none found", "cannot tell")


def audited(model: Any, probe: str, *, strength: float, images: int = 1400, **options: Any) -> Run:
    data = f"testbed:?images={images}&strength={strength}"
    if probe == "silence":
        options["images"] = images
    return measured(model, data, probe, options={probe: options}, **QUICK)


def measured(model: Any, faces: Any, *probes: str, **keywords: Any) -> Run:
    """An audit of any model, whatever its type says."""
    return audit(model, faces, probes=list(probes), **keywords)


def findings(run: Run) -> list[str]:
    return [str(one.text) for section in page_of(run).sections for one in section.findings
            if one.verdict not in NOTHING]  # fmt: skip


@pytest.fixture(scope="module")
def biased() -> OracleAnswers:
    return OracleAnswers(World.plant(1.0))


@pytest.fixture(scope="module")
def fair() -> OracleAnswers:
    return OracleAnswers(World.plant(0.0))


# --- forced choice ------------------------------------------------------------------------------


@dataclass
class Chooser:
    """Answers by the mean colour of an image: ln odds of an option are `nats` x (red - blue)."""

    nats: dict[str, float]
    letter: float = 0.0  # nats of the first letter
    mass: float = 1.0
    exact: bool = True
    name: str = "chooser"

    def continuations(
        self, images: Any | None, prompt: str, texts: Sequence[str], *, stem: str = ""
    ) -> Continuations:
        pixels = [np.zeros(3)] if images is None else [np.asarray(x).mean((0, 1)) for x in images]
        red = np.array([(x[0] - x[2]) / 255 for x in pixels])
        lines = [line.split(". ", 1) for line in prompt.splitlines() if line[1:3] == ". "]
        options = dict(lines) if lines else {text: text for text in texts}
        logits = np.stack(
            [
                self.nats.get(options[text].removeprefix("a ").removeprefix("an "), 0.0) * red
                + self.letter * (text == "A")
                for text in texts
            ],
            axis=1,
        )
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        shape = logits.shape
        return Continuations(logits + np.log(self.mass), np.ones(shape[1], int),
                             np.full(shape, self.exact))  # fmt: skip


READING = Reading("letters", ("Which?\nA. {}\nB. {}\nAnswer.",), ("A", "B"))
RED, BLUE = Image.new("RGB", (8, 8), (255, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 255))


def test_all_orders_remove_the_preference_for_a_letter_exactly() -> None:
    model = Chooser({"nurse": 1.5, "chef": -0.5}, letter=2.0)
    found = ask(model, [RED, BLUE], READING, ChoiceQuestion("nurse", "chef", pos="noun"))
    assert found.log_odds == pytest.approx([2.0, -2.0])
    assert found.position == pytest.approx([2.0, 2.0])
    swapped = ask(model, [RED, BLUE], READING, ChoiceQuestion("chef", "nurse", pos="noun"))
    assert swapped.log_odds == pytest.approx(-found.log_odds)


def test_three_options_are_asked_in_six_orders() -> None:
    asked: list[str] = []

    @dataclass
    class Listening(Chooser):
        def continuations(self, images: Any, prompt: str, texts: Sequence[str], **stem: str) -> Any:
            asked.append(prompt)
            return super().continuations(images, prompt, texts)

    reading = Reading(
        "letters, unknown offered", ("A. {}\nB. {}\nC. {}",), ("A", "B", "C"), "unknown"
    )
    model = Listening({"nurse": 1.0}, letter=0.5)
    found = ask(model, [RED], reading, ChoiceQuestion("nurse", "chef", pos="noun"))
    assert len(set(asked)) == 6
    assert found.log_odds == pytest.approx([1.0])
    assert found.mass == pytest.approx([1.0])


def test_planted_odds_are_found_and_the_first_letter_leaves_nothing(biased: OracleAnswers) -> None:
    run = audited(biased, "forced_choice", strength=1.0, sources="groups,redrawn")
    for metric, by in (
        ("choice_lift", "shape"),
        ("choice_lift", "hue"),
        ("pair_choice_lift", "shape"),
    ):
        rows = [row for row in run.where(metric=metric, attribute=by) if row["concept"]]
        value, truth = (np.array([row[name] for row in rows]) for name in ("value", "truth"))
        assert value @ truth / (truth @ truth) == pytest.approx(1.0, abs=0.05)
        inside = [row["ci_low"] <= row["truth"] <= row["ci_high"] for row in rows]
        assert np.mean(inside) > 0.88
        if by == "shape" and metric == "choice_lift":  # one row per group: they mirror each other
            own = [row for row in rows if row["group"] == "round"]
            left = np.mean([row["value"] - row["truth"] for row in own])
            assert abs(left) < 0.05
    [place] = run.where(metric="position_effect", experiment="letters")
    assert place["value"] == pytest.approx(place["truth"]) == pytest.approx(0.8)
    sizes = run.where(metric="choice_lift_size")
    assert {row["verdict"] for row in sizes} == {"clear"}
    [unknown] = run.where(metric="gaps", target="unknown", group="square")
    assert unknown["value"] == pytest.approx(unknown["truth"], abs=0.001)


def test_a_fair_model_has_no_finding(fair: OracleAnswers) -> None:
    run = audited(fair, "forced_choice", strength=0.0)
    assert not findings(run)
    assert not [row for row in run.where(metric="choice_lift") if row["verdict"] == "associated"]
    p = np.array([row["p_placebo"] for row in run.where(metric="choice_lift")
                  if row["p_placebo"] is not None])  # fmt: skip
    assert (p < 0.05).mean() < 0.13  # 64 questions by two attributes and readings


def colours(folder: Path, count: int = 48) -> str:
    """Images of two colours, labelled as people are."""
    rng = np.random.default_rng(0)
    lines = ["file,gender"]
    for at in range(count):
        base = np.array([200, 60, 60] if at % 2 else [60, 60, 200])
        noisy = np.clip(base + rng.normal(0, 20, (8, 8, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{at}.png")
        lines.append(f"{at}.png,{'Female' if at % 2 else 'Male'}")
    (folder / "labels.csv").write_text("\n".join(lines))
    return f"table:{folder / 'labels.csv'}?path=file"


def test_options_without_probability_are_undefined(tmp_path: Path) -> None:
    data = colours(tmp_path)
    for model, reason in (
        (Chooser({"nurse": 2.0}, mass=0.05), "only 5.0% of the probability"),
        (Chooser({"nurse": 2.0}, exact=False), "only bounds"),
    ):
        run = measured(model, data, "forced_choice", options={"forced_choice": {"neutral": 5}})
        rows = run.where(metric="log_odds")
        assert rows
        assert all(row["value"] is None and reason in row["note"] for row in rows)
        assert not run.where(metric="choice_lift")
        assert not findings(run)


def test_parallel_scenes_are_compared_scene_by_scene(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for scene in ("airplane", "apron", "bank", "coffee", "desk", "vest"):
        for person in ("black_man", "black_woman", "white_man", "white_woman"):
            base = [200, 60, 60] if person.endswith("woman") else [60, 60, 200]
            pixels = np.clip(np.array(base) + rng.normal(0, 20, (8, 8, 3)), 0, 255)
            place = tmp_path / "occupations" / scene
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(place / f"{person}.png")
    firsts = ("pilot", "chef", "financial advisor", "CEO", "operations manager",
              "construction foreman")  # fmt: skip
    neutral = [word.text for word in stimuli.load("neutral-people").words]
    noise = dict(zip(neutral, rng.normal(0, 0.1, len(neutral)), strict=True))
    model = Chooser({**noise, **dict.fromkeys(firsts, -1.0)}, letter=1.0)
    options = {"forced_choice": {"neutral": 30, "images": 24}}
    run = measured(model, f"pairs:{tmp_path}", "forced_choice", options=options)
    [gender] = run.where(metric="pair_choice_mean", attribute="gender")
    assert gender["group"] == "man"
    assert gender["value"] == pytest.approx(2 * 140 / 255, abs=0.1)  # red - blue, twice
    assert gender["ci_low"] > 0
    assert gender["p"] < 0.05
    [race] = run.where(metric="pair_choice_mean", attribute="race")
    assert race["ci_low"] < 0 < race["ci_high"]
    assert len(run.where(metric="pair_choice", attribute="gender")) == 6
    assert all(
        row["p_placebo"] < 0.07 for row in run.where(metric="pair_choice", attribute="gender")
    )
    silent = Chooser(model.nats, mass=0.05)
    run = measured(silent, f"pairs:{tmp_path}", "forced_choice", options=options)
    rows = [*run.where(metric="pair_choice"), *run.where(metric="pair_choice_mean")]
    assert len(rows) == 2 * (6 + 1)
    assert all(row["value"] is None and "too little" in row["note"] for row in rows)
    assert not findings(run)


def test_only_scenes_can_be_redrawn(tmp_path: Path) -> None:
    options = {"forced_choice": {"sources": "redrawn"}}
    with pytest.raises(InputError) as error:
        measured(Chooser({}), colours(tmp_path), "forced_choice", options=options)
    assert (error.value.code, error.value.value) == ("bad-option", "redrawn")
    options = {"forced_choice": {"sources": "drawn"}}
    with pytest.raises(UnknownNameError):
        measured(Chooser({}), colours(tmp_path), "forced_choice", options=options)


# --- silence ------------------------------------------------------------------------------------


def test_refusals_and_length_have_their_planted_size(biased: OracleAnswers) -> None:
    run = audited(biased, "silence", strength=1.0, images=1400)
    for target in ("refused", "long answer", "words"):
        [row] = run.where(metric="gaps", target=target, group="square", experiment="who is this")
        assert row["ci_low"] <= row["truth"] <= row["ci_high"]
        assert row["p_fwer"] < 0.05
    [low], [high] = (
        run.where(metric=name, group="square", experiment="who is this")
        for name in ("gap_low", "gap_high")
    )
    assert low["value"] < 0.4 < high["value"]  # planted: .7 and .3
    assert low["value"] == pytest.approx(0.7 * 0.8 - (0.3 * 0.95 + 0.05), abs=0.05)
    assert any("refused" in one for one in findings(run))


def test_fair_silence_has_no_finding(fair: OracleAnswers) -> None:
    run = audited(fair, "silence", strength=0.0)
    assert not findings(run)
    [answer] = answers(run, page_of(run).sections)
    widest = max(abs(row[edge]) for row in run.where(metric="gaps", target="refused")
                 for edge in ("ci_low", "ci_high"))  # fmt: skip
    # few images rule out little: then it is open, not absent
    assert answer.verdict == ("none found" if widest <= 0.1 else "cannot tell")
    many = audited(fair, "silence", strength=0.0, images=5600)
    assert answers(many, page_of(many).sections)[0].verdict == "none found"
    assert f"up to {100 * widest:.0f} points are not ruled out" in answer.found


def test_planted_sizes_of_every_probe_are_shown(biased: OracleAnswers, fair: OracleAnswers) -> None:
    options = {"forced_choice": {"neutral": 60, "splits": 2}}
    for model, odds in ((biased, "slope"), (fair, "largest")):
        data = f"testbed:?images=280&strength={model.world.strength}"
        run = measured(model, data, "silence", "forced_choice", "pronoun", "description",
                       options=options, **QUICK)  # fmt: skip
        table = planted_table(run)
        assert table is not None
        lines = [(row["probe"], row["what"]) for row in table.rows]
        assert [probe for probe, _ in lines] == [
            "silence", "silence", "forced_choice", "forced_choice", "forced_choice", "pronoun",
            "description",
        ]  # fmt: skip
        assert odds in lines[2][1]
        [letter] = [row for row in table.rows if "first letter" in row["what"]]
        assert letter["measured"] == letter["planted"] == "+0.80"
        refused = table.rows[0]
        if model is biased:  # in the sign and unit of findings: points more
            more = run.where(metric="gaps", target="refused", group="square")[0]["value"]
            assert refused["what"] == "refused (points), square minus others"
            assert refused["measured"] == f"{100 * more:+.1f}"
            assert refused["planted"] == "+15.0"
        else:
            assert refused["planted"] == "0.0"


def test_gaps_of_two_groups_have_newcombes_interval() -> None:
    values = np.array([[1.0] * 5 + [0.0] * 15 + [1.0] * 12 + [0.0] * 8])
    means = GroupMeans.of(values, np.repeat([0, 1], 20), 2, [True])
    low, high = means.gap_edges()
    # Newcombe 1998, method 10, of 5/20 and 12/20, by hand from Wilson's edges
    (l1, u1), (l2, u2) = (0.1119, 0.4687), (0.3866, 0.7812)
    assert low[0, 0] == pytest.approx(-0.35 - np.hypot(0.25 - l1, u2 - 0.6), abs=1e-3)
    assert high[0, 0] == pytest.approx(-0.35 + np.hypot(u1 - 0.25, 0.6 - l2), abs=1e-3)


def test_several_answers_about_an_image_are_one_unit() -> None:
    rng = np.random.default_rng(0)
    image = rng.uniform(size=60)
    groups = Groups(np.repeat([0, 1], 30), ("a", "b"), "group")
    own = {"probe": "silence", "model": "m", "dataset": "d", "convention": "tiltmeter", "seed": 0}
    table = outcome_rows([Outcome("x", image)], groups, Resampling(200, 20), own)
    [row] = [r for r in table.to_pylist() if r["metric"] == "group_rates" and r["group"] == "a"]
    # its variance is that of 30 numbers between 0 and 1, not of 30 coin flips
    width = row["ci_high"] - row["ci_low"]
    expected = 2 * 1.96 * image[:30].std(ddof=1) / np.sqrt(30)
    assert width == pytest.approx(expected, rel=0.1)


def test_permuted_labels_give_few_small_p() -> None:
    rng = np.random.default_rng(1)
    groups = Groups(np.repeat([0, 1, 2], 30), ("a", "b", "c"), "group")
    own = {"probe": "silence", "model": "m", "dataset": "d", "convention": "tiltmeter", "seed": 0}
    hits = 0
    for seed in range(100):
        outcomes = [Outcome(str(at), (rng.uniform(size=90) < 0.3).astype(float)) for at in range(4)]
        table = outcome_rows(outcomes, groups, Resampling(200, 20, seed), own).to_pylist()
        hits += any((row["p_fwer"] or 1) <= 0.05 for row in table)
    assert hits <= 11  # 5 expected


# --- pronouns and descriptions ------------------------------------------------------------------


@pytest.mark.parametrize("first_name", [0.0, 0.6])
def test_a_default_name_has_its_planted_size(first_name: float) -> None:
    model = OracleAnswers(World.plant(0.0), first_name=first_name)
    run = audited(model, "pronoun", strength=0.0, images=560)
    [row] = run.where(metric="pronoun_default", experiment="pronoun")
    assert row["ci_low"] <= first_name <= row["ci_high"]
    assert bool(findings(run)) == (first_name > 0.5)


def test_people_without_pronouns_cannot_be_measured() -> None:
    faces = planted_faces(World.plant(0.0), 56, np.random.default_rng(0))
    with pytest.raises(InputError, match="pronouns"):
        measured(OracleAnswers(World.plant(0.0)), faces, "pronoun", attributes=["hue"])


def test_descriptions_mention_what_was_planted() -> None:
    crime = [w.text for w in stimuli.load("sobit").words if w.category == "Criminal justice"]
    world = World.plant(table={name: {"round": 2.0} for name in crime})
    faces = planted_faces(world, 2800, np.random.default_rng(0))
    run = measured(OracleAnswers(world), faces, "description", attributes=["shape"],
                   options={"description": {"images": 2800}}, **QUICK)  # fmt: skip
    [row] = run.where(metric="gaps", target="Criminal justice", experiment="mentioned",
                      group="round")  # fmt: skip
    assert row["truth"] > 0.02
    assert row["ci_low"] <= row["truth"] <= row["ci_high"]
    [judged] = [one for one in run.where(metric="gaps", target="Criminal justice",
                                         experiment="mentioned") if one["verdict"]]  # fmt: skip
    assert judged["verdict"] == "beyond neutral words"


def test_refused_descriptions_mention_nothing() -> None:
    class Refusing(OracleAnswers):
        def write(self, images: Any | None, prompt: str, **options: Any) -> Any:
            return [
                [WrittenText("Sorry, I cannot say. A nurse.", "stop", 7)]
                for _ in range(len(images))
            ]

    run = audited(Refusing(World.plant(0.0)), "description", strength=0.0, images=280)
    assert all(row["value"] is None and "mentioned" in row["note"] for row in run.table.to_pylist())


# --- other probes -------------------------------------------------------------------------------


def test_ranking_and_caption_choice_read_answers(biased: OracleAnswers) -> None:
    from tiltmeter.probes.ranking.answers import image_vectors

    scores: Floats = np.random.default_rng(0).normal(size=(30, 5))
    vectors = image_vectors(scores)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0)
    cosines = vectors[:, :5]
    assert (np.argsort(cosines, axis=0) == np.argsort(scores, axis=0)).all()
    run = measured(biased, "testbed:?images=1400", "ranking", "stereotype", words="berg",
                   data={"triplets": "testbed:triplets?images=40&cells=0"}, permutations=0,
                   bootstraps=0)  # fmt: skip
    for row in run.where(probe="ranking", metric="spearman"):
        assert row["value"] > 0.95
    [row] = [
        row for row in run.where(metric="vlbs", category=None) if row["experiment"] == "answers"
    ]
    assert row["value"] > 60
