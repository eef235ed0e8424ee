"""The planted truth beside what is measured: oracle vectors are ordered as planted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

import tiltmeter as tm
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.models.embeddings import StoredTexts
from tiltmeter.probes.texts import audit_prompts
from tiltmeter.results import Run
from tiltmeter.testbed.captioned import draw_captioned_scenes
from tiltmeter.testbed.data import planted_faces
from tiltmeter.testbed.language import HUES
from tiltmeter.testbed.oracle import Oracle
from tiltmeter.testbed.world import World
from tiltmeter.types import Faces, Groups, planted_world


def audited(strength: float) -> Run:
    """An audit of vectors that a perfect model of the world might give."""
    world, rng = World.plant(strength), np.random.default_rng(0)
    faces = planted_faces(world, 1500, rng)
    crossed = faces.groups["shape"].codes * len(HUES) + faces.groups["hue"].codes
    vectors = Oracle(world).embeddings(1500, rng, groups=crossed)
    prompts = {p.text: p for p in audit_prompts(object(), "berg", templates=["A {} person"])}
    rows = [world.index(prompt.concept) for prompt in prompts.values()]
    model = StoredTexts("oracle", list(prompts.values()), vectors.texts[rows])
    return tm.audit(
        model,
        replace(faces, vectors=vectors.images),
        cross=["shape*hue"],
        k=[100],
        permutations=199,
        bootstraps=0,
    )


def words(run: Run, attribute: str) -> list[dict]:
    rows = run.where(metric="c_asc", attribute=attribute)
    return [row for row in rows if row["concept"] and row["category"] != "placebo"]


def test_what_was_planted_is_measured() -> None:
    run = audited(1.0)
    for attribute in ("shape", "hue", "shape*hue"):
        rows = words(run, attribute)
        found = spearmanr([r["value"] for r in rows], [r["truth"] for r in rows]).statistic
        assert found > 0.95
        [said] = run.where(metric="spearman", attribute=attribute)
        assert said["value"] == pytest.approx(found)
        assert said["ci_low"] <= found <= said["ci_high"]
    placebos = run.where(metric="c_asc", attribute="shape", group="round", category="placebo")
    assert len({round(row["truth"], 9) for row in placebos}) == 1  # none leans more than another
    assert run.where(metric="max_skew")[0]["truth"] is None


def test_a_world_of_strength_zero_establishes_nothing() -> None:
    run = audited(0.0)
    rows = words(run, "shape") + words(run, "hue")
    assert max(abs(row["truth"]) for row in rows) < 1e-12
    assert not any(row["verdict"] == "beyond neutral words" for row in rows)
    assert not run.where(metric="spearman")  # where nothing is planted there is no order


def test_spec() -> None:
    faces = tm.load_data("testbed:?images=280&strength=0.5&seed=3")
    assert len(faces) == 280
    assert faces.groups["hue"].counts.tolist() == [40] * 7
    assert faces.attribute("shape*hue").counts.tolist() == [20] * 14
    assert int(faces.images.drawn.sum()) == 0  # no icon beside any figure
    with pytest.raises(InputError, match="images must be a number; got 'many'"):
        tm.load_data("testbed:?images=many")
    with pytest.raises(InputError, match="at least 28 images"):
        tm.load_data("testbed:?images=5")
    with pytest.raises(UnknownNameError, match="did you mean 'strength'"):
        tm.load_data("testbed:?strenght=1")


@pytest.mark.parametrize("role", ["", "valence", "lexicon", "triplets"])
def test_data_and_models_know_their_world(role: str) -> None:
    world = planted_world(tm.load_data(f"testbed:{role}?strength=0.5"))
    assert world is not None
    assert (world.strength, world.seed) == (0.5, 0)


def test_trained_models_know_their_world_and_real_data_have_none() -> None:
    twins = [tm.load_model(f"testbed:dual?twin={twin}") for twin in ("biased", "fair")]
    assert [planted_world(twin).strength for twin in twins] == [1.0, 0.0]
    assert (
        planted_world(draw_captioned_scenes(World.plant(0.5), 2, np.random.default_rng(0))).strength
        == 0.5
    )
    faces = Faces(("a",), {"group": Groups.from_labels(["x"])})
    assert planted_world(faces.select([0])) is None
