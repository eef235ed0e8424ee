"""The bootstrap under weights equals the bootstrap with copies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from tiltmeter import metrics
from tiltmeter.metrics import numpy_kernels
from tiltmeter.stats import bootstrap, kernels
from tiltmeter.stats.intervals import wilson, wilson_of_top_k_shares
from tiltmeter.types import Groups


def data(seed: int) -> tuple[np.ndarray, Groups, np.ndarray]:
    rng = np.random.default_rng(seed)
    groups = Groups(rng.permutation(np.repeat(np.arange(3), [20, 12, 8])), tuple("abc"))
    return (
        rng.normal(size=(3, 40)).astype(np.float32),
        groups,
        bootstrap.bootstrap_weights_within_groups(groups, 5, rng),
    )


def copies(scores: np.ndarray, groups: Groups, weights: np.ndarray) -> tuple[np.ndarray, Groups]:
    rows = np.repeat(np.arange(40), weights)
    return scores[:, rows], groups[rows]


@given(st.integers(0, 2**32 - 1))
def test_weights_keep_the_size_of_every_group(seed: int) -> None:
    _, groups, weights = data(seed)
    for code in range(3):
        assert (weights[:, groups.codes == code].sum(axis=1) == groups.counts[code]).all()


@given(st.integers(0, 2**32 - 1))
def test_weighted_figures_equal_those_of_copied_items(seed: int) -> None:
    scores, groups, weights = data(seed)
    order = numpy_kernels.rank(scores)
    c_asc = bootstrap.bootstrap_c_asc(scores, groups, weights)
    counts = bootstrap.bootstrap_top_counts(order, groups, weights, 15)
    ndkl = bootstrap.bootstrap_ndkl(order, groups, weights, groups.shares)
    for draw, row in enumerate(weights):
        some, their = copies(scores, groups, row)
        np.testing.assert_allclose(c_asc[draw], metrics.c_asc(some, their), atol=2e-5)
        expected = metrics.top_counts(some, their, k=15, ties="stable")
        np.testing.assert_allclose(counts[draw], expected)
        # the order of copies within a tie does not matter: they are of one group
        np.testing.assert_array_equal(ndkl[draw], metrics.ndkl(some, their, target="prior"))


@given(st.integers(0, 2**32 - 1))
def test_relabelled_figures_equal_those_of_the_new_labels(seed: int) -> None:
    scores, groups, _ = data(seed)
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.permutation(groups.codes) for _ in range(4)]).astype(np.uint8)
    order = numpy_kernels.rank(scores)
    sums = kernels.relabelled_sums(kernels.standardized(scores), codes, 3)
    c_asc = kernels.c_asc_of_sums(sums, groups.counts)
    counts = kernels.relabelled_top_counts(order, codes, (5, 15), 3)
    ndkl = kernels.relabelled_ndkl(order, codes, groups.shares)
    for draw in range(4):
        new = Groups(codes[draw], groups.names)
        np.testing.assert_allclose(c_asc[draw], metrics.c_asc(scores, new), atol=2e-5)
        np.testing.assert_array_equal(ndkl[draw], metrics.ndkl(scores, new, target="prior"))
        for at, k in enumerate((5, 15)):
            expected = metrics.top_counts(scores, new, k=k, ties="stable")
            np.testing.assert_allclose(counts[at][draw], expected)


@given(st.integers(0, 2**32 - 1))
def test_labels_of_a_finer_partition_stand_for_their_groups(seed: int) -> None:
    """Attributes share their relabellings: each finds its own groups in them."""
    scores, _, _ = data(seed)
    rng = np.random.default_rng(seed)
    fine = rng.integers(0, 6, (4, 40)).astype(np.uint8)
    of = np.array([0, 2, 1, 0, 2, 2])
    coarse, shares = of[fine].astype(np.uint8), np.array([0.5, 0.2, 0.3])
    order, z = numpy_kernels.rank(scores), kernels.standardized(scores)
    for work, first, rest in (
        (kernels.relabelled_sums, z, (3,)),
        (kernels.relabelled_top_counts, order, ((5, 15), 3)),
        (kernels.relabelled_ndkl, order, (shares,)),
    ):
        np.testing.assert_array_equal(work(first, fine, *rest, of), work(first, coarse, *rest))


def test_a_table_holds_all_that_counts_can_give() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 11, (4, 5, 3)).astype(np.uint8)
    table = np.log(np.arange(11)[:, None] + np.array([1.0, 2.0, 5.0]))
    expected = np.log(counts + np.array([1.0, 2.0, 5.0]))
    np.testing.assert_array_equal(kernels.looked_up(table, counts), expected)


def test_a_heavy_weight_is_not_lost() -> None:
    """More copies than the kernel writes ahead."""
    groups = Groups(np.array([0, 0, 0, 0, 0, 0, 0, 1]), ("a", "b"))
    weights = np.array([[7, 0, 0, 0, 0, 0, 0, 1]], np.uint8)
    scores = np.array([[1.0, 2, 3, 4, 5, 6, 7, 4.5]], np.float32)
    order = numpy_kernels.rank(scores)
    found = bootstrap.bootstrap_ndkl(order, groups, weights, groups.shares)
    rows = np.repeat(np.arange(8), weights[0])
    expected = metrics.ndkl(scores[:, rows], groups[rows], target="prior")
    np.testing.assert_allclose(found[0], expected)


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (3, 10), (10, 10), (57, 1000)])
def test_wilson_equals_scipys(successes: int, n: int) -> None:
    expected = binomtest(successes, n).proportion_ci(method="wilson")
    assert [float(edge) for edge in wilson(np.array(successes), np.array(n))] == pytest.approx(
        [expected.low, expected.high]
    )


def test_wilson_of_draws_is_wilson_where_draws_are_binomial() -> None:
    rng = np.random.default_rng(0)
    draws = rng.binomial(100, 0.3, size=(20_000, 1)) / 100
    low, high = wilson_of_top_k_shares(np.array([30.0]), draws, 100)
    expected = wilson(np.array([30.0]), np.array([100]))
    np.testing.assert_allclose([low, high], expected, atol=2e-3)


def test_crossed_means_resample_words_and_templates_together() -> None:
    rng = np.random.default_rng(0)
    words, templates = np.repeat(np.arange(6), 4), np.tile(np.arange(4), 6)
    word_effect, template_effect = rng.normal(size=6), rng.normal(size=4)
    values = word_effect[words] + template_effect[templates]
    drawn = bootstrap.bootstrap_mean_of_words(np.tile(values, (4000, 1)), words, templates, rng)
    expected = word_effect.var() / 6 + template_effect.var() / 4
    assert drawn.mean() == pytest.approx(values.mean(), abs=0.05)
    assert drawn.var() == pytest.approx(expected, rel=0.1)


def test_a_word_whose_templates_were_not_drawn_keeps_all_of_them() -> None:
    draws = np.array([[1.0, 2.0, 3.0]] * 200)
    found = bootstrap.bootstrap_mean_of_words(
        draws, np.array([0, 1, 1]), np.array([0, 1, 2]), np.random.default_rng(0)
    )
    assert np.isfinite(found).all()
    assert found.min() >= 1
    assert found.max() <= 3
