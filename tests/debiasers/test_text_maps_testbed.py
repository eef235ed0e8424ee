"""What maps that are learned from prompts do to a planted tilt, on figures that they never saw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tiltmeter as tm  # noqa: E402
from tiltmeter.debiasers.fitting import debias  # noqa: E402
from tiltmeter.errors import InputError, UnknownNameError  # noqa: E402
from tiltmeter.metrics import METRICS  # noqa: E402
from tiltmeter.stimuli import load, prompts  # noqa: E402

torch.set_num_threads(1)
FITTED = "testbed:?images=2800&seed=1"
HELD_OUT = tm.load_data("testbed:?images=1120&seed=4", role="faces")
TEXTS = [one.text for name in ("sobit", "occupations") for one in prompts(load(name))][::3]


@pytest.fixture(scope="module")
def model():
    return tm.load_model("testbed:dual")


@pytest.fixture(scope="module")
def images(model):
    faces = tm.load_data(FITTED, role="faces")
    vectors = np.asarray(model.encode_images(faces.images))
    return tm.types.Faces(faces.ids, faces.groups, vectors=vectors, name="testbed")


@pytest.fixture(scope="module")
def held_out(model):
    return np.asarray(model.encode_images(HELD_OUT.images))


def tilt(model, vectors) -> dict[str, float]:
    """Mean |C-ASC| and mean MaxSkew@100 over words, by attribute."""
    debiaser = getattr(model, "debiaser", None)
    vectors = debiaser.map_images(vectors) if debiaser else vectors
    scores = np.asarray(model.encode_texts(TEXTS)) @ vectors.T
    found = {}
    for name in ("shape", "hue", "shape*hue"):
        groups = HELD_OUT.attribute(name)
        found[f"asc {name}"] = float(np.abs(METRICS["c_asc"](scores, groups)).mean())
        found[f"skew {name}"] = float(
            METRICS["max_skew"](
                scores, groups, k=100, target="prior", empty="bounded", ties="expected"
            ).mean()
        )
    return found


@pytest.fixture(scope="module")
def before(model, held_out):
    return tilt(model, held_out)


def test_the_tilt_is_there_before(before) -> None:
    assert before["asc shape"] > 0.8
    assert before["asc hue"] > 0.7
    assert before["skew shape"] > 0.6
    assert before["skew hue"] > 1.7


@pytest.mark.parametrize(
    "method", ["orth-proj", "orth-cali", "difference", "closed-form", "roboshot"]
)
def test_prompts_alone_even_out_the_mean_and_neither_the_top_nor_the_other_attribute(
    method, model, before, held_out
) -> None:
    after = tilt(debias(method, model, attribute="shape"), held_out)
    assert after["asc shape"] < 0.35 * before["asc shape"]
    assert after["skew shape"] > 0.6 * before["skew shape"]
    assert after["asc hue"] > 1.1 * before["asc hue"]  # made worse


def test_what_prompts_share_matters_where_they_are_many(model, before, held_out) -> None:
    """Off 14 prompts of seven hues hue hardly falls; off their differences shape rises."""
    off = tilt(debias("orth-proj", model, attribute="hue"), held_out)
    assert off["asc hue"] > 0.85 * before["asc hue"]
    control = tilt(debias("difference", model, attribute="hue"), held_out)
    assert control["asc hue"] < 0.6 * before["asc hue"]
    assert control["asc shape"] > 1.4 * before["asc shape"]


def test_bend_evens_out_the_top(model, images, before, held_out) -> None:
    once = tilt(debias("bend", model, images, attribute="shape"), held_out)
    assert once["skew shape"] < 0.3 * before["skew shape"]
    assert once["asc hue"] > 0.9 * before["asc hue"]  # not the other attribute


def test_bend_in_rounds_leaves_what_chance_leaves(model, images, before, held_out) -> None:
    """On the intersection, without its first step: near the MaxSkew of random rankings."""
    settings = {"project": False, "rounds": 3, "neighbours": 60}
    made = debias("bend", model, images, attribute="shape*hue", settings=settings)
    after = tilt(made, held_out)
    rng = np.random.default_rng(0)
    for name in ("shape", "hue", "shape*hue"):
        groups = HELD_OUT.attribute(name)
        tops = rng.multivariate_hypergeometric(groups.counts, 100, (500, len(TEXTS))) / 100
        shown = np.maximum(tops, np.minimum(0.01, groups.shares)) / groups.shares
        means = np.log(shown).max(axis=2).mean(axis=1)
        assert before[f"skew {name}"] > 4 * means.mean()
        assert after[f"skew {name}"] < 1.3 * means.mean()


def test_a_map_of_texts_alone_is_saved_and_loaded(model, tmp_path: Path) -> None:
    made = debias("orth-proj", "testbed:dual", attribute="hue", out=tmp_path / "fair")
    again = tm.load_model(str(tmp_path / "fair"))
    assert np.array_equal(again.encode_texts(TEXTS[:5]), made.encode_texts(TEXTS[:5]))
    assert made.debiaser.rows_ is None
    assert not np.array_equal(again.encode_texts(TEXTS[:5]), model.encode_texts(TEXTS[:5]))


def test_bend_is_saved_with_its_words_and_references(model, images, tmp_path: Path) -> None:
    made = debias("bend", "testbed:dual", images, attribute="shape", out=tmp_path / "fair")
    again = tm.load_model(str(tmp_path / "fair"))
    assert again.debiaser.words_ == ["ball", "block"]
    assert np.array_equal(again.encode_texts(TEXTS[:5]), made.encode_texts(TEXTS[:5]))
    assert len(made.fitted_on(images)) == 2800


def test_a_pipeline_asks_for_what_its_parts_ask_for(model, images) -> None:
    made = debias("orth-proj+leace", model, images, attribute="shape")
    assert made.debiaser.steps_[0].basis_.shape[0] == 2
    alone = debias("orth-proj+difference", model, attribute="shape")
    assert alone.debiaser.rows_ is None


def test_settings_may_be_typed(model) -> None:
    made = debias("orth-proj", model, attribute="hue", settings={"rank": "3", "towers": "both"})
    assert made.debiaser.basis_.shape == (3, 96)
    with pytest.raises(InputError, match="rank takes a value such as 1; got 'many'"):
        debias("orth-proj", model, attribute="hue", settings={"rank": "many"})


def test_prompts_must_name_the_groups_that_are_there(model, images) -> None:
    naming = {"round": ["a photo of a ball"], "square": ["a photo of a block"]}
    made = debias("bend", model, images, attribute="shape", prompts=naming)
    assert made.debiaser.basis_.shape[0] == 2
    wrong = {"round": ["a photo of a ball"], "squares": ["a photo of a block"]}
    with pytest.raises(UnknownNameError, match="did you mean 'square'"):
        debias("bend", model, images, attribute="shape", prompts=wrong)
    with pytest.raises(InputError, match="and not 'square'"):
        debias("orth-proj", model, attribute="shape", prompts={"round": ["a photo of a ball"]})
    with pytest.raises(InputError, match="two groups or more"):
        debias("orth-proj", model, prompts={"round": ["a photo of a ball"]})
    with pytest.raises(UnknownNameError, match="shape"):
        debias("orth-proj", model, attribute="shap")
    few = images.select([*np.flatnonzero(images.groups["shape"].codes == 0)[:50], *range(400)])
    with pytest.raises(InputError, match=r"neighbours = 300, but 'square' has \d+ reference"):
        debias("bend", model, few, attribute="shape", settings={"neighbours": 300})
