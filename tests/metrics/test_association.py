"""WEAT, SC-EAT and C-ASC: the slow reference, signs, bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import reference
from tiltmeter import metrics
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.association import association, c_asc_bound
from tiltmeter.types import Groups

seeds = st.integers(0, 2**32 - 1)


def sets(seed: int, *sizes: int, dimensions: int = 5) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(size, dimensions)) for size in sizes]


@given(seeds, st.sampled_from([("caliskan", 1), ("wefe", 0)]))
def test_weat_agrees_with_the_reference(seed: int, ddof: tuple[str, int]) -> None:
    x, y, a, b = sets(seed, 4, 4, 3, 2)
    found = metrics.weat(x, y, a, b, ddof=ddof[0])
    expected = reference.weat(*(v.tolist() for v in (x, y, a, b)), ddof[1])
    assert found == pytest.approx(expected, abs=1e-9)


@given(seeds, st.sampled_from([("caliskan", 1), ("wefe", 0)]))
def test_sc_eat_agrees_with_the_reference(seed: int, ddof: tuple[str, int]) -> None:
    w, a, b = sets(seed, 4, 3, 6)
    found = metrics.sc_eat(w, a, b, ddof=ddof[0])
    expected = [reference.sc_eat(row, a.tolist(), b.tolist(), ddof[1]) for row in w.tolist()]
    np.testing.assert_allclose(found, expected, atol=1e-9)


@given(seeds, st.integers(2, 40), st.integers(1, 10), st.sampled_from([3, 10**6]))
def test_c_asc_agrees_with_the_reference(seed: int, items: int, size: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, size=(3, items)).astype(float)
    groups = Groups(rng.integers(0, size, items), tuple(map(str, range(size))))
    expected = [reference.c_asc(row, groups.codes.tolist(), size) for row in scores.tolist()]
    np.testing.assert_allclose(metrics.c_asc(scores, groups), expected, atol=1e-9)


@given(seeds)
def test_swapping_x_and_y_or_a_and_b_flips_the_sign(seed: int) -> None:
    x, y, a, b = sets(seed, 4, 4, 3, 3)
    d = metrics.weat(x, y, a, b)
    assert metrics.weat(y, x, a, b) == pytest.approx(-d)
    assert metrics.weat(x, y, b, a) == pytest.approx(-d)
    np.testing.assert_allclose(metrics.sc_eat(x, b, a), -metrics.sc_eat(x, a, b))


@given(seeds, st.floats(0.1, 10))
def test_the_length_of_vectors_does_not_count(seed: int, scale: float) -> None:
    x, y, a, b = sets(seed, 4, 4, 3, 3)
    assert metrics.weat(x * scale, y, a / scale, b) == pytest.approx(metrics.weat(x, y, a, b))


def test_identical_sets_give_zero() -> None:
    x, a, b = sets(0, 5, 3, 3)
    assert metrics.weat(x, x, a, b) == pytest.approx(0)
    np.testing.assert_allclose(metrics.sc_eat(x, a, a), 0, atol=1e-12)


@given(seeds, st.integers(3, 60), st.integers(2, 8))
def test_c_asc_stays_within_its_bound(seed: int, items: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    groups = Groups(rng.integers(0, size, items), tuple(map(str, range(size))))
    scores = rng.standard_cauchy(size=(5, items))
    # the hardest case: a score that is the group itself
    scores = np.concatenate([scores, (groups.codes == 0)[None].astype(float)])
    found, bound = metrics.c_asc(scores, groups), c_asc_bound(groups)
    assert (np.nan_to_num(abs(found)) <= np.nan_to_num(bound) + 1e-9).all()


def test_c_asc_reaches_its_bound_for_halves() -> None:
    groups = Groups(np.arange(10_000) % 2, ("a", "b"))
    assert metrics.c_asc(groups.codes[None].astype(float), groups)[0, 1] == pytest.approx(
        2, abs=1e-3
    )


def test_two_groups_mirror_each_other() -> None:
    rng = np.random.default_rng(0)
    found = metrics.c_asc(rng.normal(size=(4, 50)), rng.integers(0, 2, 50))
    np.testing.assert_allclose(found[:, 0], -found[:, 1])


def test_what_has_no_spread_is_undefined_not_zero() -> None:
    for n in range(2, 12):
        assert np.isnan(metrics.c_asc(np.full((1, n), 0.1), np.arange(n) % 2)).all()
    assert np.isnan(metrics.c_asc([[1.0, 2.0]], [0, 0])).all()
    same = np.ones((3, 4))
    assert math.isnan(metrics.weat(same, same, *sets(0, 2, 2, dimensions=4)))


def test_errors_name_what_is_wrong() -> None:
    x, y, a, _ = sets(0, 4, 4, 3, 3)
    with pytest.raises(InputError, match="w has 5, a has 5, b has 4"):
        metrics.weat(x, y, a, np.ones((2, 4)))
    with pytest.raises(InputError, match="1 zero vectors, the first at row 2"):
        association(x, np.vstack([a[:2], np.zeros((1, 5))]), a)
    with pytest.raises(UnknownNameError, match="did you mean 'caliskan'"):
        metrics.weat(x, y, a, a, ddof="caliskn")


@pytest.mark.parametrize("size", [1e153, 1e200, 1e-162, 1e-200])
def test_scores_that_cannot_be_squared_are_refused(size: float) -> None:
    """They gave -0.0 or NaN."""
    scores = np.array([[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]])
    assert np.isfinite(metrics.c_asc(scores, [0, 0, 1, 1])[0]).all()
    scores[0] *= size
    with pytest.raises(InputError, match="Rescale"):
        metrics.c_asc(scores, [0, 0, 1, 1])
