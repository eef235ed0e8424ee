"""Lift: theorems, a slow reference, tensors, and the planted truth of the testbed's oracle."""

from __future__ import annotations

import math
from statistics import fmean, median

import numpy as np
import pytest

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.group_lift import (
    LogMeanExp,
    centred,
    lift,
    lift_of_group_scores,
    lift_standard_error,
)
from tiltmeter.metrics.summary import Moments
from tiltmeter.testbed.oracle import Oracle
from tiltmeter.testbed.world import World
from tiltmeter.types import Groups

RNG = np.random.default_rng(0)
CODES = RNG.permutation(np.arange(120) % 3)
WORDS = RNG.normal(size=(7, 120)) + 0.4 * (CODES == 1)
NEUTRAL = RNG.normal(size=(11, 120)) + 0.1 * (CODES == 1)


def slow(words: list[list[float]], codes: list[int], neutral: list[list[float]], how: str):
    """One number at a time, as PROTOCOLS would be written out by a reader."""

    def score(row: list[float], group: int) -> float:
        own = [x for x, code in zip(row, codes, strict=True) if code == group]
        return fmean(own) if how == "mean" else math.log(fmean(math.exp(x) for x in own))

    def raw(row: list[float], group: int) -> float:
        others = [score(row, other) for other in sorted(set(codes)) if other != group]
        return score(row, group) - fmean(others)

    groups = sorted(set(codes))
    return [[raw(row, g) - median(raw(n, g) for n in neutral) for g in groups] for row in words]


@pytest.mark.parametrize("estimator", ["mean", "odds"])
def test_the_slow_way(estimator: str) -> None:
    found = lift(WORDS, CODES, neutral=NEUTRAL, estimator=estimator)
    wanted = slow(WORDS.tolist(), CODES.tolist(), NEUTRAL.tolist(), estimator)
    np.testing.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("estimator", ["mean", "odds"])
def test_tensors_give_the_same(estimator: str) -> None:
    torch = pytest.importorskip("torch")
    tensors = torch.from_numpy(WORDS), torch.from_numpy(NEUTRAL)
    found = lift(tensors[0], CODES, neutral=tensors[1], estimator=estimator)
    assert isinstance(found, torch.Tensor)
    wanted = lift(WORDS, CODES, neutral=NEUTRAL, estimator=estimator)
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-12)
    error = lift_standard_error(Moments.of(centred(*tensors), CODES))
    np.testing.assert_allclose(
        error.numpy(), lift_standard_error(Moments.of(centred(WORDS, NEUTRAL), CODES)), atol=1e-12
    )


def test_what_an_image_gives_to_all_words_changes_nothing() -> None:
    bright = RNG.normal(size=120) * 5  # an image that likes all words
    found = lift(WORDS + bright, CODES, neutral=NEUTRAL + bright)
    np.testing.assert_allclose(found, lift(WORDS, CODES, neutral=NEUTRAL), atol=1e-12)
    np.testing.assert_allclose(centred(WORDS + bright, NEUTRAL + bright), centred(WORDS, NEUTRAL))


def test_a_word_that_is_likelier_for_all_groups_gains_nothing() -> None:
    frequent = WORDS + RNG.normal(size=(7, 1))
    np.testing.assert_allclose(
        lift(frequent, CODES, neutral=NEUTRAL), lift(WORDS, CODES, neutral=NEUTRAL), atol=1e-12
    )


def test_it_does_not_depend_on_the_mix_of_the_data() -> None:
    """Each image of one group twice: C-ASC moves, lift does not."""
    twice = np.concatenate([np.arange(120), np.flatnonzero(CODES == 2)])
    np.testing.assert_allclose(
        lift(WORDS[:, twice], CODES[twice], neutral=NEUTRAL[:, twice]),
        lift(WORDS, CODES, neutral=NEUTRAL),
        atol=1e-12,
    )


def test_two_groups_mirror_each_other() -> None:
    two = CODES != 2
    found = lift(WORDS[:, two], CODES[two], neutral=NEUTRAL[:, two])
    np.testing.assert_allclose(found[:, 0], -found[:, 1], atol=1e-12)


