"""Ranking metrics: check values, the slow reference, and what must hold for any ranking."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import reference
from tiltmeter import metrics
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.convention import CHOICES
from tiltmeter.metrics.ranking import max_of, skew_of_shares
from tiltmeter.types import Groups

EMPTY, TIES, TARGET = (list(CHOICES[name]) for name in ("empty", "ties", "target"))


def from_counts(counts: list[int], rest: list[int]) -> tuple[np.ndarray, Groups]:
    """A ranking whose top sum(counts) items have these counts; `rest` comes after them."""
    size = len(counts)
    codes = np.concatenate([np.repeat(np.arange(size), counts), np.repeat(np.arange(size), rest)])
    return -np.arange(len(codes), dtype=np.float32)[None], Groups(
        codes, tuple(map(str, range(size)))
    )


@pytest.mark.parametrize(
    ("empty", "least"),
    [("floor", -2.659), ("bounded", -2.659), ("epsilon", -23.026), ("drop", -0.357)],
)
def test_published_check_values(empty: str, least: float) -> None:
    scores, groups = from_counts([40, 30, 20, 10, 0, 0, 0], [10] * 7)
    kind = {"k": 100, "target": "uniform", "empty": empty, "ties": "stable"}
    assert metrics.max_skew(scores, groups, **kind)[0] == pytest.approx(1.030, abs=5e-4)
    assert metrics.min_skew(scores, groups, **kind)[0] == pytest.approx(least, abs=5e-4)


def test_check_value_of_two_groups() -> None:
    scores, groups = from_counts([60, 40], [40, 60])
    skew = metrics.skew(scores, groups, k=100, target="uniform", empty="bounded", ties="stable")
    assert skew[0] == pytest.approx([0.182, -0.223], abs=5e-4)


def test_nan_leaves_absent_groups_out() -> None:
    scores, groups = from_counts([2, 0], [2, 4])
    kind = {"k": 2, "target": "uniform", "empty": "nan", "ties": "stable"}
    assert math.isnan(metrics.skew(scores, groups, **kind)[0, 1])
    assert metrics.min_skew(scores, groups, **kind)[0] == pytest.approx(math.log(2))


def test_bounded_never_calls_an_absent_group_over_represented() -> None:
    """With plain floor, one of 126 groups at k = 100 would be the maximum just by being absent."""
    groups = Groups(np.arange(1260) % 126, tuple(map(str, range(126))))
    scores = np.random.default_rng(0).normal(size=(50, 1260))
    absent = metrics.composition(scores, groups, k=100, ties="stable") == 0
    for empty, expected in (("floor", True), ("bounded", False)):
        skew = metrics.skew(scores, groups, k=100, target="prior", empty=empty, ties="stable")
        assert bool((skew[absent] > 1e-12).all()) is expected


@st.composite
def rankings(draw: st.DrawFn) -> tuple[np.ndarray, Groups, int]:
    """Scores with ties, up to 126 groups of which some are empty, any k."""
    items = draw(st.integers(1, 60))
    size = draw(st.integers(1, 126))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    levels = draw(st.sampled_from([2, 5, 10**6]))
    scores = rng.integers(0, levels, size=(3, items)) - levels / 2
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    codes = rng.integers(0, size, size=items)
    return (
        scores.astype(dtype),
        Groups(codes, tuple(map(str, range(size)))),
        draw(st.integers(1, items)),
    )


@given(rankings(), st.sampled_from(TARGET), st.sampled_from(EMPTY), st.sampled_from(TIES))
def test_top_k_metrics_agree_with_the_reference(case, target, empty, ties) -> None:
    scores, groups, k = case
    codes, size = groups.codes.tolist(), len(groups.names)
    q = reference.target_shares(codes, size, target)
    kind = {"k": k, "target": target, "empty": empty, "ties": ties}
    found = metrics.skew(scores, groups, **kind)
    entropy = metrics.normalized_entropy(scores, groups, k=k, ties=ties)
    for row, some in enumerate(scores.tolist()):
        counts = reference.top_counts(some, codes, size, k, ties)
        skew = reference.skew(counts, q, k, empty)
        np.testing.assert_allclose(found[row], skew, atol=1e-9)
        defined = [x for x in skew if not math.isnan(x)]
        expected = [max(defined), min(defined)] if defined else [math.nan] * 2
        both = [f(scores, groups, **kind)[row] for f in (metrics.max_skew, metrics.min_skew)]
        np.testing.assert_allclose(both, expected, atol=1e-9)
        np.testing.assert_allclose(entropy[row], reference.entropy(counts, k), atol=1e-9)


@given(rankings(), st.sampled_from(TARGET), st.booleans())
def test_ndkl_agrees_with_the_reference(case, target, whole) -> None:
    scores, groups, k = case
    codes, size = groups.codes.tolist(), len(groups.names)
    q = reference.target_shares(codes, size, target)
    found = metrics.ndkl(scores, groups, target=target, k=None if whole else k)
    upto = scores.shape[1] if whole else k
    expected = [reference.ndkl(some, codes, q, upto) for some in scores.tolist()]
    np.testing.assert_allclose(found, expected, atol=1e-9)


@given(st.lists(st.integers(0, 2), min_size=2, max_size=6), st.data())
def test_expected_counts_are_the_mean_over_all_orders(scores, data) -> None:
    codes = data.draw(st.lists(st.integers(0, 2), min_size=len(scores), max_size=len(scores)))
    k = data.draw(st.integers(1, len(scores)))
    groups = Groups(np.array(codes), ("a", "b", "c"))
    found = metrics.top_counts(np.array([scores]), groups, k=k, ties="expected")[0]
    expected = reference.top_counts_over_all_orders(scores, codes, 3, k)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@given(rankings(), st.lists(st.floats(0.01, 1), min_size=126, max_size=126), st.sampled_from(TIES))
def test_max_skew_is_never_negative_for_shares_that_sum_to_one(case, weights, ties) -> None:
    scores, groups, k = case
    target = np.array(weights[: len(groups.names)])
    target /= target.sum()
    found = metrics.max_skew(scores, groups, k=k, target=target, empty="drop", ties=ties)
    assert (found >= -1e-12).all()


@given(rankings(), st.randoms(use_true_random=False), st.sampled_from(EMPTY))
def test_relabelling_groups_permutes_the_output_and_nothing_else(case, random, empty) -> None:
    scores, groups, k = case
    new = list(range(len(groups.names)))
    random.shuffle(new)
    new = np.array(new)
    renamed = Groups(new[groups.codes], groups.names)
    kind = {"k": k, "target": "prior", "empty": empty, "ties": "expected"}
    np.testing.assert_allclose(
        metrics.skew(scores, renamed, **kind)[:, new],
        metrics.skew(scores, groups, **kind),
        atol=1e-12,
    )
    np.testing.assert_allclose(
        metrics.ndkl(scores, renamed, target="prior"), metrics.ndkl(scores, groups, target="prior"),
        atol=1e-9,
    )  # fmt: skip


@given(rankings())
def test_the_whole_data_set_has_no_skew_against_its_own_shares(case) -> None:
    """The trap of k = N: any model at all scores 0 there."""
    scores, groups, _ = case
    kind = {"k": scores.shape[1], "target": "prior", "empty": "bounded", "ties": "stable"}
    np.testing.assert_allclose(metrics.max_skew(scores, groups, **kind), 0, atol=1e-12)


def test_identical_groups_have_no_tilt() -> None:
    """Each score once in each group: with ties split evenly nothing leans."""
    scores = np.repeat(np.random.default_rng(0).normal(size=40), 2)[None]
    groups = Groups(np.arange(80) % 2, ("a", "b"))
    kind = {"k": 21, "target": "uniform", "empty": "bounded", "ties": "expected"}
    assert metrics.max_skew(scores, groups, **kind)[0] == pytest.approx(0)
    assert metrics.c_asc(scores, groups)[0] == pytest.approx([0, 0], abs=1e-12)


def test_ties_beyond_k_are_counted() -> None:
    """Research code took every item that scores as much as the k-th and divided by k."""
    scores, groups = np.zeros((1, 10)), Groups(np.arange(10) % 2, ("a", "b"))
    for ties in TIES:
        assert metrics.composition(scores, groups, k=4, ties=ties).sum() == pytest.approx(1)


def test_tied_share_counts_every_tied_rank() -> None:
    assert metrics.tied_share(np.array([[1.0, 1, 2, 3, 3, 3], [1, 2, 3, 4, 5, 6]])).tolist() == [
        5 / 6,
        0,
    ]


def test_negative_zero_ties_with_zero() -> None:
    scores = np.array([[-0.0, 0.0, -1.0]], dtype=np.float32)
    groups = Groups(np.array([0, 1, 1]), ("a", "b"))
    assert metrics.top_counts(scores, groups, k=1, ties="stable").tolist() == [[1, 0]]
    assert metrics.top_counts(scores[:, ::-1].copy(), groups, k=2, ties="stable").tolist() == [
        [0, 2]
    ]


def test_groups_that_have_no_items_have_no_skew_against_the_prior() -> None:
    groups = Groups(np.array([0, 1, 0, 1]), ("a", "b", "nobody"))
    scores = np.arange(4.0)[None]
    kind = {"k": 2, "target": "prior", "empty": "floor", "ties": "stable"}
    assert np.isnan(metrics.skew(scores, groups, **kind)[0]).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 5}, "k is 5, but there are 4 items"),
        ({"k": 0}, "another number from 1 to 4"),
        ({"target": "prrior"}, "did you mean 'prior'"),
        ({"empty": "flor"}, "did you mean 'floor'"),
        ({"ties": "stabel"}, "did you mean 'stable'"),
        ({"target": [0.5, 0.6]}, "shares that sum to 1"),
        ({"target": [1.0, 0.0]}, "share of 0, but it has items"),
    ],
)
def test_choices_that_make_no_sense_are_refused(change: dict, message: str) -> None:
    kind = {"k": 2, "target": "uniform", "empty": "floor", "ties": "stable"} | change
    with pytest.raises((InputError, UnknownNameError), match=message):
        metrics.skew([[4, 3, 2, 1]], [0, 1, 0, 1], **kind)


@pytest.mark.parametrize("keyword", ["k", "target", "empty", "ties"])
@pytest.mark.parametrize("name", ["skew", "max_skew", "min_skew"])
def test_what_decides_the_result_has_no_default(name: str, keyword: str) -> None:
    kind = {"k": 2, "target": "uniform", "empty": "floor", "ties": "stable"}
    del kind[keyword]
    with pytest.raises(InputError, match=f"{keyword} must be chosen"):
        getattr(metrics, name)([[4, 3, 2, 1]], [0, 1, 0, 1], **kind)


def test_scores_are_checked() -> None:
    kind = {"k": 1, "target": "uniform", "empty": "floor", "ties": "stable"}
    with pytest.raises(InputError, match=r"row 0, column 1"):
        metrics.skew([[1.0, float("nan")]], [0, 1], **kind)
    with pytest.raises(InputError, match=r"pass scores\[None, :\]"):
        metrics.skew([1.0, 2.0], [0, 1], **kind)
    with pytest.raises(InputError, match="labels 3 rows, but there are 2 items"):
        metrics.skew([[1.0, 2.0]], [0, 1, 1], **kind)


def test_max_of_ignores_what_is_undefined() -> None:
    assert max_of(np.array([[1.0, np.nan], [np.nan, np.nan]])).tolist()[0] == 1
    assert np.isnan(max_of(np.array([np.nan])))


def test_a_fraction_of_an_item_is_no_worse_than_none() -> None:
    q = np.array([0.5, 0.5])
    fraction, none = (
        skew_of_shares(np.array([1 - c / 10, c / 10]), q, k=10, empty="bounded")[1]
        for c in (0.3, 0)
    )
    assert fraction == none == pytest.approx(math.log(0.1 / 0.5))
