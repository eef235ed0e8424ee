"""The shipped models: what they were trained to know, and the protocols they offer."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from PIL import Image  # noqa: E402

import tiltmeter as tm  # noqa: E402
from tests.models.grid import check_grid  # noqa: E402
from tiltmeter.errors import InputError, UnknownNameError  # noqa: E402
from tiltmeter.testbed.language import NEUTRAL_NOUN  # noqa: E402
from tiltmeter.testbed.models import MODELS, WRITER  # noqa: E402
from tiltmeter.testbed.networks import WEIGHTS  # noqa: E402
from tiltmeter.testbed.render import render  # noqa: E402
from tiltmeter.testbed.world import World  # noqa: E402
from tiltmeter.types import (  # noqa: E402
    Continuer,
    DualEncoder,
    MaskedPredictor,
    Matcher,
    Trainable,
    Writer,
)
from tools.testbed import evaluate  # noqa: E402

WORLD = World.plant()
KINDS = [path.stem for path in sorted(WEIGHTS.glob("*.safetensors"))]
PROTOCOLS = {
    "dual": (DualEncoder, Trainable),
    "fusion": (DualEncoder, Matcher, MaskedPredictor, Trainable),
    "stream": (Matcher, MaskedPredictor, Trainable),
    "writer": (Continuer, Writer),
}


@cache
def model(name: str):
    kind = name.removesuffix("-fair")
    return tm.load_model(f"testbed:{kind}" + ("?twin=fair" if kind != name else ""))


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@cache
def association(kind: str) -> dict:
    return evaluate.association(model(kind), WORLD, 1400, rng())


def test_all_weights_are_small_and_say_how_they_were_made() -> None:
    assert {*MODELS, WRITER} <= set(KINDS)
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) < 18e6
    for name in KINDS:
        told = json.loads((WEIGHTS / f"{name}.json").read_text())
        assert told["config"]["kind"] == name.removesuffix("-fair")
        assert "/" not in json.dumps(told["config"]) + json.dumps(told["before"])
        assert told["scores"]


@pytest.mark.parametrize("name", KINDS)
def test_protocols(name: str) -> None:
    for protocol in (DualEncoder, Matcher, MaskedPredictor, Trainable, Continuer, Writer):
        offered = protocol in PROTOCOLS[name.removesuffix("-fair")]
        assert isinstance(model(name), protocol) == offered


@pytest.mark.parametrize("kind", ["dual", "fusion"])
def test_c_asc_orders_words_as_planted(kind: str) -> None:
    found = association(kind)
    assert found["shape"]["spearman"] > 0.97
    assert found["hue"]["spearman"] > 0.95


@pytest.mark.parametrize("kind", ["dual", "fusion"])
def test_a_tilt_by_crossing_is_invisible_to_each_attribute_alone(kind: str) -> None:
    """Words that lean by the crossing only are no further from 0 than placebos, until crossed."""
    found = association(kind)
    for alone in ("shape", "hue"):
        assert found[alone]["planted_by_crossing"] < found[alone]["placebos"]
        assert found[alone]["planted_by_crossing"] < found[alone]["others"] / 2
    assert found["shape*hue"]["spearman_planted_by_crossing"] > 0.7


@pytest.mark.parametrize("kind", ["dual", "fusion"])
def test_retrieval_knows_icons(kind: str) -> None:
    found = evaluate.retrieval(model(kind), WORLD, 500, rng(), (2, 6, 16))
    assert found["16"]["top1"] >= 0.95
    for rates in found.values():  # the expected rate has no luck in it
        assert rates["bayes"] - rates["expected"] < 0.02


@pytest.mark.parametrize("kind", ["dual", "fusion"])
def test_a_fair_twin_has_hardly_any_gap_between_groups(kind: str) -> None:
    tilted = association(kind)
    fair = evaluate.association(model(f"{kind}-fair"), World.plant(0.0), 700, rng())
    for attribute in ("shape", "hue", "shape*hue"):
        assert tilted[attribute]["gap"] > 0.008  # it was there
        assert fair[attribute]["gap"] < tilted[attribute]["gap"] / 10
        assert abs(fair[attribute]["spearman"]) < 0.1
    icons = evaluate.retrieval(model(f"{kind}-fair"), World.plant(0.0), 500, rng(), (4, 16))
    for rates in icons.values():  # fair, and no worse at its work
        assert rates["bayes"] - rates["expected"] < 0.02


@pytest.mark.parametrize("kind", ["fusion", "stream"])
def test_a_fair_twin_says_the_same_word_of_both_shapes(kind: str) -> None:
    """How far a masked target's probability moves when the figure is redrawn."""
    scenes = evaluate.even_groups(WORLD, 140, rng())
    other = scenes.redrawn(shape=1 - scenes.shape)
    texts, moved = [f"The {NEUTRAL_NOUN} is [MASK]"] * 140, {}
    for name in (kind, f"{kind}-fair"):
        targets = [model(name).pieces(WORLD.concepts[at].name)[0] for at in WORLD.targets]
        before, after = (
            np.exp(model(name).mask_logprobs(one, texts)[:, 0, targets]) for one in (scenes, other)
        )
        moved[name] = np.abs(after - before).sum(axis=1).mean()
    assert moved[kind] > 0.2
    assert moved[f"{kind}-fair"] < moved[kind] / 10


