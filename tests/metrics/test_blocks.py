"""Blocks, summaries and retrieval: however the work is cut, the numbers are the same."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltmeter import metrics
from tiltmeter.errors import InputError
from tiltmeter.metrics import numpy_kernels, retrieval
from tiltmeter.metrics.arrays import kernels
from tiltmeter.metrics.association import c_asc_of_moments
from tiltmeter.metrics.summary import Moments, TopItems, top_weights
from tiltmeter.types import Groups

torch = pytest.importorskip("torch")

cuts = st.lists(st.integers(1, 59), max_size=4, unique=True).map(sorted)


def blocks(
    scores: np.ndarray, groups: Groups, at: list[int]
) -> list[tuple[np.ndarray, Groups, int]]:
    edges = [0, *at, scores.shape[1]]
    return [(scores[:, a:b], groups[a:b], a) for a, b in itertools.pairwise(edges)]


def case(seed: int, levels: int) -> tuple[np.ndarray, Groups]:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, size=(3, 60)).astype(np.float32)
    return scores, Groups(rng.integers(0, 4, 60), tuple("abcde"))


@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 4, 10**5]), cuts, st.booleans())
def test_merged_summaries_equal_the_whole(
    seed: int, levels: int, at: list[int], tensors: bool
) -> None:
    scores, groups = case(seed, levels)
    kind = torch.as_tensor if tensors else np.asarray
    parts = blocks(scores, groups, at)
    moments = [Moments.of(kind(block), some) for block, some, _ in parts]
    tops = [TopItems.of(kind(block), some, 20, first) for block, some, first in parts]
    whole_moments, whole_top = moments[0], tops[0]
    for other in moments[1:]:
        whole_moments = whole_moments.merge(other)
    for other_top in tops[1:]:
        whole_top = whole_top.merge(other_top)
    np.testing.assert_allclose(
        c_asc_of_moments(whole_moments), metrics.c_asc(scores, groups), atol=1e-9
    )
    once = TopItems.of(scores, groups, 20)
    np.testing.assert_array_equal(whole_top.ids, once.ids)
    np.testing.assert_array_equal(whole_top.tied, once.tied)
    for ties in ("stable", "expected"):
        for k in (1, 7, 20):
            expected = metrics.top_counts(scores, groups, k=k, ties=ties)
            np.testing.assert_allclose(whole_top.counts(k, ties), expected, atol=1e-9)
            # the same from what every single item counts for
            block = kind(scores)
            each = top_weights(block, kernels(block).rank(block), k, ties)
            member = np.eye(len(groups.names))[groups.codes]
            np.testing.assert_allclose(np.asarray(each) @ member, expected, atol=1e-9)


@given(st.integers(0, 2**32 - 1))
def test_regrouping_moments_equals_measuring_the_coarser_groups(seed: int) -> None:
    scores, groups = case(seed, 10**5)
    coarse = np.array([0, 1, 0, 1, 1])
    found = c_asc_of_moments(Moments.of(scores, groups).regroup(coarse, 2))
    np.testing.assert_allclose(found, metrics.c_asc(scores, coarse[groups.codes]), atol=1e-9)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([2, 10**5]),
    st.integers(1, 60),
    st.sampled_from(["stable", "expected"]),
)
def test_counts_of_a_known_ranking_equal_those_of_the_scores(
    seed: int, levels: int, k: int, ties: str
) -> None:
    scores, groups = case(seed, levels)
    order = numpy_kernels.rank(scores)
    found = TopItems.of(scores, groups, 60, order=order).counts(k, ties)
    np.testing.assert_allclose(
        found, metrics.top_counts(scores, groups, k=k, ties=ties), atol=1e-12
    )
    np.testing.assert_allclose(numpy_kernels.tied_ranks(scores, order), metrics.tied_share(scores))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rank_is_a_stable_sort(dtype: type) -> None:
    scores = np.random.default_rng(0).integers(-3, 3, (20, 500)).astype(dtype)
    np.testing.assert_array_equal(numpy_kernels.rank(scores), np.argsort(-scores, 1, kind="stable"))


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 200),
    st.integers(1, 300),
    st.integers(1, 300),
    st.booleans(),
)
def test_retrieval_is_exact_however_it_is_cut(
    seed: int, k: int, rows: int, columns: int, tensors: bool
) -> None:
    rng = np.random.default_rng(seed)
    queries = rng.normal(size=(5, 3)).astype(np.float32)
    items = rng.integers(-1, 2, size=(200, 3)).astype(np.float32)  # few directions: many ties
    items[:, 0] += 2.0
    kind = torch.as_tensor if tensors else np.asarray
    found = retrieval.top_k(kind(queries), kind(items), k, item_block=rows, query_block=columns)
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, items)]
    scores = units[0] @ units[1].T
    expected = -np.sort(-scores, axis=1)[:, :k]
    np.testing.assert_allclose(found.scores, expected, atol=1e-6)
    taken = np.take_along_axis(scores, np.asarray(found.ids), 1)
    np.testing.assert_allclose(taken, expected, atol=1e-6)
    assert all(len(set(row)) == k for row in np.asarray(found.ids).tolist())


@pytest.mark.parametrize("tensors", [False, True])
def test_equal_items_come_in_the_order_of_their_rows(tensors: bool) -> None:
    kind = torch.as_tensor if tensors else np.asarray
    items = np.tile(np.eye(2, dtype=np.float32), (50, 1))
    found = retrieval.top_k(kind(np.eye(2, dtype=np.float32)), kind(items), 40, item_block=7)
    assert np.asarray(found.ids).tolist() == [list(range(0, 80, 2)), list(range(1, 80, 2))]


@pytest.mark.parametrize("reverse", [False, True])
def test_retrieval_is_exact_when_the_first_items_tell_nothing_of_the_rest(reverse: bool) -> None:
    """All near items first, or last: the guess from the first block is as wrong as can be."""
    rng = np.random.default_rng(0)
    angle = np.sort(rng.uniform(0, 3, 3000))[:: -1 if reverse else 1]
    items = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    queries = np.array([[1.0, 0.0], [-1.0, 0.1]], np.float32)
    found = retrieval.top_k(queries, items, 700, item_block=500)
    for query, ids in zip(queries, found.ids, strict=True):
        expected = np.argsort(-(items @ query), kind="stable")[:700]
        assert len(set(ids) & set(expected)) >= 698  # neighbours may differ by rounding
        assert len(set(ids)) == 700


def test_retrieval_reads_mapped_files_and_refuses_what_does_not_fit(tmp_path) -> None:
    np.save(tmp_path / "items.npy", np.random.default_rng(0).normal(size=(50, 4)))
    items = np.load(tmp_path / "items.npy", mmap_mode="r")
    assert retrieval.top_k(np.ones((1, 4)), items, 3).ids.shape == (1, 3)
    with pytest.raises(InputError, match="queries have 3 dimensions, items 4"):
        retrieval.top_k(np.ones((1, 3)), items, 3)
    with pytest.raises(InputError, match="k is 51, but there are 50 items"):
        retrieval.top_k(np.ones((1, 4)), items, 51)


def test_rankings_are_a_stable_sort_of_any_scores() -> None:
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(4, 5000)).astype(np.float32)
    scores[0, ::7], scores[1, ::3], scores[1, 1::3] = scores[0, 0], 0.0, -0.0
    scores[2, 5:9] = np.inf, -np.inf, 3e38, 1e-45
    scores[3] = rng.integers(-2, 3, 5000)
    expected = np.argsort(-scores, axis=1, kind="stable")
    assert (numpy_kernels.rank(scores) == expected).all()
    assert (numpy_kernels.rank(np.asfortranarray(scores)) == expected).all()


def test_ties_in_another_order() -> None:
    rng = np.random.default_rng(4)
    scores = rng.integers(-2, 3, (9, 60)).astype(np.float32)
    scores[0], scores[1] = 0.0, rng.normal(size=60)
    items = rng.permutation(60).astype(np.int32)
    expected = items[np.argsort(-scores[:, items], axis=1, kind="stable")]
    found = numpy_kernels.reorder_ties(scores, numpy_kernels.rank(scores), items)
    np.testing.assert_array_equal(found, expected)
    tensors = [torch.as_tensor(x) for x in (scores, numpy_kernels.rank(scores), items)]
    np.testing.assert_array_equal(kernels(tensors[0]).reorder_ties(*tensors), expected)
