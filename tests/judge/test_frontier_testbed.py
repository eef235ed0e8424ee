"""The planted world: a correction that sees no test label brings the tilt down to the noise."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from tiltmeter.judge.frontier import frontier
from tiltmeter.judge.frontier.evaluation import BiasEvaluator, CandidateRanking
from tiltmeter.judge.frontier.utility import caption_task
from tiltmeter.metrics.convention import get_convention
from tiltmeter.models import load_model
from tiltmeter.testbed.captioned import draw_captioned_scenes
from tiltmeter.testbed.captions import concept_captions
from tiltmeter.testbed.data import planted_faces
from tiltmeter.testbed.world import World
from tiltmeter.types import Prompt


def leaning(world: World) -> list[Prompt]:
    return [
        Prompt(text, concept.name, concept.templates[0])
        for text, concept in zip(concept_captions().values(), world.concepts, strict=True)
        if not concept.placebo
    ]


def test_words_lean_together_here() -> None:
    """So the band of their mean is wider than that of as many rankings at random."""
    model = load_model("testbed:dual", device="cpu")
    world = World.plant(model.provenance["strength"])
    faces = planted_faces(world, 560, np.random.default_rng(3))
    prompts = leaning(world)
    judge = BiasEvaluator(
        faces,
        ("shape",),
        tuple(prompts),
        get_convention("tiltmeter").with_(k=(50,)),
        permutations=200,
    )
    images = np.asarray(model.encode_images(faces.images))
    texts = np.asarray(model.encode_texts([prompt.text for prompt in prompts]))
    mine = judge.null(CandidateRanking.by_score(texts, images), "max_skew", "shape")
    rng = np.random.default_rng(4)
    order = np.array([rng.permutation(560) for _ in prompts], np.int32)
    random = judge.null(CandidateRanking(order, None), "max_skew", "shape")
    assert mine is not None
    assert random is not None
    assert mine[1].std() > 3 * random[1].std()
    assert mine[0].mean == pytest.approx(random[0].mean, rel=0.1)


def test_halves_of_a_task_share_no_picture() -> None:
    model = load_model("testbed:dual", device="cpu")
    said = draw_captioned_scenes(World.plant(1.0), 80, np.random.default_rng(0), cells=16)
    task = caption_task(model, said, np.asarray(model.encode_images(said.images)), seed=0)
    assert [int((task.half == half).sum()) for half in (0, 1)] == [40, 40]
    hits = [task.hits(task.encoded, task.vectors, half) for half in (0, 1)]
    assert [len(one) for one in hits] == [40, 40]
    assert np.mean(hits) > 0.8  # of 40 pictures, 10 by chance: 0.25
    scores = task.encoded @ task.vectors.T  # the same by hand, for one half
    rows = np.flatnonzero(task.half == 1)
    better = [(scores[at, rows] > scores[at, at]).sum() for at in rows]
    assert hits[1].tolist() == [float(one < 10) for one in better]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 31, 32])
def test_transport_reaches_the_noise_at_under_a_point(seed: int) -> None:
    model = load_model("testbed:dual", device="cpu")
    world = World.plant(model.provenance["strength"])
    found = frontier(
        model, f"testbed:?images=28000&seed={seed}", attribute="shape",
        strengths=["leace:shrink=0.001", "transport"], words=leaning(world),
        shares=(0.8, 0.1, 0.1), bootstraps=50, probes=False,
    )  # fmt: skip
    before, transport = found.before.bias("shape"), found.chosen["transport"]
    assert before.null is not None
    assert before.low > 5 * before.null[2]
    leace = found.chosen["leace"].bias("shape")
    assert leace.value > 5 * before.null[2]  # equal means are not equal tops
    assert min(found.affordable, key=found.validation_bias) is transport
    assert transport.bias("shape").within_null
    assert transport.utility_cost < 0.01
    assert transport.verdict("mean_abs_lift", "hue") == "no worse"
    # no image had a harmful class before; now all images of some hue have one
    assert transport.worse == ["harms by hue and shape*hue"]
    # hue is what is left of every ranking; MaxSkew by hue is near its largest value, ln 7, before
    assert found.before.bias("hue").value > 0.95 * np.log(7)
    rankings = {one.name: one.test["ndkl", "hue"].value for one in (found.before, transport)}
    assert rankings[transport.name] > 1.2 * rankings[found.before.name]
    assert found.best is not transport  # what is worse elsewhere is not recommended
