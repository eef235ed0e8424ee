"""The networks, their losses and their scores, untrained: shapes, lengths, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tiltmeter.errors import UnknownNameError  # noqa: E402
from tiltmeter.testbed import train  # noqa: E402
from tiltmeter.testbed.evaluate import evaluate, pixels, similarities  # noqa: E402
from tiltmeter.testbed.language import vocabulary  # noqa: E402
from tiltmeter.testbed.networks import NETWORKS, trained  # noqa: E402
from tiltmeter.testbed.world import World  # noqa: E402

WORLD = World.plant()


def network(kind: str):
    torch.manual_seed(0)
    return NETWORKS[kind](len(vocabulary())).eval()


@pytest.mark.parametrize("kind", NETWORKS)
def test_losses_begin_at_chance(kind: str) -> None:
    parts, tokens, masked = next(iter(train.Drawn(WORLD, 64, 0)))
    scenes = train.Scenes(**{name: x.numpy() for name, x in parts.items()})
    batch = train.Batch(pixels(scenes), tokens, masked)
    found = train.losses(network(kind), batch, train.Config(kind, 1.0))
    chance = {"contrast": np.log(64), "match": np.log(2), "mask": np.log(len(vocabulary()))}
    for name, value in found.items():
        assert value.item() == pytest.approx(chance[name], rel=0.25), name


def test_batches_are_the_same_for_the_same_seed() -> None:
    first, again, other = (next(iter(train.Drawn(WORLD, 32, seed)))[1] for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


def test_embeddings_do_not_depend_on_the_batch() -> None:
    dual, scenes = network("dual"), WORLD.scenes(20, np.random.default_rng(0))
    whole = similarities(dual, WORLD, scenes)
    part = similarities(dual, WORLD, scenes[:7])
    assert np.abs(whole[:, :7] - part).max() < 1e-4
    assert np.abs(whole).max() <= 1 + 1e-5


def test_scores_of_an_untrained_network_are_no_better_than_chance() -> None:
    found = evaluate(network("dual"), 1.0, n=60)
    assert abs(found["c_asc"]["shape"]["spearman"]) < 0.5
    assert found["retrieval"]["16"]["bayes"] == 1
    assert found["retrieval"]["16"]["top1"] < 0.2


def test_an_unknown_network_is_named() -> None:
    with pytest.raises(UnknownNameError, match="dual"):
        trained("duel")