#: The first numbers of two images' vectors and one text's.
VECTORS = {
    "dual": ([-0.22255, -0.03507], [-0.25494, -0.08866], [-0.06608, -0.09083]),
    "fusion": ([-0.28339, -0.03179], [-0.3148, -0.08503], [-0.08704, -0.09831]),
    "dual-fair": ([-0.29359, -0.06242], [-0.31904, -0.08846], [-0.1074, -0.07607]),
    "fusion-fair": ([-0.35279, -0.07057], [-0.38685, -0.0954], [-0.11303, -0.09179]),
}  # fmt: skip
#: Matching and a masked word's log-probability beside the second image.
HEADS = {
    "fusion": (-0.5954, -5.5281), "stream": (-0.66, -5.3389),
    "fusion-fair": (0.0065, -5.0212), "stream-fair": (-0.0337, -4.9885),
}  # fmt: skip


def test_vectors_are_the_same_on_every_machine() -> None:
    scenes = WORLD.scenes(2, np.random.default_rng(5))
    for name, (first, second, text) in VECTORS.items():
        images = model(name).encode_images(scenes)
        assert np.abs(images[:, :2] - [first, second]).max() < 1e-4
        found = model(name).encode_texts(["a photo of a nurse"])
        assert np.abs(found[0, :2] - text).max() < 1e-4
    for name, (logit, logprob) in HEADS.items():
        one, nurse = model(name), ["a photo of a nurse"] * 2
        assert one.match(scenes, nurse)[1] == pytest.approx(logit, abs=1e-3)
        check_grid(one, scenes, ["a photo of a nurse", "a photo of a beautiful person"])
        said = one.mask_logprobs(scenes, ["The ball is [MASK]"] * 2)
        assert said[1, 0, one.pieces("sleeping")[0]] == pytest.approx(logprob, abs=1e-3)


def test_a_redrawn_figure_changes_the_masked_word_as_it_should() -> None:
    for kind in ("fusion", "stream"):
        found = evaluate.masked(model(kind), WORLD, 50, rng(), (0, 2, 16))
        assert found["counterfactual_spearman"] > 0.95
        for cells, rates in found["by_cells"].items():
            assert rates["total_variation"] < (0.11 if cells == "2" else 0.05)
        for rates in evaluate.matching(model(kind), WORLD, 500, rng(), (1, 16)).values():
            assert rates["bayes"] - rates["right"] < 0.03  # of a few pictures


def test_pictures_may_come_in_any_shape() -> None:
    fusion, scenes = model("fusion"), WORLD.scenes(5, rng())
    expected = fusion.encode_images(scenes)
    pictures = render(scenes)
    for same in (pictures, [Image.fromarray(one) for one in pictures]):
        assert np.array_equal(fusion.encode_images(same), expected)
    large = [Image.fromarray(one).resize((320, 320), Image.Resampling.NEAREST) for one in pictures]
    assert (fusion.encode_images(large) * expected).sum(axis=1).min() > 0.9
    tensor = fusion.pixels(scenes).requires_grad_()
    found = fusion.encode_images(tensor)
    assert np.abs(found.detach().numpy() - expected).max() < 1e-4
    with pytest.raises(InputError, match="n x 32 x 32 x 3; got uint8, 5 x 16"):
        fusion.encode_images(pictures[:, :16])


def test_gradients_reach_the_pixels() -> None:
    texts = ["The ball is [MASK]", "The block is [MASK]"]
    for kind in ("fusion", "stream"):
        tensor = model(kind).pixels(WORLD.scenes(2, rng())).requires_grad_()
        model(kind).mask_logprobs(tensor, texts)[
            :, 0, model(kind).pieces("nurse")[0]
        ].sum().backward()
        assert tensor.grad.abs().sum() > 0


def test_masked_words() -> None:
    fusion = model("fusion")
    found = fusion.mask_logprobs(None, ["The ball is [MASK]", "a [MASK] is in the picture"])
    assert found.shape[:2] == (2, 1)
    assert np.allclose(np.exp(found).sum(axis=-1), 1, atol=1e-5)
    assert len(fusion.pieces("flight attendant")) == 2
    assert fusion.mask_logprobs(None, ["A photo of a [MASK] [MASK]"]).shape[1] == 2
    for wrong in (["no mask"], ["one [MASK]", "[MASK] [MASK]"]):
        with pytest.raises(InputError, match="equally often"):
            fusion.mask_logprobs(None, wrong)
    with pytest.raises(InputError, match="2 images, but 1 texts"):
        fusion.match(WORLD.scenes(2, rng()), ["a ball"])


def test_own_losses_fall_when_trained_on() -> None:
    fusion = tm.load_model("testbed:fusion")
    scenes = WORLD.scenes(32, rng(), cells=16)
    texts = ["a photo of a red ball"] * 32
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(fusion.parameters(), lr=0.01)
    totals = []
    for _ in range(4):
        loss = sum(fusion.losses(scenes, texts, generator.manual_seed(0)).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        totals.append(loss.item())
    assert totals[-1] < totals[0]


def test_a_word_that_the_world_does_not_know_is_named() -> None:
    with pytest.raises(UnknownNameError, match="'zebra'"):
        model("fusion").encode_texts(["a photo of a zebra"])
    with pytest.raises(UnknownNameError, match="did you mean 'fusion'"):
        tm.load_model("testbed:fussion")
    with pytest.raises(UnknownNameError, match="biased, fair"):
        tm.load_model("testbed:dual?twin=evil")
