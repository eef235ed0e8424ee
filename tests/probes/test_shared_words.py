"""Sets of captions that share words: a model with a taste in words has no bias for it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import binom

from tiltmeter.probes.stereotype.caption_choice import IMAGE_KINDS, CaptionCases
from tiltmeter.probes.stereotype.estimates import CaptionScores
from tiltmeter.probes.stereotype.shared_words import SharedWords, own_words
from tiltmeter.probes.stereotype.statistics import CaptionSets
from tiltmeter.types import Groups

MODELS = 120


def test_widening_against_all_pairs_of_sets() -> None:
    rng = np.random.default_rng(0)
    words = [f"w{at}" for at in range(12)]
    sets = [rng.choice(words, 3, replace=False).tolist() for _ in range(30)]
    residuals = rng.normal(size=30) + 0.5
    together = sum(
        residuals[a] * residuals[b]
        for a, b in product(range(30), repeat=2)
        if set(sets[a]) & set(sets[b])
    )
    expected = np.sqrt(max(1.0, together / (residuals**2).sum()))
    found = SharedWords.of(sets)
    assert found.widening(residuals) == pytest.approx(expected)
    assert expected > 1
    assert found.count(np.ones(30, bool)) == 12
    alone = SharedWords.of([(f"a{at}", f"b{at}", f"c{at}") for at in range(30)])
    assert alone.widening(residuals) == pytest.approx(1.0)
    assert alone.count(residuals > 0) == (residuals > 0).sum()
    assert alone.widening(np.zeros(30)) == 1.0


def test_words_of_a_caption() -> None:
    assert own_words(["The man is poor.", "The man is rich", "The man is"]) == [
        "poor", "rich", "The man is"
    ]  # fmt: skip


def by_taste(cases: CaptionCases, seed: int, lean: float = 0.0) -> CaptionScores:
    """A model that goes half by its taste in words, half by noise; `lean`: to stereotypes."""
    rng = np.random.default_rng([seed, 1])
    number: dict[str, int] = {}
    words = np.array([[number.setdefault(word, len(number)) for word in own_words(three)]
                      for three in cases.captions])  # fmt: skip
    scores = rng.normal(size=len(number))[words] + rng.normal(size=words.shape)
    scores[:, 0] += lean
    sets = CaptionSets.of(cases, 100, 199, rng)
    both = np.concatenate([scores, scores[:, :2]], axis=1)
    return CaptionScores(cases, sets, "matching", {**dict.fromkeys(IMAGE_KINDS), "true": both})


def excess(choice: CaptionScores) -> dict[str, float]:
    [row] = [row for row in choice.rows() if row["metric"] == "vlbs_excess"
             and row["experiment"] == "matching" and row["category"] is None]  # fmt: skip
    return row


def test_a_taste_in_words_is_no_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stereotypes are often of the same few words. With sets taken as independent a model that
    likes some of them would look biased; a lean to all of them is found."""
    rng = np.random.default_rng(0)
    words = np.stack([kind * 25 + rng.integers(0, 25, 300) for kind in range(3)], axis=1)
    cases = CaptionCases(
        ids=tuple(map(str, range(300))),
        captions=tuple(tuple(f"{n} is w{word}" for word in row) for n, row in enumerate(words)),
        neutral=(None,) * 300,
        categories=Groups(np.zeros(300, int), ("all",), "category"),
        targets=("x",) * 300,
        against=rng.permutation(np.arange(300) % 2).astype(bool),
    )
    rows = [excess(by_taste(cases, seed)) for seed in range(MODELS)]
    alarms = sum(row["p"] <= 0.05 for row in rows)
    assert alarms <= binom.ppf(0.999, MODELS, 0.05)
    covered = sum(row["ci_low"] <= 0 <= row["ci_high"] for row in rows)
    assert covered >= binom.ppf(0.001, MODELS, 0.95)
    leaning = [excess(by_taste(cases, seed, lean=1.5)) for seed in range(20)]
    assert sum(row["p"] <= 0.05 for row in leaning) >= 18
    monkeypatch.setattr(SharedWords, "widening", lambda *_: 1.0)
    alone = [excess(by_taste(cases, seed)) for seed in range(MODELS)]
    assert sum(row["p"] <= 0.05 for row in alone) > 3 * binom.ppf(0.999, MODELS, 0.05) / 2
