"""One pass over blocks: however images are cut, the numbers are those of the whole matrix."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import reference
from tiltmeter import metrics
from tiltmeter.errors import InputError
from tiltmeter.metrics.digest import Digest, digest, intersect_groups, merged
from tiltmeter.metrics.histogram import (
    LISTED,
    Histogram,
    HistogramGrid,
    discounts,
    ndkl_of_histogram,
)
from tiltmeter.metrics.summary import TopItems
from tiltmeter.types import Groups

K = 20


def case(
    seed: int, levels: int, items: int = 300, tilt: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    """Scores that lie higher for some groups, and how often each stands on one number."""
    rng = np.random.default_rng(seed)
    codes = rng.choice(4, items, p=[0.55, 0.3, 0.1, 0.05])
    scores = rng.normal(size=(3, items)) + tilt * codes * np.array([[0.0], [1.0], [-1.0]])
    return (np.round(scores * levels) / levels).astype(np.float32), codes


cuts = st.lists(st.integers(1, 299), max_size=5, unique=True).map(sorted)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 5, 10**6]), cuts, st.integers(0, 5))
def test_merged_digests_equal_the_whole(seed: int, levels: int, at: list[int], split: int) -> None:
    scores, codes = case(seed, levels)
    grid = HistogramGrid.around(scores[:, :10], bins=32)
    parts = [
        Digest.of(scores[:, a:b], codes[a:b], 4, K, grid, a)
        for a, b in itertools.pairwise([0, *at, 300])
    ]
    split = split % len(parts)  # merging is associative: this way and in order
    found = merged(parts)
    if split:
        found = merged(parts[:split]).merge(merged(parts[split:]))
    whole = Digest.of(scores, codes, 4, K, grid, 0)
    np.testing.assert_array_equal(found.histogram.counts, whole.histogram.counts)
    np.testing.assert_array_equal(found.top.ids, whole.top.ids)
    np.testing.assert_array_equal(found.top.codes, whole.top.codes)
    np.testing.assert_array_equal(found.top.tied, whole.top.tied)
    np.testing.assert_allclose(found.moments.mean, whole.moments.mean, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.moments.m2, whole.moments.m2, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.c_asc(), metrics.c_asc(scores, codes), atol=1e-9)
    for ties in ("stable", "expected"):
        expected = metrics.top_counts(scores, codes, k=7, ties=ties)
        np.testing.assert_allclose(found.top_counts(7, ties), expected, atol=1e-12)


@pytest.mark.parametrize("levels", [2, 10**6])
def test_a_digest_gives_the_slow_reference(levels: int) -> None:
    scores, codes = case(3, levels, items=60)
    found = digest(
        np.eye(3, dtype=np.float32), scores.T, codes,
        groups=4, k=K, grid=HistogramGrid.around(scores), block=17,
    )  # fmt: skip
    q = np.bincount(codes, minlength=4) / 60
    for row, one in enumerate(scores.tolist()):
        known = reference.c_asc(one, codes.tolist(), 4)
        np.testing.assert_allclose(found.c_asc()[row], known, atol=1e-6)
        top = reference.top_counts(one, codes.tolist(), 4, 10, "expected")
        np.testing.assert_allclose(found.top_counts(10, "expected")[row], top, atol=1e-12)
        ndkl = reference.ndkl(one, codes.tolist(), q.tolist(), 10)
        assert found.ndkl(q, 10)[row] == pytest.approx(ndkl, abs=1e-12)
        whole = reference.ndkl(one, codes.tolist(), q.tolist(), 60)
        bounds = found.whole_ndkl(q)
        assert bounds.low[row] <= whole <= bounds.high[row]


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 3, 10**6]),
    st.sampled_from([2, 5, 40, 400]),
    st.sampled_from([1, 10, 100, 300]),
    st.sampled_from([0.0, 0.5, 3.0]),
    st.sampled_from(["prior", "uniform"]),
)
def test_whole_ndkl_lies_within_its_bounds(
    seed: int, levels: int, bins: int, k: int, tilt: float, target: str
) -> None:
    scores, codes = case(seed, levels, tilt=tilt)
    shares = np.bincount(codes, minlength=4) / 300 if target == "prior" else np.full(4, 0.25)
    groups = Groups(codes, tuple("abcd"))
    grid = HistogramGrid.around(scores[:, :20], bins)
    found = ndkl_of_histogram(
        Histogram.of(scores, codes, 4, grid), shares, TopItems.of(scores, groups, k)
    )
    exact = metrics.ndkl(scores, groups, target=shares)
    assert (found.low <= exact).all()
    assert (exact <= found.high).all()
    assert ((found.low <= found.value) & (found.value <= found.high)).all()
    if k == 300:  # nothing is left to the bins
        np.testing.assert_allclose(found.value, exact, atol=1e-11)
        assert (found.high - found.low).max() < 1e-11


def test_bounds_hold_for_the_worst_orders_within_bins() -> None:
    """Two bins, and every way in which groups can lie in them one after the other."""
    for order in itertools.permutations(range(3)):
        codes = np.concatenate([[0], np.repeat(order, [3, 5, 9]), np.repeat(order, [8, 2, 4])])
        scores = -np.arange(len(codes), dtype=float)[None]
        grid = HistogramGrid(np.array([-34.5]), np.array([1 / 17.0]), bins=2)
        groups = Groups(codes, tuple("abc"))
        shares = np.array([0.2, 0.5, 0.3])
        found = ndkl_of_histogram(
            Histogram.of(scores, codes, 3, grid), shares, TopItems.of(scores, groups, 1)
        )
        exact = metrics.ndkl(scores, groups, target=shares)[0]
        assert found.low[0] <= exact <= found.high[0]


def test_narrow_bins_bring_the_bounds_together() -> None:
    rng = np.random.default_rng(0)
    codes = rng.choice(2, 20_000, p=[0.7, 0.3])
    scores = rng.normal(size=(2, 20_000)) + 0.3 * codes
    groups = Groups(codes, ("a", "b"))
    exact = metrics.ndkl(scores, groups, target="prior")
    wide = []
    for bins in (64, 512, 4096):
        grid = HistogramGrid.around(scores[:, :1000], bins)
        found = ndkl_of_histogram(
            Histogram.of(scores, codes, 2, grid), groups.shares, TopItems.of(scores, groups, 100)
        )
        wide.append(float((found.high - found.low).max()))
        assert np.abs(found.value - exact).max() < (found.high - found.low).max()
    assert wide[1] < wide[0] / 5
    assert wide[2] < wide[1] / 5
    assert wide[2] < 0.05 * exact.min()


def test_discounts_beyond_the_list_are_the_sums() -> None:
    i = np.arange(1.0, 40 * LISTED + 1)
    for ranks in (1, LISTED - 1, LISTED, LISTED + 1, 40 * LISTED):
        weight, each = discounts(np.array([ranks]))
        terms = 1 / np.log2(i[:ranks] + 1)
        assert weight[0] == pytest.approx(terms.sum(), rel=1e-12)
        assert each[0] == pytest.approx((terms / i[:ranks]).sum(), rel=1e-12)


def test_scores_beyond_the_grid_are_counted() -> None:
    grid = HistogramGrid(np.array([0.0]), np.array([10.0]), bins=10)
    scores = np.array([[-1e30, -0.1, 0.05, 0.95, 1.0, 1e30]])
    found = Histogram.of(scores, np.zeros(6, int), 1, grid)
    assert found.counts[0, :, 0].tolist() == [3, 0, 0, 0, 0, 0, 0, 0, 0, 3]


def test_histograms_of_other_bins_are_refused() -> None:
    one = Histogram.empty(HistogramGrid(np.zeros(1), np.ones(1), 4), 2)
    other = Histogram.empty(HistogramGrid(np.zeros(1), np.ones(1) * 2, 4), 2)
    with pytest.raises(InputError, match="HistogramGrid"):
        one.merge(other)


def test_attributes_come_from_their_crossing() -> None:
    scores, codes = case(5, 3)
    gender = Groups(codes % 2, ("man", "woman"), "gender")
    race = Groups(np.arange(300) % 3, tuple("abc"), "race")
    cells, kinds = intersect_groups([gender, race])
    grid = HistogramGrid.around(scores)
    fine = Digest.of(scores, cells, len(kinds), K, grid, 0)
    for at, groups in enumerate((gender, race)):
        found = fine.regroup(kinds[:, at], len(groups.names))
        np.testing.assert_allclose(found.c_asc(), metrics.c_asc(scores, groups), atol=1e-9)
        for ties in ("stable", "expected"):
            expected = metrics.top_counts(scores, groups, k=9, ties=ties)
            np.testing.assert_allclose(found.top_counts(9, ties), expected, atol=1e-12)
        exact = metrics.ndkl(scores, groups, target="prior")
        bounds = found.whole_ndkl(groups.shares)
        assert ((bounds.low <= exact) & (exact <= bounds.high)).all()


def test_images_are_numbered_beyond_32_bits() -> None:
    scores, codes = case(1, 10**6)
    grid = HistogramGrid.around(scores)
    far = Digest.of(scores, codes, 4, K, grid, 5 * 10**9)
    near = Digest.of(scores, codes, 4, K, grid, 0)
    np.testing.assert_array_equal(far.top.ids - 5 * 10**9, near.top.ids)
    np.testing.assert_array_equal(near.merge(far).top.ids[:, :2] // 10**9, [[0, 5]] * 3)
