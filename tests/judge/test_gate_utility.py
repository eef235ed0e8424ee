"""Usefulness is compared picture by picture: a small loss is seen that two intervals would hide."""

from __future__ import annotations

import numpy as np
import pytest

from tiltmeter.judge.gate import compare
from tiltmeter.judge.gate.utility import utility_tests
from tiltmeter.probes.retrieval import retrieval
from tiltmeter.probes.zero_shot import zero_shot
from tiltmeter.results import Run
from tiltmeter.stats.paired import mcnemar
from tiltmeter.types import Groups

PICTURES, CLASSES = 600, 5


class Table:
    """Texts have the vectors that they were given."""

    def __init__(self, vectors: np.ndarray, name: str) -> None:
        self.vectors, self.name = vectors, name

    def encode_texts(self, texts: list[str]) -> np.ndarray:
        return self.vectors[: len(texts)]


def named(noise: float, seed: int = 0) -> Run:
    """Zero-shot accuracy of pictures that lie near their class."""
    rng = np.random.default_rng(7)
    classes = Groups(np.arange(PICTURES) % CLASSES, tuple("abcde"))
    pictures = np.eye(CLASSES)[classes.codes] + 0.35 * rng.normal(size=(PICTURES, CLASSES))
    pictures += noise * np.random.default_rng(seed).normal(size=pictures.shape)
    made = zero_shot(Table(np.eye(CLASSES), "m"), classes, pictures, dataset="d")
    return Run(made[0], {}, {"zero_shot": made[1]})


def found(noise: float, captions: int = 2) -> Run:
    rng = np.random.default_rng(7)
    pictures = rng.normal(size=(200, 16))
    of = np.repeat(np.arange(200), captions)
    texts = pictures[of] + 1.2 * rng.normal(size=(len(of), 16))
    texts += noise * np.random.default_rng(1).normal(size=texts.shape)
    made = retrieval(Table(texts, "m"), ["t"] * len(of), of, pictures, dataset="d")
    return Run(made[0], {}, {"retrieval": made[1]})


def test_what_became_of_each_picture_adds_up_to_the_figure() -> None:
    run = named(0.0)
    [whole] = run.where(metric="accuracy", target=None)
    kept = run.instances["zero_shot"]
    assert np.mean(kept["score"].to_pylist()) == whole["value"]
    assert kept["id"].to_pylist()[:2] == ["0", "1"]
    run = found(0.0)
    kept = run.instances["retrieval"].to_pylist()
    for row in run.where(metric="recall"):
        mine = [one["score"] for one in kept
                if one["experiment"] == row["experiment"] and one["rank"] == row["k"]]  # fmt: skip
        assert sum(mine) / row["n"] == pytest.approx(row["value"])


def test_a_loss_of_accuracy_is_mcnemars() -> None:
    before, after = named(0.0), named(0.15)
    [told] = utility_tests(before, after)
    hits = [np.array(run.instances["zero_shot"]["score"].to_pylist()) for run in (before, after)]
    by_hand = mcnemar(*hits)
    assert by_hand.only_first > by_hand.only_second > 0
    assert told["excess"] == pytest.approx(-by_hand.difference)
    assert (told["p_no_change"], told["ci_low"]) == pytest.approx((by_hand.p, -by_hand.ci_high))


def test_recall_by_a_sign_flip_of_pictures() -> None:
    """Student's p is near that of flipping the sign of every picture's change."""
    before, after = found(0.0), found(0.6)
    told = utility_tests(before, after)
    assert len(told) == 6
    for test in told:
        way, k = test["experiment"], test["k"]
        scores = [
            np.array([one["score"] for one in run.instances["retrieval"].to_pylist()
                      if (one["experiment"], one["rank"]) == (way, k)])
            for run in (before, after)
        ]  # fmt: skip
        less, n = scores[0] - scores[1], test["n"]
        assert test["excess"] == pytest.approx(less.sum() / n)
        signs = np.random.default_rng(0).choice([-1, 1], (4000, len(less)))
        flipped = (np.abs(signs @ less) >= abs(less.sum()) - 1e-9).mean()
        assert test["p_no_change"] == pytest.approx(flipped, abs=0.03)


def test_pairing_sees_what_two_intervals_hide() -> None:
    before, after = named(0.0), named(0.14)
    paired = compare(before, after)
    [row] = [one for one in paired.tests.to_pylist() if one["metric"] == "accuracy"]
    assert (row["method"], row["verdict"]) == ("paired", "worse")
    bare = compare(Run(before.table), Run(after.table))
    [row] = [one for one in bare.tests.to_pylist() if one["metric"] == "accuracy"]
    assert (row["method"], row["verdict"]) == ("unpaired", "cannot tell")


def test_other_pictures_are_not_paired() -> None:
    before, after = named(0.0), named(0.1)
    few = Run(after.table, {}, {"zero_shot": after.instances["zero_shot"].slice(1)})
    assert utility_tests(before, few) == []


def test_noise_alone_seldom_cries_wolf() -> None:
    p = [utility_tests(named(0.1, seed), named(0.1, seed + 500))[0]["p_no_change"]
         for seed in range(200)]  # fmt: skip
    assert np.mean(np.array(p) <= 0.05) <= 0.09  # exact tests are careful: 5% at the most
