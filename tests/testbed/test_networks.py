"""The networks, their losses and their scores, untrained: shapes, lengths, what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tiltmeter.errors import UnknownNameError  # noqa: E402
from tiltmeter.testbed.captions import NAMES  # noqa: E402
from tiltmeter.testbed.language import vocabulary  # noqa: E402
from tiltmeter.testbed.losses import losses  # noqa: E402
from tiltmeter.testbed.models import MODELS  # noqa: E402
from tiltmeter.testbed.networks import NETWORKS, trained  # noqa: E402
from tiltmeter.testbed.oracle import Oracle, figure_mask  # noqa: E402
from tiltmeter.testbed.render import Scenes  # noqa: E402
from tiltmeter.testbed.world import World  # noqa: E402
from tools.testbed import evaluate as scoring  # noqa: E402
from tools.testbed import train  # noqa: E402
from tools.testbed.evaluate import evaluate, progress_scores, similarities  # noqa: E402
from tools.testbed.expected import TargetPosterior, named_groups  # noqa: E402
from tools.testbed.losses import training_losses  # noqa: E402

WORLD = World.plant()


def network(kind: str):
    torch.manual_seed(0)
    return NETWORKS[kind](len(vocabulary())).eval()


def model(kind: str):
    return MODELS[kind](network(kind), kind, {})


@pytest.fixture
def few_scenes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of progress from a tenth of the scenes: enough where nothing was learned."""
    for name in ("association", "retrieval", "matching", "masked"):
        score = getattr(scoring, name)
        monkeypatch.setattr(
            scoring,
            name,
            lambda model, world, n, *rest, score=score: score(model, world, n // 10, *rest),
        )


@pytest.mark.parametrize("kind", NETWORKS)
def test_losses_begin_at_chance(kind: str) -> None:
    batch = next(train.batches(WORLD, train.Config(kind, 1.0, batch=64), torch.device("cpu")))
    chance = {"contrast": np.log(64), "match": np.log(2), "mask": np.log(len(vocabulary()))}
    for computed in (training_losses(network(kind), batch, 0.15), losses(network(kind), batch)):
        for name, value in computed.items():
            assert value.item() == pytest.approx(chance[name], rel=0.25), name


@pytest.mark.usefixtures("few_scenes")
def test_a_training_leaves_weights_and_scores_behind(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(train, "evaluate", lambda model, strength: {"strength": strength})
    config = train.Config("dual", 0.0, steps=2, batch=16)
    train.train(config, torch.device("cpu"), tmp_path)
    assert "step 2" in capsys.readouterr().out
    written = json.loads((tmp_path / "dual-fair.json").read_text())
    assert written["config"]["steps"] == 2
    # a stream starts from the encoders that it shares with the dual encoder
    stream, dual = network("stream"), train.load_file(tmp_path / "dual-fair.safetensors")
    train.copy_weights(stream, tmp_path / "dual-fair.safetensors")
    assert torch.equal(stream.words.word.weight.half(), dual["words.word.weight"])
    eyes = network("dual")
    train.copy_weights(eyes, tmp_path / "dual-fair.safetensors", "image")
    assert torch.equal(eyes.image_out.weight.half(), dual["image_out.weight"])
    assert torch.equal(eyes.words.word.weight, network("dual").words.word.weight)
    assert torch.equal(stream.layers[2].attend.q.weight.half(), dual["image.2.attend.q.weight"])


def test_what_to_expect_at_a_mask_is_the_oracles_posterior() -> None:
    rng = np.random.default_rng(0)
    concept = rng.choice(WORLD.targets, 200)
    scenes = WORLD.scenes(200, rng, concept=concept, cells=train.draw_cells(200, rng))
    name = rng.integers(0, len(NAMES), 200)
    name[:5] = -1  # nothing to expect there
    tensors = {key: torch.as_tensor(x.copy()) for key, x in vars(scenes).items()}
    found = TargetPosterior(WORLD, torch.device("cpu"))(Scenes(**tensors), torch.as_tensor(name))
    assert found.seen[:5].sum() == found.unseen[:5].sum() == 0
    oracle, text = Oracle(WORLD), named_groups().numpy()[name]
    seen = oracle.posterior(
        image=figure_mask(scenes), text=text, scenes=scenes, among=WORLD.targets
    )
    assert np.abs(found.seen.numpy() - seen)[5:].max() < 1e-6
    unseen = oracle.posterior(text=text, among=WORLD.targets)
    assert np.abs(found.unseen.numpy() - unseen)[5:].max() < 1e-6


def test_batches_are_the_same_for_the_same_seed() -> None:
    first, again, other = (next(iter(train.SceneStream(WORLD, 32, seed))) for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


def test_embeddings_do_not_depend_on_the_batch() -> None:
    dual, scenes = model("dual"), WORLD.scenes(20, np.random.default_rng(0))
    whole = similarities(dual, scenes)
    part = similarities(dual, scenes[:7])
    assert np.abs(whole[:, :7] - part).max() < 1e-4
    assert np.abs(whole).max() <= 1 + 1e-5


def test_scores_of_an_untrained_network_are_no_better_than_chance() -> None:
    found = evaluate(model("dual"), 1.0, n=60)
    assert abs(found["c_asc"]["shape"]["spearman"]) < 0.5
    assert found["retrieval"]["16"]["bayes"] == 1
    assert found["retrieval"]["16"]["top1"] < 0.2


@pytest.mark.usefixtures("few_scenes")
@pytest.mark.parametrize("kind", NETWORKS)
def test_a_line_of_progress(kind: str) -> None:
    line = progress_scores(model(kind), WORLD)
    assert ("C-ASC" in line) == (kind != "stream")
    assert ("redrawn" in line) == (kind != "dual")


def test_an_unknown_network_is_named() -> None:
    with pytest.raises(UnknownNameError, match="dual"):
        trained("duel")
