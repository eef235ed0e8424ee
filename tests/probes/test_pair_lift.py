"""Lift of counterfactual pairs: by hand, as theorems, and on a model whose bias is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

pytest.importorskip("torch")

import tiltmeter as tm
from tests.probes.counterfactual_sources.test_sources import GENDER
from tiltmeter.probes.counterfactual.measuring import (
    CounterfactualQuery,
    MaskedScores,
)
from tiltmeter.probes.counterfactual.pair_lift import SWAPPED, paired_lifts
from tiltmeter.results import PLACEBO
from tiltmeter.testbed.oracle import Oracle
from tiltmeter.testbed.world import World

IMAGES, WORDS, NEUTRAL = 60, 4, 30
NAMES = tuple("abcd")


def drawn(seed: int = 0) -> tuple[MaskedScores, CounterfactualQuery]:
    """Log-probabilities at random, two templates."""
    rng = np.random.default_rng(seed)
    query = CounterfactualQuery(
        GENDER, NAMES, ("x",) * WORDS, ("The {g} is [MASK]", "A {g} who is [MASK]"),
        classes=("activity",) * WORDS,
        neutral=tuple((f"n{at}", "activity") for at in range(NEUTRAL)),
    )  # fmt: skip
    scores = MaskedScores(
        "hand", "", np.arange(IMAGES), np.arange(IMAGES) % 2 == 0, np.arange(IMAGES),
        np.ones((IMAGES, WORDS)), rng.normal(size=(4, IMAGES, 2, WORDS)),
        rng.normal(size=(2, IMAGES, 2)), neutral=rng.normal(size=(4, IMAGES, NEUTRAL)),
    )  # fmt: skip
    return scores, query


def test_against_a_plain_loop() -> None:
    scores, query = drawn()
    for swapped, part in SWAPPED.items():
        [found] = paired_lifts(scores, query, swapped)
        neutral = np.zeros((IMAGES, NEUTRAL))
        own = np.zeros((IMAGES, WORDS))
        for image in range(IMAGES):
            sign = -1 if scores.first[image] else 1  # the changed image shows the other group
            for at in range(NEUTRAL):
                neutral[image, at] = sign * (
                    scores.neutral[part, image, at] - scores.neutral[0, image, at]
                )
            for at in range(WORDS):
                own[image, at] = sign * np.mean(
                    [scores.targets[part, image, t, at] - scores.targets[0, image, t, at]
                     for t in (0, 1)]
                )  # fmt: skip
        middle = np.median(neutral.mean(axis=0))
        assert np.allclose(found.lift, own.mean(axis=0) - middle)
        assert np.allclose(found.neutral_lift, neutral.mean(axis=0) - middle)
        centred = own - neutral.mean(axis=1, keepdims=True)
        assert np.allclose(found.error, centred.std(axis=0, ddof=1) / np.sqrt(IMAGES))


def test_other_order_of_groups_other_sign_and_a_common_shift_is_no_lift() -> None:
    scores, query = drawn()
    [found] = paired_lifts(scores, query, "image")
    [other] = paired_lifts(replace(scores, first=~scores.first), query, "image")
    assert np.allclose(other.lift, -found.lift)
    shift = np.random.default_rng(1).normal(size=(4, IMAGES, 1))  # of every word alike
    moved = replace(scores, targets=scores.targets + shift[..., None],
                    neutral=scores.neutral + shift)  # fmt: skip
    [same] = paired_lifts(moved, query, "image")
    assert np.allclose(same.lift, found.lift)
    assert np.allclose(same.error, found.error)


def test_images_of_one_scene_count_once() -> None:
    scores, query = drawn()
    twice = np.repeat(np.arange(IMAGES), 2)
    doubled = replace(
        scores, rows=twice, first=scores.first[twice], clusters=twice, asked=scores.asked[twice],
        targets=scores.targets[:, twice], bias=scores.bias[:, twice],
        neutral=scores.neutral[:, twice],
    )  # fmt: skip
    [found], [again] = (paired_lifts(one, query, "text") for one in (scores, doubled))
    assert np.allclose(again.error, found.error)
    assert again.n.tolist() == found.n.tolist()
    assert paired_lifts(replace(scores, neutral=None), query, "text") == []


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    return {
        twin: tm.audit(
            f"testbed:fusion?twin={twin}", "testbed:?images=56", probes=["counterfactual"],
            permutations=50, bootstraps=50,
            options={"counterfactual": {"softmax": ("vocabulary",)}},
        )
        for twin in ("biased", "fair")
    }  # fmt: skip


def test_the_verdict_tells_the_biased_model_from_its_fair_twin(runs: dict[str, Any]) -> None:
    for twin, verdict, least, most in (
        ("biased", "clear", 0.5, 2),
        ("fair", "none found", 0, 0.05),
    ):
        sizes = runs[twin].where(metric="pair_lift_size")
        assert len(sizes) == len(SWAPPED)
        for row in sizes:
            assert row["verdict"] == verdict, row["experiment"]
            assert least <= row["value"] <= most
            assert row["ci_low"] <= row["value"] <= row["ci_high"] or twin == "fair"
        words = [row for row in runs[twin].where(metric="pair_lift") if row["category"] != PLACEBO]
        flagged = sum(row["verdict"] == "associated" for row in words)
        assert flagged > 100 if twin == "biased" else flagged == 0


def test_pages_say_the_verdict_of_pairs(runs: dict[str, Any]) -> None:
    from tiltmeter.pages.verdict import answers, sentence

    for twin, said, verdict in (("biased", "Clearly biased by", "clear"),
                                ("fair", "No bias above 1.25x found", "none found")):  # fmt: skip
        assert said in sentence(runs[twin])
        [found] = [one for one in answers(runs[twin]) if one.question.startswith("Masked words, ")]
        assert found.verdict == verdict  # one answer for image, text and both


def test_lift_of_pairs_follows_the_planted_bias(runs: dict[str, Any]) -> None:
    world = World.plant()
    planted = Oracle(world).pmi("shape")
    rows = [row for row in runs["biased"].where(metric="pair_lift", experiment="redrawn, image")
            if row["category"] != PLACEBO]  # fmt: skip
    truth = [planted[world.index(row["target"])] for row in rows]
    found = [row["value"] for row in rows]
    assert spearmanr(found, [one[0] - one[1] for one in truth]).statistic > 0.95


def test_the_gate_judges_pairs(runs: dict[str, Any]) -> None:
    from tiltmeter.judge.gate import compare, gate

    worse = compare(runs["fair"], runs["biased"])
    found = {(row["experiment"], row["category"]): row for row in worse.tests.to_pylist()}
    assert len(found) == 2 * len(SWAPPED)
    for part in SWAPPED:
        assert found[f"redrawn, {part}", None]["verdict"] == "worse"
        assert (
            found[f"redrawn, {part}", PLACEBO]["verdict"] != "worse"
        )  # neutral words by themselves
        assert found[f"redrawn, {part}", None]["method"] == "paired"
    assert not gate(runs["biased"], runs["fair"])
    assert gate(runs["fair"], runs["biased"])
    same = compare(runs["biased"], runs["biased"]).tests.to_pylist()
    assert {row["verdict"] for row in same} == {"no worse"}
    alone = replace(runs["fair"], table=runs["fair"].table.slice(0, 1), instances={})
    decision = gate(alone, alone)
    assert not decision  # nothing to judge is no pass
    assert decision.untested
