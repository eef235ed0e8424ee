"""CounterBias on images in VL-Bias's layout: every image counts for the concept that it shows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import tiltmeter as tm
from tests.command_line import tiltmeter
from tests.probes.counterfactual_sources.test_sources import GENDER, photographs
from tiltmeter.datasets import load_data
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.probes.counterfactual.measuring import CounterfactualQuery, _instances
from tiltmeter.probes.counterfactual.probe import fewer
from tiltmeter.probes.counterfactual.rows import means, statistics_of
from tiltmeter.probes.counterfactual.sources import Swap
from tiltmeter.probes.counterfactual.sources.parallel import ParallelImages
from tiltmeter.results import Run
from tiltmeter.stats.resampling import Resampling
from tiltmeter.testbed.render import render

torch = pytest.importorskip("torch")

SWAP = Swap("gender", ("male", "female"), ("ball", "block"))
#: The testbed's model knows all words of VL-Bias, and figures for people.
QUICK = {"words": "ball,block", "steps": "1", "curve": "0", "templates": "The {g} is [MASK]",
         "softmax": "candidates"}  # fmt: skip


def write_images(place: Path, **count: int) -> Path:
    """So many images of each concept and gender: men are round figures, women square ones."""
    figures = load_data("testbed:?images=28", role="faces").images
    for name, many in count.items():
        kind = "occupations" if name in ("nurse", "doctor") else "activities"
        for gender, shape in (("male", 0), ("female", 1)):
            folder = place / kind / name / gender
            folder.mkdir(parents=True)
            drawn = figures[np.arange(many)].redrawn(shape=np.full(many, shape))
            for at, image in enumerate(render(drawn)):
                Image.fromarray(image).save(folder / f"{at}.png")
    return place


def audit(place: Path, out: Path, **options: str):
    given = [f"counterfactual.{name}={value}" for name, value in (QUICK | options).items()]
    return tiltmeter(
        "audit", "testbed:stream", "--data", f"pairs=vlbias:{place}", "--probe", "counterfactual",
        *(part for one in given for part in ("--option", one)),
        "--permutations", 19, "--bootstraps", 20, "--no-report", "--verbose", "--out", out,
    )  # fmt: skip


def instances(out: Path) -> set[tuple[str, str]]:
    """Which image was asked for which word; neutral words are asked of every image."""
    table = pq.read_table(out / "instances/counterfactual.parquet")
    asked = zip(table["id"].to_pylist(), table["concept"].to_pylist(), strict=True)
    return {(image, concept) for image, concept in asked if concept}


def test_the_default_command(tmp_path):
    """Ten images of a concept and group: no scene has so many, and none is needed."""
    place = write_images(tmp_path / "data", cooking=10, nurse=9)
    done = audit(place, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    asked = instances(tmp_path / "run")
    assert len(asked) == 38
    assert all(name.split("/")[1] == concept for name, concept in asked)
    run = Run.load(tmp_path / "run")
    row = {r["target"]: r for r in run.where(metric="bias_VL", template=None)}
    assert {t: r["n"] + r["n_undefined"] for t, r in row.items() if r["n"] + r["n_undefined"]} == {
        "cooking": 20, "nurse": 18
    }  # fmt: skip
    assert (row["sewing"]["value"], row["sewing"]["note"]) == (None, "no image shows this target")
    shift = {r["target"]: r for r in run.where(metric="log_shift", experiment="adversarial")}
    assert (shift["cooking"]["n"], shift["cooking"]["n_undefined"]) == (20, 0)


def test_concepts_that_are_not_asked_for_are_left_out_and_named(tmp_path):
    place = write_images(tmp_path / "data", cooking=2, nurse=2)
    done = audit(place, tmp_path / "run", targets="activities")
    assert done.returncode == 0, done.stderr
    assert "left out (no target words): nurse 4" in " ".join(done.stdout.split())
    assert {concept for _, concept in instances(tmp_path / "run")} == {"cooking"}
    assert len(instances(tmp_path / "run")) == 4
    none = audit(place / "occupations", tmp_path / "none", targets="activities")
    assert none.returncode == 2
    assert "no image of vlbias shows a target word" in " ".join(none.stderr.split())


def test_a_misspelt_folder_is_an_error_before_the_attack(tmp_path, monkeypatch):
    place = write_images(tmp_path / "data", cookin=2, Baking=2)
    done = audit(place, tmp_path / "run")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "images of 'cookin' (did you mean 'cooking'?)" in said
    assert "Baking" not in said  # capitals are no mistake
    monkeypatch.setattr("tiltmeter.probes.counterfactual.sources.adversarial.attack", _paid)
    with pytest.raises(InputError, match="cookin"):
        _audit(f"vlbias:{place}")
    with pytest.raises(UnknownNameError, match="softmax reading"):
        _audit(f"vlbias:{write_images(tmp_path / 'good', cooking=2)}", softmax="candidate")
    pairs = photographs(tmp_path / "pairs", load_data("testbed:?images=28").select(range(2)))
    for path in pairs.rglob("black_man.png"):
        path.rename(path.with_name("latino_man.png"))
    for path in pairs.rglob("white_man.png"):
        path.unlink()
    with pytest.raises(InputError, match="differ in nothing else"):
        _audit(f"pairs:{pairs}")


def _paid(*_, **__):
    raise AssertionError("an attack was paid for")


def _audit(pairs: str, **options: str) -> Run:
    return tm.audit("testbed:stream", data={"pairs": pairs}, probes=["counterfactual"],
                    options={"counterfactual": QUICK | options})  # fmt: skip


def test_a_limit_keeps_all_concepts_and_both_groups(tmp_path):
    data = load_data(
        f"vlbias:{write_images(tmp_path, cooking=12, nurse=12, sewing=12, doctor=2)}", role="pairs"
    )
    kept = fewer(data, SWAP, 18, np.random.default_rng(0))
    assert Counter(kept.scenes) in (
        Counter(cooking=a, nurse=b, sewing=c, doctor=4)
        for a, b, c in ((5, 5, 4), (5, 4, 5), (4, 5, 5))
    )
    first = SWAP.has_first(kept, SWAP.rows(kept))
    assert abs(first.sum() - (~first).sum()) <= 1
    assert kept.ids == fewer(data, SWAP, 18, np.random.default_rng(0)).ids
    assert kept.ids != fewer(data, SWAP, 18, np.random.default_rng(1)).ids
    few = fewer(data, SWAP, 4, np.random.default_rng(0))
    assert sorted(few.scenes) == ["cooking", "doctor", "nurse", "sewing"]
    assert SWAP.has_first(few, np.arange(4)).sum() == 2
    assert fewer(data, SWAP, 0, np.random.default_rng(0)) is data
    with pytest.raises(InputError, match=r"images=3 .* 4 concepts .* at least 4, or 0"):
        fewer(data, SWAP, 3, np.random.default_rng(0))


def test_a_scene_has_one_number_for_all_sources(tmp_path):
    """Else halves of the scenes would share images where the first scene has no counterpart."""
    figures = load_data("testbed:?images=28", role="faces").select(range(6))
    data = load_data(f"pairs:{photographs(tmp_path, figures)}", role="pairs")
    alone = data.select(
        [r for r, name in enumerate(data.ids) if "scene0" not in name or "_man" in name]
    )
    asked = CounterfactualQuery(GENDER, ("cooking",), ("x",), ("The {g} is [MASK]",))
    attacked = _instances(alone, asked, GENDER.rows(alone))[1]
    rows = ParallelImages().pairs(alone, GENDER)[0]
    true = _instances(alone, asked, rows)[1]
    assert len(set(true)) == 2 < len(set(attacked)) == 3
    number = dict(zip(GENDER.rows(alone), attacked, strict=True))
    assert [number[row] for row in rows] == true.tolist()
    whole = means(np.ones((len(rows), 1)), true, Resampling(9, 9), np.random.default_rng(0))
    assert whole.units.tolist() == [2]


@pytest.mark.parametrize("images", [2, 3, 8])
def test_intervals_of_few_images_cover_the_mean(images):
    """2,000 words of so many images each, true mean 0; bare percentiles of 2 images cover half."""
    rng = np.random.default_rng(0)
    drawn = means(rng.normal(size=(images, 2000)), np.arange(images), Resampling(0, 400), rng)
    told = statistics_of(drawn, "two")
    covered = np.mean((told["ci_low"] <= 0) & (told["ci_high"] >= 0))
    assert 0.91 < covered < 0.98


def test_one_image_has_no_interval():
    one = means(np.array([[1.0]]), np.arange(1), Resampling(9, 9), np.random.default_rng(0))
    told = statistics_of(one, "two")
    assert told["value"] == [1.0]
    assert np.isnan([told["ci_low"], told["ci_high"]]).all()
    assert told["ci_method"] == [None]
