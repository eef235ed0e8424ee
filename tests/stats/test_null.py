"""Nulls: exact against brute force, draws against exact."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tiltmeter import metrics
from tiltmeter.metrics.ranking import max_of, skew_of_shares
from tiltmeter.stats import defined, null
from tiltmeter.types import Groups


@given(st.integers(1, 5), st.integers(1, 5), st.data())
def test_exact_p_equals_counting_every_top_k(a: int, b: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, a + b))
    seen = data.draw(st.integers(max(0, k - b), min(a, k)))
    tops = [sum(item < a for item in top) for top in combinations(range(a + b), k)]
    above, below = np.mean(np.array(tops) >= seen), np.mean(np.array(tops) <= seen)
    counts = np.array([seen, k - seen])
    for side, expected in (
        ("greater", above),
        ("less", below),
        ("two", min(1, 2 * min(above, below))),
    ):
        assert null.top_count_p(counts, [a, b], k, side)[0] == pytest.approx(expected)


def test_a_fractional_count_gets_the_larger_p_of_its_neighbours() -> None:
    whole = null.top_count_p(np.array([[8, 2], [9, 1]]), [50, 50], 10)
    between = null.top_count_p(np.array([8.5, 1.5]), [50, 50], 10)
    assert between == pytest.approx(whole.max(axis=0))


def test_draws_have_the_exact_mean_and_band() -> None:
    sizes, k = np.array([600, 300, 100]), 50
    drawn = null.draw_top_counts(sizes, k, 20_000, np.random.default_rng(0))
    exact, found = null.top_count_null(sizes, k), null.null_band(drawn.astype(float))
    assert found.mean == pytest.approx(exact.mean, abs=0.05)
    assert found.low == pytest.approx(exact.low, abs=1)
    assert found.high == pytest.approx(exact.high, abs=1)
    assert (drawn.sum(axis=1) == k).all()


def test_noise_floor_of_max_skew_on_fairface_marginals() -> None:
    """PROTOCOLS: about .024 for gender and .10 for race at k = 1000, without any bias."""
    gender = np.array([5162, 5792])
    race = np.array([1556, 1516, 1550, 1415, 1623, 1209, 2085])
    for sizes, expected in ((gender, 0.024), (race, 0.10)):
        shares = null.draw_top_counts(sizes, 1000, 4000, np.random.default_rng(0)) / 1000
        q = sizes / sizes.sum()
        floor = max_of(skew_of_shares(shares, q, k=1000, empty="bounded")).mean()
        assert floor == pytest.approx(expected, rel=0.06)


def test_ndkl_null_is_the_ndkl_of_shuffled_labels() -> None:
    rng = np.random.default_rng(1)
    sizes = np.array([30, 20, 10])
    groups = Groups(np.repeat(np.arange(3), sizes), tuple("abc"))
    direct = metrics.ndkl(rng.normal(size=(2000, 60)), groups, target="prior")
    simulated = null.ndkl_null(sizes, groups.shares, 2000, rng)
    assert stats.ks_2samp(direct, simulated).pvalue > 0.01


def test_p_of_draws_counts_ties_and_never_reaches_zero() -> None:
    draws = np.array([0.0, 1.0, 1.0, 2.0])
    assert null.p_from_null_draws(1.0, draws, "greater") == pytest.approx(4 / 5)
    assert null.p_from_null_draws(9.0, draws, "greater") == pytest.approx(1 / 5)
    assert np.isnan(null.p_from_null_draws(np.nan, draws))


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.sampled_from(null.SIDES))
def test_many_values_against_one_sample(draws: list[int], side: str) -> None:
    values, sample = np.arange(-4.0, 5.0), np.array(draws, dtype=float)
    expected = [null.p_from_null_draws(value, sample, side) for value in values]
    np.testing.assert_allclose(null.p_from_shared_null(values, sample, side), expected)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize("method", ["linear", "weibull"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1,), (2,), (999,), (400, 3), (60, 4, 5)])
def test_quantiles_are_numpys(shape: tuple[int, ...], dtype: type, method: str) -> None:
    rng, at = np.random.default_rng(len(shape)), [0.0, 0.025, 0.5, 0.975, 1.0]
    for undefined in (0, 0.3, 1):
        draws = rng.normal(size=shape).round(1).astype(dtype)  # with ties
        draws[rng.random(shape) < undefined] = np.nan
        expected = np.nanquantile(draws.astype(float), at, axis=0, method=method)  # type: ignore[call-overload]
        assert defined.quantile(draws, at, method) == pytest.approx(expected, nan_ok=True)


@given(st.integers(0, 2**32 - 1), st.sampled_from([np.float32, np.float64]))
def test_p_counts_the_draws_that_are_defined(seed: int, dtype: type) -> None:
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, 4, (30, 3, 2)).astype(dtype)
    draws[rng.random(draws.shape) < 0.2] = np.nan
    values = rng.integers(0, 4, (3, 2)).astype(float)
    values[0, 0] = np.nan
    for side in null.SIDES:
        p = null.p_from_null_draws(values, draws, side)
        for at, value in np.ndenumerate(values):
            known = [x for x in draws[:, *at].tolist() if x == x]
            above = (1 + sum(x >= value for x in known)) / (1 + len(known))
            below = (1 + sum(x <= value for x in known)) / (1 + len(known))
            both = min(1.0, 2 * min(above, below))
            expected = {"greater": above, "less": below, "two": both}[side]
            assert p[at] == pytest.approx(np.nan if np.isnan(value) else expected, nan_ok=True)
