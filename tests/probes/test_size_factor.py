"""How far attacked images move words beside true ones: planted, found again, and covered.

Mean shifts of a few images are noisy. A slope on noisy means is too small, and its bootstrap
smaller still, so that the interval lay beside the value: 5.34 with -.52 to 5.06.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t as student

from tiltmeter.probes.counterfactual.measuring import CounterfactualQuery, MaskedScores
from tiltmeter.probes.counterfactual.shifts import comparison, correlation_interval, size_factor
from tiltmeter.probes.counterfactual.sources import Swap
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Faces, Groups

FACTOR, WORDS = 5.0, 33  # as on real photographs
TRUE = np.random.default_rng(0).normal(0, 0.15, WORDS)  # how far words move, in log P


def shifts(scenes: int, noise: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Scenes x words: attacked and true images of one half, true images of the other."""
    alike = rng.normal(0, noise / 2, (scenes, WORDS))  # a scene's own, in both halves
    here, there = (TRUE + alike + rng.normal(0, noise, (scenes, WORDS)) for _ in range(2))
    # attacked and true shifts of an image subtract the same original score
    moved = FACTOR * (TRUE + alike) + 0.5 * (here - TRUE) + rng.normal(0, 1.5, here.shape)
    return [moved, here, there]


def means(scenes: int, noise: float, rng: np.random.Generator, draws: int = 200):
    """Their means, draws x words; the first row is the data."""
    weights = rng.multinomial(scenes, np.full(scenes, 1 / scenes), draws)
    weights = np.concatenate([np.ones((1, scenes)), weights]) / scenes
    return [weights @ one for one in shifts(scenes, noise, rng)]


@pytest.mark.parametrize(("scenes", "noise"), [(10, 0.3), (25, 0.3), (50, 0.3), (50, 1.0)])
def test_the_planted_size_factor_is_covered(scenes, noise):
    rng = np.random.default_rng(1)
    found = []
    for _ in range(300):
        found.append(size_factor(*means(scenes, noise, rng), student.ppf(0.975, scenes - 1)))
    value, low, high = np.array(found)[~np.isnan(found).any(axis=1)].T
    assert len(value) > 60  # else it is not told
    assert ((low <= value) & (value <= high)).all()
    assert np.mean((low <= FACTOR) & (high >= FACTOR)) > 0.93
    if noise < 1:
        assert np.median(value) == pytest.approx(FACTOR, rel=0.05)


def test_no_size_factor_where_true_images_move_nothing():
    """A ratio to nothing is not told; a bootstrap of 200 is fooled once in forty at most."""
    rng = np.random.default_rng(2)
    told = 0
    for _ in range(200):
        moved, here, there = (one - TRUE for one in means(30, 1.0, rng))
        told += not np.isnan(size_factor(moved, here, there, 2.045)).any()
    assert told <= 5


@pytest.mark.parametrize(("scenes", "noise"), [(10, 1.0), (25, 0.5), (50, 0.3), (50, 1.0)])
def test_correlations_of_such_samples_are_covered(scenes, noise):
    """The interval is around what samples of this size give on average, noise and all."""
    rng = np.random.default_rng(3)

    def pearson(a, b):
        a, b = (one - one.mean(axis=1, keepdims=True) for one in (a, b))
        return (a * b).sum(axis=1) / np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))

    drawn = []
    for _ in range(300):
        moved, _, there = means(scenes, noise, rng)
        drawn.append(pearson(moved, there))
    expected = np.tanh(np.mean([np.arctanh(one[0]) for one in drawn]))
    edges = np.array([correlation_interval(one[1:], one[0], WORDS, 1.96) for one in drawn])
    assert np.mean((edges[:, 0] <= expected) & (edges[:, 1] >= expected)) > 0.93
    assert np.isnan(correlation_interval(drawn[0], 1.0, WORDS, 1.96)).all()
    assert np.isnan(correlation_interval(drawn[0], 0.5, 3, 1.96)).all()  # of three words


@pytest.mark.parametrize("seed", range(6))
def test_no_interval_of_a_comparison_lies_beside_its_value(seed):
    """50 scenes with two people each, so noisy that percentiles miss the value in most samples."""
    rng, scenes = np.random.default_rng(seed), 50
    halves = [shifts(scenes, 1.0, rng) for _ in range(2)]  # of two races
    data = Faces(
        tuple(map(str, range(2 * scenes))),
        {"race": Groups.from_labels(["black"] * scenes + ["white"] * scenes, attribute="race"),
         "gender": Groups.from_labels(["man", "woman"] * scenes, attribute="gender")},
    )  # fmt: skip
    swap = Swap("gender", ("man", "woman"), ("man", "woman"))
    words = tuple(f"word {at}" for at in range(WORDS))
    asked = CounterfactualQuery(swap, words, ("x",) * WORDS, ("The {g} is [MASK]",))

    def measured(source: str, at: int) -> MaskedScores:
        moved = np.concatenate([half[at] for half in halves])[:, None]
        none = np.zeros_like(moved)
        n = len(moved)
        return MaskedScores(
            source, "", np.arange(n), np.zeros(n, bool), np.tile(np.arange(scenes), 2),
            np.ones((n, WORDS)), np.stack([none, moved, none, none]), np.zeros((2, n, 2)),
        )  # fmt: skip

    table = comparison(
        measured("adversarial", 0),
        measured("parallel", 1),
        data,
        asked,
        Resampling(0, 100),
        rng,
        {},
    ).to_pylist()
    assert {row["metric"] for row in table} == {"shift_pearson", "shift_spearman", "shift_slope"}
    for row in table:
        if row["value"] is None:
            assert row["metric"] == "shift_slope"
            assert (row["ci_low"], row["ci_high"], row["ci_method"]) == (None, None, None)
            assert "do not shift the same words" in row["note"]
        else:
            assert row["ci_low"] <= row["value"] <= row["ci_high"]
    # true against true would be 1 by definition
    assert {row["experiment"] for row in table if row["metric"] == "shift_slope"} == {
        "adversarial against parallel"
    }
