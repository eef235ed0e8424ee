"""Multiplicity, placebos, power, paired tests and variance shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tiltmeter.errors import InputError
from tiltmeter.stats import defined, null
from tiltmeter.stats.bootstrap import bootstrap_mean_of_words
from tiltmeter.stats.multiplicity import (
    benjamini_hochberg,
    benjamini_yekutieli,
    max_t,
    standardised_max_t,
)
from tiltmeter.stats.paired import paired_test, tost
from tiltmeter.stats.placebo import (
    BEYOND,
    NOT_BEYOND,
    WITHIN_CHANCE,
    leave_one_out,
    p_placebo,
    verdict,
)
from tiltmeter.stats.power import c_asc_power, images_needed, smallest_effect
from tiltmeter.stats.variance import variance_shares


def step_down(observed: list[float], draws: np.ndarray) -> list[float]:
    """Westfall and Young's algorithm 4.1, a line at a time."""
    order = sorted(range(len(observed)), key=lambda j: -observed[j])
    adjusted, floor = [0.0] * len(observed), 0.0
    for rank, j in enumerate(order):
        rest = order[rank:]
        b = sum(max(draw[i] for i in rest) >= observed[j] for draw in draws)
        floor = max(floor, (b + 1) / (len(draws) + 1))
        adjusted[j] = floor
    return adjusted


@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_max_t_is_westfall_and_youngs_step_down(seed: int, tests: int) -> None:
    rng = np.random.default_rng(seed)
    draws, observed = rng.normal(size=(30, tests)), rng.normal(1, 1, tests)
    np.testing.assert_allclose(max_t(observed, draws), step_down(observed.tolist(), draws))


def test_max_t_is_no_smaller_than_the_plain_p_and_skips_the_undefined() -> None:
    rng = np.random.default_rng(0)
    draws, observed = rng.normal(size=(99, 4)), np.array([3.0, np.nan, 1.0, 0.0])
    adjusted = max_t(observed, draws)
    plain = (1 + (draws >= observed).sum(axis=0)) / 100
    assert np.isnan(adjusted).tolist() == [False, True, False, False]
    assert (adjusted[[0, 2, 3]] >= plain[[0, 2, 3]]).all()


def test_family_wise_treats_the_observed_value_as_one_of_the_draws() -> None:
    """Whichever of the points is called observed, the largest of them gets the smallest p."""
    points = np.random.default_rng(0).normal(size=(20, 1)) ** 2
    ps = [
        standardised_max_t(points[i], np.delete(points, i, axis=0), "greater")[0] for i in range(20)
    ]
    np.testing.assert_allclose(sorted(ps), np.arange(1, 21) / 20)


def test_false_discovery_rates() -> None:
    p = np.array([0.001, 0.02, 0.03, np.nan, 0.5])
    expected = stats.false_discovery_control([0.001, 0.02, 0.03, 0.5])
    np.testing.assert_allclose(benjamini_hochberg(p)[[0, 1, 2, 4]], expected)
    assert (benjamini_yekutieli(p)[[0, 1, 2, 4]] >= expected).all()
    assert np.isnan(benjamini_hochberg(np.array([np.nan]))).all()


def test_p_placebo_is_two_sided_around_the_placebos_own_mean() -> None:
    placebos = np.random.default_rng(0).normal(0.2, 0.2, 200)
    assert p_placebo(np.array([0.2]), placebos)[0] > 0.8
    assert p_placebo(np.array([-0.3, 0.7]), placebos).max() <= 0.05
    assert np.isnan(p_placebo(np.array([0.1]), np.array([]))).all()


def test_leave_one_out_leaves_the_word_itself_out() -> None:
    placebos = np.random.default_rng(0).integers(0, 9, 60).astype(float)
    expected = [p_placebo(placebos[[i]], np.delete(placebos, i))[0] for i in range(len(placebos))]
    np.testing.assert_allclose(leave_one_out(placebos), expected)


@pytest.mark.parametrize(
    ("p_fwer", "p_pl", "signs", "expected"),
    [
        (0.01, 0.01, None, BEYOND),
        (0.01, 0.01, [1, 1, 1], BEYOND),
        (0.01, 0.01, [1, 1, -1], NOT_BEYOND),
        (0.01, 0.2, None, NOT_BEYOND),
        (0.2, 0.01, None, WITHIN_CHANCE),
        (0.01, np.nan, None, None),
        (np.nan, 0.01, None, None),
    ],
)
def test_verdicts(
    p_fwer: float, p_pl: float, signs: list[int] | None, expected: str | None
) -> None:
    assert verdict(p_fwer, p_pl, None if signs is None else np.array(signs)) == expected