def test_blocks_merge_exactly() -> None:
    parts = [slice(0, 50), slice(50, 53), slice(53, 120)]
    moments = [Moments.of(WORDS[:, at], _three(CODES[at])) for at in parts]
    merged = moments[0].merge(moments[1]).merge(moments[2])
    neutral = Moments.of(NEUTRAL, CODES)
    np.testing.assert_allclose(
        lift_of_group_scores(merged.mean, neutral.mean),
        lift(WORDS, CODES, neutral=NEUTRAL),
        atol=1e-12,
    )
    sums = [LogMeanExp.of(WORDS[:, at], _three(CODES[at])) for at in parts]
    whole = LogMeanExp.of(WORDS, CODES)
    np.testing.assert_allclose(sums[2].merge(sums[0]).merge(sums[1]).value, whole.value, atol=1e-12)


def test_odds_of_large_logits_do_not_overflow() -> None:
    shifted = lift(WORDS + 1e4, CODES, neutral=NEUTRAL - 1e4, estimator="odds")
    np.testing.assert_allclose(
        shifted, lift(WORDS, CODES, neutral=NEUTRAL, estimator="odds"), atol=1e-9
    )


def test_a_group_without_images_has_no_lift_and_leaves_the_others_alone() -> None:
    four = Groups(CODES, ("a", "b", "c", "nobody"), "kind")
    found = lift(WORDS, four, neutral=NEUTRAL)
    assert np.isnan(found[:, 3]).all()
    np.testing.assert_allclose(found[:, :3], lift(WORDS, CODES, neutral=NEUTRAL), atol=1e-12)
    alone = lift(WORDS, Groups(CODES * 0, ("a",), "kind"), neutral=NEUTRAL)
    assert np.isnan(alone).all()


def test_the_error_is_that_of_repeated_samples() -> None:
    """Lift of 400 samples of images spreads as `lift_standard_error` says of each."""
    rng = np.random.default_rng(1)
    found, errors = [], []
    for _ in range(400):
        codes = rng.integers(0, 3, 300)
        shared = rng.normal(size=300)  # what an image gives to all words: no noise of lift
        words = rng.normal(size=(1, 300)) * 2 + shared
        neutral = rng.normal(size=(301, 300)) * 0.05 + shared
        found.append(lift(words, codes, neutral=neutral)[0])
        errors.append(lift_standard_error(Moments.of(centred(words, neutral), codes))[0])
    ratio = np.std(found, axis=0) / np.mean(errors, axis=0)
    assert (ratio > 0.9).all()
    assert (ratio < 1.1).all()


@pytest.mark.parametrize("attribute", ["shape", "hue"])
def test_planted_associations_come_back_in_nats(attribute: str) -> None:
    """At the optimum of a contrastive loss lift is planted PMI, group against the others."""
    slopes, spreads = [], []
    for strength in (1.0, 0.5, 0.0):
        world = World.plant(strength)
        made = Oracle(world).embeddings(2800, np.random.default_rng(0), noise=0.05, scale=0.02)
        scores = made.texts @ made.images.T / 0.02
        placebo = np.array([concept.placebo for concept in world.concepts])
        found = lift(scores[~placebo], made.groups[attribute], neutral=scores[placebo])
        pmi = Oracle(world).pmi(attribute)[~placebo]
        truth = pmi - (pmi.sum(1, keepdims=True) - pmi) / (pmi.shape[1] - 1)
        spreads.append(float(np.median(np.abs(found))))
        if strength:
            slopes.append(float(np.polyfit(truth.ravel(), found.ravel(), 1)[0]))
            assert np.corrcoef(truth.ravel(), found.ravel())[0, 1] > 0.97
    assert all(0.9 < slope < 1.1 for slope in slopes)
    assert spreads[0] > 0.3  # it was there
    assert spreads[2] < 0.02 < 0.1 < spreads[1] < spreads[0]


def test_bad_input() -> None:
    with pytest.raises(InputError, match="120 images|100"):
        lift(WORDS, CODES, neutral=NEUTRAL[:, :100])
    with pytest.raises(UnknownNameError):
        lift(WORDS, CODES, neutral=NEUTRAL, estimator="median")


def _three(codes: np.ndarray) -> Groups:
    return Groups(codes, ("0", "1", "2"), "kind")
