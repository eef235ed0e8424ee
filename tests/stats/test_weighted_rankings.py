"""NDKL of long rankings by stretches, against the same draws walked rank by rank."""

from __future__ import annotations

import numpy as np
import pytest

from tiltmeter.metrics import numpy_kernels
from tiltmeter.stats import kernels, whole_ranking
from tiltmeter.stats.bootstrap import bootstrap_weights_within_groups
from tiltmeter.types import Groups


@pytest.fixture(params=[(2, 0.0), (2, 1.0), (9, 0.5)], ids=str)
def ranked(request: pytest.FixtureRequest) -> tuple[np.ndarray, Groups]:
    """Rankings of 3,000 items, with and without bias, by few and by many groups."""
    groups, bias = request.param
    rng = np.random.default_rng(groups)
    codes = rng.choice(groups, 3000, p=rng.dirichlet(np.full(groups, 5.0)))
    scores = rng.normal(size=(11, 3000)) + bias * codes / groups
    return numpy_kernels.rank(scores), Groups(codes, tuple(map(str, range(groups))), "group")


def test_permuted_labels(
    ranked: tuple[np.ndarray, Groups], monkeypatch: pytest.MonkeyPatch
) -> None:
    order, groups = ranked
    rng = np.random.default_rng(1)
    # labels of a finer partition: two labels for each group
    fine = np.stack([rng.permutation(groups.codes) for _ in range(150)]).astype(np.uint8) * 2
    fine += rng.integers(0, 2, fine.shape, np.uint8)
    of = np.repeat(np.arange(len(groups.names)), 2)
    by_stretches = kernels.relabelled_ndkl(order, fine, groups.shares, of)
    monkeypatch.setattr(whole_ranking, "LONG", 10**9)
    exact = kernels.relabelled_ndkl(order, fine, groups.shares, of)
    error = (by_stretches - exact) / exact.std()
    assert 0 < np.sqrt((error**2).mean()) < 0.02
    assert abs(error.mean()) < 0.002


def test_bootstrap_resamples(
    ranked: tuple[np.ndarray, Groups], monkeypatch: pytest.MonkeyPatch
) -> None:
    order, groups = ranked
    weights = bootstrap_weights_within_groups(groups, 150, np.random.default_rng(2))
    by_stretches = kernels.weighted_ndkl(order, groups.codes, weights, groups.shares)
    monkeypatch.setattr(whole_ranking, "LONG", 10**9)
    exact = kernels.weighted_ndkl(order, groups.codes, weights, groups.shares)
    spread = exact.std(axis=0)
    assert np.abs(by_stretches.std(axis=0) / spread - 1).max() < 0.01
    assert np.abs((by_stretches - exact).mean(axis=0) / spread).max() < 0.03


def test_weights_of_one_are_the_sample_itself(ranked: tuple[np.ndarray, Groups]) -> None:
    order, groups = ranked
    once = np.ones((1, len(groups)), np.uint8)
    found = kernels.weighted_ndkl(order, groups.codes, once, groups.shares)
    labels = kernels.relabelled_ndkl(order, groups.codes[None], groups.shares)
    np.testing.assert_allclose(found, labels, rtol=1e-12)


def test_result_does_not_depend_on_neighbouring_draws(ranked: tuple[np.ndarray, Groups]) -> None:
    order, groups = ranked
    weights = bootstrap_weights_within_groups(groups, 70, np.random.default_rng(3))
    together = kernels.weighted_ndkl(order, groups.codes, weights, groups.shares)
    alone = kernels.weighted_ndkl(order[4:5], groups.codes, weights[68:69], groups.shares)
    np.testing.assert_array_equal(together[68:69, 4:5], alone)