def test_smallest_effects_quoted_for_fairface() -> None:
    """About d = .05 for gender on FairFace's validation set, .26 for a group of 118."""
    assert smallest_effect([5162, 5792])[0] == pytest.approx(0.05, abs=0.005)
    assert smallest_effect([118, 10954 - 118])[0] == pytest.approx(0.26, abs=0.005)


def test_power_of_the_smallest_effect_is_the_power_asked_for() -> None:
    sizes = [300, 100, 50]
    effect = smallest_effect(sizes, power=0.9, tests=10)
    np.testing.assert_allclose(c_asc_power(effect, sizes, tests=10), 0.9, atol=1e-6)
    needed = images_needed(float(effect[0]), 300 / 450, power=0.9, tests=10)
    assert needed == pytest.approx(450, abs=1)
    with pytest.raises(InputError, match="share must be between 0 and 1"):
        images_needed(0.1, share=1.0)


def test_paired_test_sees_a_change_and_none_where_there_is_none() -> None:
    rng = np.random.default_rng(0)
    before = rng.normal(size=200)
    after = before + rng.normal(0.3, 1, 200)
    changed = paired_test(before, after, rng=rng)
    same = paired_test(before, before + rng.normal(0.0, 1, 200) - 0.02, rng=rng)
    assert changed.p < 0.01 < same.p
    expected = stats.ttest_rel(after, before).confidence_interval()
    assert changed[1:3] == pytest.approx((expected.low, expected.high))
    assert changed.mean == pytest.approx((after - before).mean())


def test_tost_equals_two_t_tests() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=(2, 50))
    found = tost(before, after, margin=0.5)
    low = stats.ttest_1samp(after - before, -0.5, alternative="greater").pvalue
    high = stats.ttest_1samp(after - before, 0.5, alternative="less").pvalue
    assert found.p == pytest.approx(max(low, high))
    assert (abs(np.array([found.ci_low, found.ci_high])).max() < 0.5) == (found.p < 0.05)
    with pytest.raises(InputError, match="above 0"):
        tost(before, after, margin=0)
    with pytest.raises(InputError, match="same items"):
        tost(before, after[:10], margin=1)


def test_variance_shares_find_what_was_put_in() -> None:
    rng = np.random.default_rng(0)
    word, template = rng.normal(0, 2, 300), rng.normal(0, 1, 200)
    image = rng.normal(0, 0.5, (300, 200))
    interaction = rng.normal(0, 1, (300, 200))
    found = variance_shares(word[:, None] + template + interaction + image, 0.25)
    total = 4 + 1 + 1 + 0.25
    assert found == pytest.approx([4 / total, 1 / total, 1 / total, 0.25 / total], abs=0.06)
    assert sum(found) == pytest.approx(1)
    assert np.isnan(variance_shares(np.ones((3, 3)), 0.0)).all()
    with pytest.raises(InputError, match="at least 2 words and 2 templates"):
        variance_shares(np.ones((1, 3)), 0.0)


def test_a_word_that_counts_twice_is_a_word_more() -> None:
    rng = np.random.default_rng(1)
    values, noise = rng.normal(size=(9, 4)), rng.random((9, 4))
    counts = rng.multinomial(9, np.full(9, 1 / 9), 5)
    found = np.array(variance_shares(values, noise, counts))
    for column, draw in zip(found.T, counts, strict=True):
        rows = np.repeat(np.arange(9), draw)
        assert column == pytest.approx(np.array(variance_shares(values[rows], noise[rows])))


def test_the_observed_value_is_one_more_draw() -> None:
    rng = np.random.default_rng(2)
    values, draws = rng.normal(size=(6, 3)), rng.normal(size=(20, 6, 3))
    draws[rng.random(draws.shape) < 0.3] = np.nan
    draws[:, 0, 0], values[1, 1] = np.nan, np.nan
    draws[:, 2, 2], values[2, 2] = np.nan, np.nan
    found = defined.mean_and_std(draws, values)
    expected = defined.mean_and_std(np.concatenate([values[None], draws]))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_draws_in_stretches_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    values, draws = rng.normal(size=(7, 3)), rng.normal(size=(60, 7, 3))
    draws[rng.random(draws.shape) < 0.05] = np.nan
    words, templates = np.array([0, 0, 1, 1, 1, 2, 2]), np.array([0, 1, 0, 1, 2, 0, 2])

    def found() -> list[np.ndarray]:
        drawn = bootstrap_mean_of_words(draws, words, templates, np.random.default_rng(1))
        return [
            *null.null_band(draws),
            *(null.p_from_null_draws(values, draws, side) for side in null.SIDES),
            *(standardised_max_t(values, draws, side) for side in null.SIDES),
            max_t(values.ravel(), draws.reshape(60, 21)),
            drawn,
        ]

    whole = found()
    monkeypatch.setattr(null, "AT_ONCE", 10)
    for one, other in zip(whole, found(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
