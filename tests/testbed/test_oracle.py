"""Closed forms against a simulation of the world, and against their own definitions."""

from __future__ import annotations

import numpy as np
import pytest

from tiltmeter.errors import InputError
from tiltmeter.testbed.language import GROUPS
from tiltmeter.testbed.oracle import Oracle, figure_mask, shape_mask
from tiltmeter.testbed.world import World

WORLD = World.plant(1.5)
ORACLE = Oracle(WORLD)


@pytest.fixture(scope="module")
def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    concept = WORLD.draw_concepts(2_000_000, rng)
    group = WORLD.draw_groups(concept, rng)
    return concept, group, WORLD.draw_words(concept, group, rng)


def test_pmi_is_that_of_the_world(drawn) -> None:
    concept, group, _ = drawn
    counts = np.zeros((len(WORLD.concepts), len(GROUPS)))
    np.add.at(counts, (concept, group), 1)
    p = counts / len(concept)
    some = WORLD.targets  # frequent enough for a count
    given = np.exp(ORACLE.pmi()[some]) * p.sum(axis=0) * p[some].sum(axis=1, keepdims=True)
    error = np.sqrt(given / len(concept))
    assert (np.abs(p[some] - given) < 5 * error).all()
    planted = [at for at in some if not WORLD.concepts[at].placebo]
    assert np.abs(ORACLE.pmi()[planted]).mean() > 0.5  # there is something to be wrong about


def test_the_posterior_is_that_of_the_world(drawn) -> None:
    concept, group, word = drawn
    rows = (group == 3) & (word // 7 == 1)
    counts = np.bincount(concept[rows], minlength=len(WORLD.concepts)) / rows.sum()
    p = ORACLE.posterior(image=np.eye(len(GROUPS))[[3]], text=shape_mask(np.array([1])))[0]
    some = WORLD.targets
    error = np.sqrt(p[some] / rows.sum())
    assert (np.abs(counts[some] - p[some]) < 5 * error).all()


def test_posteriors_sum_to_one_and_know_a_whole_icon() -> None:
    rng = np.random.default_rng(1)
    concept = WORLD.draw_concepts(50, rng)
    for cells in (0, 3, 16):
        scenes = WORLD.scenes(50, rng, concept=concept, cells=cells)
        p = ORACLE.posterior(image=figure_mask(scenes), scenes=scenes)
        assert np.allclose(p.sum(axis=1), 1)
    assert (p.argmax(axis=1) == concept).all()
    assert p.max(axis=1).min() > 0.999


def test_the_matching_logit_is_posterior_over_prior() -> None:
    rng = np.random.default_rng(2)
    concept = WORLD.draw_concepts(40, rng)
    scenes = WORLD.scenes(40, rng, concept=concept, cells=2)
    p = ORACLE.posterior(image=figure_mask(scenes), scenes=scenes)[np.arange(40), concept]
    expected = np.log(p / WORLD.prior[concept])
    assert np.allclose(ORACLE.matching_logit(concept, scenes=scenes), expected)


def test_embeddings_are_unit_and_affine_in_pmi() -> None:
    made = ORACLE.embeddings(700, np.random.default_rng(0), noise=0.0, scale=0.02)
    assert np.allclose(np.linalg.norm(made.texts, axis=1), 1, atol=1e-5)
    assert np.allclose(np.linalg.norm(made.images, axis=1), 1, atol=1e-5)
    cosines = made.texts @ made.images.T
    pmi = ORACLE.pmi()[:, made.crossed]
    within = cosines - cosines.mean(axis=1, keepdims=True)
    assert np.allclose(within, 0.02 * (pmi - pmi.mean(axis=1, keepdims=True)), atol=1e-5)


def test_embeddings_that_cannot_be() -> None:
    with pytest.raises(InputError, match="dimensions"):
        ORACLE.embeddings(10, np.random.default_rng(0), dimensions=8)
    with pytest.raises(InputError, match="lower scale"):
        ORACLE.embeddings(10, np.random.default_rng(0), scale=5.0)
    strong = Oracle(World.plant(5.0)).embeddings(10, np.random.default_rng(0))
    assert np.allclose(np.linalg.norm(strong.texts, axis=1), 1, atol=1e-5)
