"""Disparity, caption choice, counterfactual bias and propagation, by hand and by reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tiltmeter import metrics
from tiltmeter.errors import InputError
from tiltmeter.types import Groups


def test_rates_and_gaps() -> None:
    groups = Groups.from_labels(["a", "a", "b", "b", "b"])
    rates = metrics.group_rates([1, 0, 1, 1, 0], groups)
    assert rates == pytest.approx([0.5, 2 / 3])
    assert metrics.gaps(rates)[1, 0] == pytest.approx(1 / 6)
    np.testing.assert_allclose(metrics.gaps(rates), -metrics.gaps(rates).T)


def test_a_group_without_items_has_no_rate() -> None:
    groups = Groups(np.array([0, 0]), ("a", "nobody"))
    assert np.isnan(metrics.group_rates([1, 1], groups)).tolist() == [False, True]


@pytest.mark.parametrize(
    ("model", "vlrs", "vlbs", "ivlas"),
    [("IDM", 100, 0, 100), ("BIM", 100, 100, 0), ("RAM", 200 / 3, 100 / 3, 200 / 3)],
)
def test_reference_models_of_the_paper(model: str, vlrs: float, vlbs: float, ivlas: float) -> None:
    """The ideal model picks what the picture shows, the biased one the stereotype."""
    anti = np.arange(60) % 2 == 0
    scores = np.zeros((60, 3))
    if model == "IDM":
        scores[np.arange(60), np.where(anti, 1, 0)] = 1
    elif model == "BIM":
        scores[:, 0] = 1  # RAM: three equal scores, a tie that is split
    assert metrics.vlrs(scores) == pytest.approx(vlrs)
    assert metrics.vlbs(scores, anti) == pytest.approx(vlbs)
    assert metrics.ivlas(scores, anti) == pytest.approx(ivlas)


def test_caption_choice_of_no_anti_stereotypical_image_is_undefined() -> None:
    assert math.isnan(metrics.vlbs([[1, 2, 3]], anti=[False]))
    with pytest.raises(InputError, match="3 columns"):
        metrics.vlrs([[1, 2]])


def test_shift_score_is_a_log_ratio_of_softmax_probabilities() -> None:
    before, after = np.array([[1.0, -2.0]]), np.array([[0.5, 3.0]])
    p, q = (np.exp(x[0, 0]) / np.exp(x[0]).sum() for x in (before, after))
    assert metrics.shift_score(before, after)[0] == pytest.approx(math.log(p / q))
    assert metrics.lmss(before, after) == metrics.shift_score(before, after)
    assert metrics.vlss(before, before)[0] == 0


def test_shift_score_of_large_logits_stays_finite() -> None:
    assert metrics.shift_score([[0.0, 1000.0]], [[1000.0, 0.0]])[0] == pytest.approx(-1000)


def test_counterfactual_bias_by_hand() -> None:
    """A target that falls with the bias concept leans towards it: (.4 - .6) / (.1 - .9)."""
    found = metrics.counterfactual_bias([0.6], [0.4], [0.9], [0.1])
    assert found[0] == pytest.approx(0.25)


@pytest.mark.parametrize(("moved", "defined"), [(0.05, True), (0.0499, False), (-0.05, True)])
def test_a_change_under_the_threshold_is_undefined(moved: float, defined: bool) -> None:
    found = metrics.counterfactual_bias([0.5], [0.6], [0.5], [0.5 + moved])
    assert bool(np.isnan(found[0])) is not defined


def test_directed_bias_signs_towards_the_first_word_and_skips_the_undefined() -> None:
    assert metrics.directed_bias([0.2, 0.4, math.nan], [True, False, True]) == pytest.approx(-0.1)
    assert math.isnan(metrics.directed_bias([math.nan], [True]))


@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.sampled_from([3, 10**6]))
def test_spearman_agrees_with_scipy_in_every_group(seed: int, n: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, levels, (2, n)).astype(float)
    codes = rng.integers(0, 2, n)
    found = metrics.spearman(x, y, Groups(codes, ("a", "b")))
    for g in (0, 1):
        one, two = x[codes == g], y[codes == g]
        if len(one) < 2 or len(set(one)) == 1 or len(set(two)) == 1:
            assert math.isnan(found[g])
        else:
            assert found[g] == pytest.approx(stats.spearmanr(one, two).statistic)
    assert len(metrics.spearman(x, y)) == 1


def test_values_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="NaN"):
        metrics.spearman([1, 2, math.nan], [1, 2, 3])
    with pytest.raises(InputError, match="bias_factual has 1"):
        metrics.counterfactual_bias([0.1, 0.2], [0.1, 0.2], [0.5], [0.1, 0.2])
    with pytest.raises(InputError, match="has_first has 2"):
        metrics.directed_bias([0.1], [True, False])


def test_large_whole_numbers_are_not_rounded_into_ties() -> None:
    assert metrics.top_counts([[16777216, 16777217]], [0, 1], k=1, ties="stable").tolist() == [
        [0, 1]
    ]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_unit_vectors_are_not_copied(kind: type) -> None:
    from tiltmeter.metrics.arrays import unit

    vectors = np.random.default_rng(0).normal(size=(200, 64)).astype(kind)
    once = unit(vectors)
    assert once is not vectors
    assert unit(once) is once
    longer = once * kind(1 + 1e-4)
    assert np.linalg.norm(unit(longer), axis=1) == pytest.approx(1, abs=1e-6)


def test_vectors_too_long_or_short_to_square_have_a_direction() -> None:
    from tiltmeter.metrics.arrays import unit

    for size in (1e30, 1e-30):
        found = unit(np.full((1, 4), size, np.float32))
        np.testing.assert_allclose(found, 0.5, rtol=1e-6)


def test_tensors_of_mixed_precision() -> None:
    torch = pytest.importorskip("torch")
    x, y, a, b = np.random.default_rng(0).normal(size=(4, 3, 5))
    mixed = metrics.weat(
        *(torch.as_tensor(v) for v in (x, y)), torch.as_tensor(a).float(), torch.as_tensor(b)
    )
    assert float(mixed) == pytest.approx(float(metrics.weat(x, y, a, b)), abs=1e-5)
    found = metrics.top_k(torch.as_tensor(x).float(), torch.as_tensor(y), 2)
    assert found.ids.shape == (3, 2)
