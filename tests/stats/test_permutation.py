"""Permutation tests against scipy's, and exact levels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.stats.permutation import c_asc_test, sc_eat_test, two_sample_permutation_p, weat_test
from tiltmeter.types import Groups


@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(2, 4), st.sampled_from([2, 10**6]))
def test_exact_test_equals_scipys(seed: int, a: int, b: int, levels: int) -> None:
    values = np.random.default_rng(seed).integers(0, levels, a + b).astype(float)

    def gap(x: np.ndarray, y: np.ndarray) -> float:
        return x.mean() - y.mean()

    in_a = np.arange(a + b) < a
    for side, alternative in (("greater", "greater"), ("less", "less"), ("two", "two-sided")):
        expected = stats.permutation_test(
            (values[:a], values[a:]), gap, alternative=alternative, n_resamples=np.inf
        ).pvalue
        found, method, count = two_sample_permutation_p(values[None], in_a, side=side)
        assert method == "exact"
        assert count == len(list(_sets(a + b, a)))
        assert found[0] == pytest.approx(min(1.0, expected))


def _sets(n: int, k: int):  # type: ignore[no-untyped-def]
    from itertools import combinations

    return combinations(range(n), k)


@given(st.integers(0, 2**32 - 1), st.integers(2, 7))
def test_an_exact_p_is_never_below_its_level(seed: int, n: int) -> None:
    """Over all relabellings of one data set, P(p <= a) <= a for every a: the theorem itself."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 5, n).astype(float)
    size = int(rng.integers(1, n))
    ps = []
    for chosen in _sets(n, size):
        in_a = np.isin(np.arange(n), chosen)
        ps.append(two_sample_permutation_p(values[None], in_a, side="two", method="exact")[0][0])
    for level in np.unique(ps):
        assert np.mean(np.array(ps) <= level + 1e-12) <= level + 1e-9


def test_the_three_methods_agree() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(50, 18))
    in_a = np.arange(18) < 9
    exact, monte_carlo, normal = (
        two_sample_permutation_p(values, in_a, side="two", method=method, rng=rng)[0]
        for method in ("exact", "monte_carlo", "normal")
    )
    np.testing.assert_allclose(monte_carlo, exact, atol=0.025)
    np.testing.assert_allclose(normal, exact, atol=0.03)


def test_weat_is_one_sided_and_finds_a_planted_association() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 6, 20))
    a[:, 0] += 6
    x, y = rng.normal(size=(2, 8, 20))
    found = weat_test(x + 2 * np.eye(20)[0], y, a, b)
    assert (found.method, found.draws, found.side) == ("exact", 12870, "greater")
    assert found.p < 0.01
    assert weat_test(y, x + 2 * np.eye(20)[0], a, b).p > 0.99
    assert weat_test(x, y, a, b).p > 0.01  # and nothing where nothing was planted


def test_sc_eat_and_c_asc_tests_have_one_p_each() -> None:
    rng = np.random.default_rng(0)
    one = sc_eat_test(
        rng.normal(size=(7, 5)), rng.normal(size=(30, 5)), rng.normal(size=(30, 5)), rng=rng
    )
    assert one.p.shape == one.effect.shape == (7,)
    assert one.method == "monte_carlo"
    groups = Groups(np.arange(60) % 3, tuple("abc"))
    two = c_asc_test(rng.normal(size=(4, 60)), groups, draws=200, rng=rng)
    assert two.p.shape == two.effect.shape == (4, 3)
    assert two.p.min() >= 1 / 201


def test_monte_carlo_is_seeded_and_asks_for_its_randomness() -> None:
    values, in_a = np.random.default_rng(0).normal(size=(3, 60)), np.arange(60) < 30
    first, second = (
        two_sample_permutation_p(values, in_a, side="two", rng=np.random.default_rng(5))[0]
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
    with pytest.raises(InputError, match="pass rng"):
        two_sample_permutation_p(values, in_a, side="two")


def test_equal_values_give_p_one() -> None:
    for method in ("exact", "normal"):
        p = two_sample_permutation_p(
            np.full((1, 6), 0.1), np.arange(6) < 3, side="two", method=method
        )[0]
        assert p == pytest.approx([1])


def test_errors() -> None:
    with pytest.raises(InputError, match="both sets; got 0 and 4"):
        two_sample_permutation_p(np.ones((1, 4)), np.zeros(4), side="two")
    with pytest.raises(UnknownNameError, match="did you mean 'exact'"):
        two_sample_permutation_p(np.ones((1, 4)), np.array([1, 0, 0, 0]), side="two", method="exct")
    with pytest.raises(InputError, match="X has 2 rows, Y has 3"):
        weat_test(np.eye(3)[:2], np.eye(3), np.eye(3), np.eye(3))
