"""The ceiling of a slope: what a model repeats of its captions, if it sees groups only so well."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from tiltmeter.stats.visibility import visibility


def evidence(distance: float, groups: int, n: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Log-likelihoods of the groups, for images that show their own as a normal number does."""
    rng = np.random.default_rng(1)
    codes = np.arange(n) % groups
    seen = distance * np.eye(groups)[codes] + rng.normal(size=(n, groups))
    return distance * seen, codes


@pytest.mark.parametrize("distance", [0.0, 0.7, 1.5, 6.0])
@pytest.mark.parametrize("groups", [2, 4])
def test_a_model_that_mirrors_its_captions_reaches_the_ceiling(
    distance: float, groups: int
) -> None:
    """It scores ln p(word | image), where the image tells the group as surely as planted."""
    logits, codes = evidence(distance, groups)
    found = visibility(logits, codes)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    planted = 0.2 * np.random.default_rng(0).normal(size=(200, groups))
    scores = np.log(p @ np.exp(planted).T)  # images x words
    means = np.stack([scores[codes == code].mean(axis=0) for code in range(groups)], axis=1)
    lift, truth = ((m[:, 0] - m[:, 1:].mean(axis=1)) for m in (means, planted))
    assert np.polyfit(truth, lift, 1)[0] == pytest.approx(found.value[0], abs=0.02)
    if distance:
        assert found.worth == pytest.approx(1.0, abs=0.15) or distance == 6.0
        assert (found.error < 0.03).all()


def test_the_scale_of_evidence_and_what_all_texts_gain_do_not_matter() -> None:
    logits, codes = evidence(1.0, 3)
    own = visibility(logits, codes).value
    gained = np.random.default_rng(2).normal(size=(len(codes), 1)) * 5
    other = visibility(0.1 * logits + gained + [1.0, 0.0, -2.0], codes).value
    assert other == pytest.approx(own, abs=1e-3)


def test_unequal_groups_have_equal_weight() -> None:
    logits, codes = evidence(1.0, 2, 20_000)
    some = (codes == 0) | (np.arange(len(codes)) % 10 == 1)
    whole, part = (visibility(logits[at], codes[at]).value for at in (slice(None), some))
    assert part == pytest.approx(whole, abs=0.02)


def test_evidence_that_is_wrong_is_none() -> None:
    logits, codes = evidence(1.0, 2)
    assert visibility(-logits, codes).value == pytest.approx(0.0, abs=1e-6)
    assert visibility(np.zeros((50, 2)), np.arange(50) % 2).value.tolist() == [0.0, 0.0]


def test_two_groups_give_the_coefficient_of_discrimination() -> None:
    logits, codes = evidence(1.2, 2, 20_000)
    p = expit(logits[:, 1] - logits[:, 0])
    tjur = p[codes == 1].mean() - p[codes == 0].mean()
    assert visibility(logits, codes).value == pytest.approx(tjur, abs=0.01)
