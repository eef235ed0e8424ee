"""Counts by bits and by lanes, against counting one by one."""

from __future__ import annotations

import numpy as np
import pytest

from tiltmeter.metrics.ranking import max_of
from tiltmeter.stats import kernels
from tiltmeter.stats.bootstrap import bootstrap_weights_within_groups
from tiltmeter.stats.permuted_labels import PermutedLabels, pack_attributes
from tiltmeter.stats.placebo import verdict, verdicts
from tiltmeter.stats.weighted_rankings import WeightLanes
from tiltmeter.types import Groups

ITEMS = 2500


@pytest.fixture
def order() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.stack([rng.permutation(ITEMS) for _ in range(9)]).astype(np.int32)


def permuted(codes: np.ndarray, draws: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.stack([rng.permutation(codes) for _ in range(draws)])


@pytest.mark.parametrize("labels", [1, 2, 16, 17, 70, 300])
@pytest.mark.parametrize("draws", [1, 128, 130])
def test_top_counts(order: np.ndarray, labels: int, draws: int) -> None:
    codes = permuted(np.arange(ITEMS) % labels, draws).astype(np.uint16)
    packed = PermutedLabels.pack(codes, labels, {"own": np.arange(labels)})
    found = packed.top_counts(order, (15, 16, 700))["own"]
    for k, counts in zip((15, 16, 700), found, strict=True):
        for draw in range(draws):
            top = codes[draw][order[:, :k]]
            expected = [np.bincount(row, minlength=labels) for row in top]
            np.testing.assert_array_equal(counts[draw], expected)


@pytest.mark.parametrize("names", [("a", "b", "a*b"), ("a", "b", "c"), ("a", "b", "c", "a*b")])
def test_attributes_share_their_labels(order: np.ndarray, names: tuple[str, ...]) -> None:
    rng = np.random.default_rng(2)
    a, b, c = (rng.integers(0, size, ITEMS) for size in (2, 7, 9))
    codes = {"a": a, "b": b, "c": c, "a*b": 7 * a + b}
    cells, labels = np.unique(
        np.stack([codes[name] for name in names]), axis=1, return_inverse=True
    )
    fine = permuted(labels.ravel().astype(np.uint8), 40)
    group_of = dict(zip(names, cells, strict=True))
    packed = pack_attributes(fine, group_of)
    assert sorted(name for one in packed for name in one.group_of) == sorted(names)
    shares = {name: np.bincount(codes[name]) / ITEMS for name in names}
    for one in packed:
        counts, ndkl = one.top_counts(order, (100,)), one.ndkl(order, shares, 33)
        for name in one.group_of:
            own = group_of[name][fine]
            alone = kernels.relabelled_top_counts(order, own, (100,), len(shares[name]))
            np.testing.assert_array_equal(counts[name][0], alone[0])
            alone = kernels.relabelled_ndkl(order, own[:33], shares[name])
            np.testing.assert_array_equal(ndkl[name], alone)
    assert not packed[0].of_attributes(()).top_counts(order, (100,))


@pytest.mark.parametrize("k", [7, 255, 256, 1000, ITEMS])
def test_top_counts_of_resamples(order: np.ndarray, k: int) -> None:
    groups = Groups(np.arange(ITEMS) % 5, tuple("abcde"), "group")
    weights = bootstrap_weights_within_groups(groups, 70, np.random.default_rng(3))
    found = WeightLanes.pack(weights).top_counts(order, groups.codes, k, 5)
    np.testing.assert_array_equal(
        found, kernels.weighted_top_counts(order, groups.codes, weights, k, 5)
    )
    assert (found.sum(axis=2) == k).all()


def test_functions_of_counts() -> None:
    rng = np.random.default_rng(4)
    table = rng.normal(size=(6, 3))
    table[0] = np.nan  # a group that is absent has no value
    counts = rng.integers(0, 6, (40, 11, 3)).astype(np.uint8)
    counts[3] = 0
    values = np.take_along_axis(table[None], counts.reshape(-1, 1, 3).astype(int), axis=1)
    values = values.reshape(counts.shape)
    np.testing.assert_array_equal(kernels.looked_up(table, counts), values)
    np.testing.assert_array_equal(kernels.largest_looked_up(table, counts)[..., 0], max_of(values))
    np.testing.assert_allclose(kernels.sum_looked_up(table, counts)[..., 0], values.sum(-1))


def test_verdicts_are_those_of_single_associations() -> None:
    p = np.array([0.001, 0.05, 0.051, np.nan])
    p_fwer, p_placebo = (x.ravel() for x in np.meshgrid(p, p))
    single = [verdict(*pair) for pair in zip(p_fwer, p_placebo, strict=True)]
    assert verdicts(p_fwer, p_placebo).tolist() == single
