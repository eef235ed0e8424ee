"""NDKL of long rankings from counts by stretch is that of rankings drawn image by image."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ks_2samp

from tiltmeter.metrics.histogram import ndkl_of_stretches
from tiltmeter.metrics.numpy_kernels import ndkl_of_labels
from tiltmeter.metrics.ranking import log_shares
from tiltmeter.stats.bootstrap import bootstrap_ndkl, bootstrap_weights_within_groups
from tiltmeter.stats.null import ndkl_null
from tiltmeter.stats.whole_ranking import (
    SINGLE,
    cuts,
    ndkl_by_chance,
    resampled_ndkl,
    stretch_counts,
)
from tiltmeter.types import Groups


def one_hot(codes: np.ndarray, groups: int) -> np.ndarray:
    return (codes[:, None] == np.arange(groups)).astype(int)


def test_single_ranks_give_ndkl_itself() -> None:
    rng = np.random.default_rng(0)
    codes, shares = rng.integers(0, 4, (5, 300)), np.array([0.4, 0.3, 0.2, 0.1])
    counts = np.stack([one_hot(row, 4) for row in codes])
    expected = ndkl_of_labels(codes.astype(np.int32), log_shares(shares))
    np.testing.assert_allclose(ndkl_of_stretches(counts, shares), expected, atol=1e-12)


@pytest.mark.parametrize("sizes", [(300, 1200, 2500), (30, 50), (20, 20, 20, 20)])
def test_chance_is_that_of_labels_dealt_out(sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    shares = np.array(sizes) / sum(sizes)
    slow, fast = (of(np.array(sizes), shares, 3000, rng) for of in (ndkl_null, ndkl_by_chance))
    assert ks_2samp(slow, fast).pvalue > 0.01
    assert fast.mean() == pytest.approx(slow.mean(), rel=0.04)


def test_chance_beyond_what_numpy_draws_from_goes_on_as_below_it() -> None:
    """Noise falls as 1/n (but for ln n): no jump where the way to draw changes."""
    rng, shares = np.random.default_rng(2), np.array([0.2, 0.3, 0.5])
    means = [
        ndkl_by_chance((n * shares).astype(int), shares, 400, rng).mean() * n
        for n in (4 * 10**8, 16 * 10**8, 64 * 10**8)
    ]
    first, second = np.diff(np.log(means))
    assert first == pytest.approx(second, abs=0.06)


def test_cuts_reach_the_end() -> None:
    for items in (2, SINGLE, SINGLE + 1, 12345):
        ends = cuts(items)
        assert ends[-1] == items
        assert (np.diff(ends) > 0).all()


def test_stretches_hold_what_the_ranking_does() -> None:
    rng = np.random.default_rng(3)
    codes = np.sort(rng.integers(0, 3, 5000))  # groups come one after the other
    bins = np.stack([one_hot(some, 3).sum(axis=0) for some in np.array_split(codes, 400)])
    counts = stretch_counts(codes[:120], bins)
    np.testing.assert_array_equal(counts.sum(axis=0), bins.sum(axis=0))
    np.testing.assert_array_equal(counts[:SINGLE], one_hot(codes[:SINGLE], 3))
    shares = np.array([0.3, 0.3, 0.4])
    exact = ndkl_of_labels(codes[None].astype(np.int32), log_shares(shares))[0]
    assert ndkl_of_stretches(counts[None], shares)[0] == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("lean", [0.0, 0.7])
def test_resamples_spread_as_those_of_the_images(lean: float) -> None:
    rng = np.random.default_rng(4)
    groups = Groups(rng.choice(3, 3000, p=[0.5, 0.3, 0.2]), ("a", "b", "c"))
    order = np.argsort(-(rng.normal(size=3000) + lean * (groups.codes == 2)))[None].astype(np.int32)
    ranked = groups.codes[order[0]]
    bins = np.stack([one_hot(some, 3).sum(axis=0) for some in np.array_split(ranked, 600)])
    shares = np.array([0.5, 0.3, 0.2])
    slow = bootstrap_ndkl(
        order, groups, bootstrap_weights_within_groups(groups, 1500, rng), shares
    )[:, 0]
    fast = resampled_ndkl(stretch_counts(ranked[:200], bins), shares, 1500, rng)
    assert fast.std() == pytest.approx(slow.std(), rel=0.08)
    assert fast.mean() == pytest.approx(slow.mean(), rel=0.05)
