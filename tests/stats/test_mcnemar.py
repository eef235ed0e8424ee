"""McNemar's test: exact against counting, symmetric, and its interval covers."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chi2

from tiltmeter.errors import InputError
from tiltmeter.stats.paired import mcnemar

ANSWERS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40)


@given(ANSWERS)
def test_against_counting(pairs: list[tuple[bool, bool]]) -> None:
    first, second = (np.array([pair[at] for pair in pairs]) for at in (0, 1))
    found = mcnemar(first, second)
    b = sum(one and not two for one, two in pairs)
    c = sum(two and not one for one, two in pairs)
    assert (found.only_first, found.only_second) == (b, c)
    assert found.difference == pytest.approx(second.mean() - first.mean())
    tail = sum(comb(b + c, k) for k in range(min(b, c) + 1)) / 2 ** (b + c)
    assert found.p == pytest.approx(min(1, 2 * tail))
    assert -1 <= found.ci_low <= found.ci_high <= 1


@given(ANSWERS)
def test_changing_places_changes_the_sign_alone(pairs: list[tuple[bool, bool]]) -> None:
    first, second = (np.array([pair[at] for pair in pairs]) for at in (0, 1))
    one, two = mcnemar(first, second), mcnemar(second, first)
    assert (one.p, one.difference) == (two.p, -two.difference)
    assert (one.ci_low, one.ci_high) == pytest.approx((-two.ci_high, -two.ci_low))


def test_printed_values() -> None:
    """Approval of the prime minister, asked twice (Agresti 2002, Table 10.1): 794, 150, 86, 570.
    The difference is -.04, its standard error .0095, McNemar's z squared 17.36."""
    first = np.repeat([1, 1, 0, 0], [794, 150, 86, 570])
    second = np.repeat([1, 0, 1, 0], [794, 150, 86, 570])
    found = mcnemar(first, second)
    assert found.difference == pytest.approx(-0.04)
    half = 1.96 * 0.0095
    assert (found.ci_low, found.ci_high) == pytest.approx((-0.04 - half, -0.04 + half), abs=5e-4)
    assert found.p == pytest.approx(chi2.sf(17.36, 1), rel=0.25)  # the exact test is more careful


def test_without_a_difference_alarms_are_rare_and_the_interval_covers() -> None:
    rng = np.random.default_rng(0)
    alarms = covered = 0
    for _ in range(400):
        hard = rng.uniform(size=60)  # items differ, the two models do not
        one, two = (rng.uniform(size=60) < hard for _ in range(2))
        found = mcnemar(one, two)
        alarms += found.p <= 0.05
        covered += found.ci_low <= 0 <= found.ci_high
    assert alarms <= binom.ppf(0.999, 400, 0.05)
    assert covered >= binom.ppf(0.001, 400, 0.95)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [([1, 0], [1], "flat arrays of one length"), ([], [], "flat arrays"),
     ([0.5, 1], [0, 1], "yes and no")],
)  # fmt: skip
def test_refused(first: list[float], second: list[float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        mcnemar(np.array(first), np.array(second))
