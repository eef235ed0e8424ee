"""WEAT of prompts: the published formula, its sign, its null."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import binom

from tiltmeter import metrics
from tiltmeter.engine.ranking.in_memory import gaps_of
from tiltmeter.probes.ranking.opposites import opposites
from tiltmeter.results import Run
from tiltmeter.stimuli import load
from tiltmeter.types import Groups, Prompt

PAIRS = [("good", "evil"), ("smart", "dumb"), ("kind", "unkind"), ("rich", "poor"),
         ("honest", "dishonest"), ("moral", "immoral")]  # fmt: skip
TEMPLATES = ("a {} person", "this person is {}")
WORDS = [word for pair in PAIRS for word in pair]
PROMPTS = [Prompt(t.replace("{}", w), w, t) for w in WORDS for t in TEMPLATES]


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def world(seed: int, lean: float = 0.0) -> tuple[np.ndarray, np.ndarray, Groups]:
    """Favourable words lie along the first axis, images of the first group too, by `lean`."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 3, 200)
    images, texts = rng.normal(size=(200, 12)), rng.normal(size=(len(PROMPTS), 12))
    images[:, 0] += lean * (codes == 0)
    good = np.array([one.concept in {pair[0] for pair in PAIRS} for one in PROMPTS])
    texts[:, 0] += lean * np.where(good, 1, -1)
    return unit(texts), unit(images), Groups(codes, ("blue", "green", "red"), "colour")


def measured(texts, images, groups, pairs=PAIRS, draws: int = 0, prompts=PROMPTS) -> Run:
    rng = np.random.default_rng(0)
    gaps = gaps_of(texts, images, groups, draws, rng)
    return Run(opposites(gaps, groups, prompts, pairs, rng=rng, constants={"probe": "ranking"}))


def test_against_the_metric_and_all_partitions() -> None:
    texts, images, groups = world(0, 0.4)
    run = measured(texts, images, groups)
    for code, name in enumerate(groups.names):
        a, b = images[groups.codes == code], images[groups.codes != code]
        each = []
        for template in TEMPLATES:
            x, y = ([texts[PROMPTS.index(Prompt(template.replace("{}", pair[side]), pair[side],
                                                template))] for pair in PAIRS]
                    for side in (0, 1))  # fmt: skip
            [row] = run.where(group=name, template=template)
            assert row["value"] == pytest.approx(float(metrics.weat(x, y, a, b)))
            each.append(row["value"])
            s = np.array([(w @ a.T).mean() - (w @ b.T).mean() for w in [*x, *y]])
            sums = [s[list(some)].sum() for some in combinations(range(12), 6)]
            above = np.mean(np.array(sums) >= s[:6].sum() - 1e-12)
            exact = min(1, 2 * min(above, np.mean(np.array(sums) <= s[:6].sum() + 1e-12)))
            assert row["p"] == pytest.approx(exact, abs=0.05)
        [mean] = run.where(group=name, template=None)
        assert mean["value"] == pytest.approx(np.mean(each))
        assert mean["note"] == f"from {min(each):+.2f} to {max(each):+.2f} over 2 templates"


def test_swapped_pairs_turn_the_sign() -> None:
    made = world(1, 0.5)
    there = measured(*made).table["value"].to_numpy()
    back = measured(*made, [(b, a) for a, b in PAIRS]).table["value"].to_numpy()
    np.testing.assert_allclose(back, -there)


def test_a_planted_lean_is_found_with_its_interval() -> None:
    run = measured(*world(2, 2.0), draws=60)
    for row in run.where(group="blue"):
        assert row["value"] > 1
        assert row["p"] < 0.02
        assert 0 < row["ci_low"] < row["value"] < row["ci_high"]
    assert all(row["value"] < 0 for row in run.where(group="red"))


def test_without_a_lean_alarms_are_rare() -> None:
    p = [measured(*world(seed)).where(group="blue", template=None)[0]["p"] for seed in range(150)]
    below = sum(one <= 0.05 for one in p)
    assert below <= binom.ppf(0.999, len(p), 0.05)


def test_words_without_an_opposite_give_no_rows() -> None:
    assert measured(*world(0), PAIRS[:3]).table.num_rows == 0
    assert measured(*world(0), [("tall", "short")] * 5).table.num_rows == 0
    listed = {word.text for word in load("berg").words}
    assert all(set(pair) <= listed for pair in load("iat").pairs)  # the default audit has them


def test_one_template_has_no_mean() -> None:
    texts, images, groups = world(0, 0.4)
    both = measured(texts, images, groups)
    one = measured(texts[::2], images, groups, prompts=PROMPTS[::2])
    assert one.table.num_rows == 3
    expected = [row["value"] for row in both.where(template=TEMPLATES[0])]
    assert one.table["value"].to_pylist() == pytest.approx(expected)


def test_equal_words_have_no_effect_size() -> None:
    texts, images, groups = world(0)
    run = measured(np.ones_like(texts) / np.sqrt(12), images, groups, draws=20)
    assert set(run.table["value"].to_pylist()) == {None}
    assert set(run.table["note"].to_pylist()) == {"all of these words have the same score"}
