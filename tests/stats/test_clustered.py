"""Errors of means over units that share clusters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from tests.refusing import refused
from tiltmeter.stats.clustered import group_covariance, mean_error
from tiltmeter.types import Groups


@given(st.integers(0, 10**6), st.integers(6, 30), st.integers(4, 8))
def test_every_pair_of_units_that_shares_a_cluster_counts_once(seed: int, n: int, c: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=n)
    clusters = [tuple(f"{one}" for one in rng.choice(c, rng.integers(1, 3), replace=False))
                for _ in range(n)]  # fmt: skip
    e = values - values.mean()
    sets = [set(names) for names in clusters]
    slow = sum(e[i] * e[j] for i in range(n) for j in range(n) if sets[i] & sets[j])
    found = mean_error(values, clusters)
    used = {name for names in clusters for name in names}
    units = len(used) * n / sum(map(len, clusters))
    alone = values.var(ddof=1) / n
    assert found.variance == pytest.approx(max(slow / n**2 * units / (units - 1), alone))
    assert found.variance >= mean_error(values).variance - 1e-12


def test_morphs_that_share_parents_have_intervals_that_hold() -> None:
    """Effects of parents: intervals cover as often as they say, and plain ones do not."""
    rng, covered = np.random.default_rng(0), np.zeros(2)
    first, second = np.triu_indices(30, 1)
    for _ in range(200):
        chosen = rng.choice(len(first), 150, replace=False)
        parents, a, b = rng.normal(size=30), first[chosen], second[chosen]
        values = (parents[a] + parents[b]) / 2 + 0.3 * rng.normal(size=150)
        clusters = [(f"{i}", f"{j}") for i, j in zip(a, b, strict=True)]
        for at, error in enumerate((mean_error(values, clusters), mean_error(values))):
            half = stdtrit(error.freedom, 0.975) * np.sqrt(error.variance)
            covered[at] += abs(values.mean()) <= half
    assert covered[0] / 200 >= 0.90
    assert covered[1] / 200 <= 0.65


def test_what_cannot_be_computed() -> None:
    assert np.isnan(mean_error(np.array([1.0])).variance)
    assert np.isnan(mean_error(np.arange(3.0), [("a",)] * 3).variance)  # one cluster alone
    with refused("bad-input"):
        mean_error(np.arange(3.0), [("a", "b", "c")] * 3)


def test_what_two_groups_share_cancels_in_their_difference() -> None:
    """Phrases of two groups with the same words: their difference is less uncertain."""
    rng = np.random.default_rng(1)
    words, codes = rng.normal(size=20), np.repeat([0, 1], 100)
    values = np.tile(np.repeat(words, 5), 2) + 0.1 * rng.normal(size=200)
    clusters = [(f"{row % 100 // 5}",) for row in range(200)]  # five phrases of each word
    cov = group_covariance(values, Groups(codes, ("a", "b")), clusters)
    parts = [mean_error(values[codes == code], clusters[:100]).variance for code in (0, 1)]
    alone = group_covariance(values, Groups(codes, ("a", "b")))
    assert np.diag(alone) == pytest.approx(
        [mean_error(values[codes == code]).variance for code in (0, 1)]
    )
    assert np.diag(cov) == pytest.approx(parts, rel=0.15)
    difference = cov[0, 0] + cov[1, 1] - 2 * cov[0, 1]
    assert difference < sum(parts) / 3
    assert difference >= alone[0, 0] + alone[1, 1] - 1e-12  # never below independent units
    assert (np.linalg.eigvalsh(cov - alone) > -1e-12).all()
