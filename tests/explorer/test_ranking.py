"""What the page says of one prompt, against slow references and against chance itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom

from tiltmeter.errors import InputError
from tiltmeter.explorer.ranking import QueryResult, answer
from tiltmeter.metrics.association import c_asc
from tiltmeter.metrics.convention import get_convention
from tiltmeter.metrics.ranking import max_skew, skew
from tiltmeter.types import Groups

HOUSE = get_convention("tiltmeter")


def drawn(n: int, lean: float, seed: int, groups: int = 3) -> tuple[np.ndarray, Groups]:
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.arange(n) % groups)
    scores = (rng.normal(size=n) + lean * (codes == 0)).astype(np.float32)
    return scores, Groups(codes, tuple("abcdefgh"[:groups]), "letter")


def slow(scores: np.ndarray, groups: Groups, k: int) -> list[tuple[float, ...]]:
    """Counts, band and two-sided p by sorting a list and by scipy."""
    order = sorted(range(len(scores)), key=lambda row: (-scores[row], row))[:k]
    found = []
    for code, size in enumerate(groups.counts):
        count = sum(groups.codes[row] == code for row in order)
        law = hypergeom(len(scores), size, k)
        p = min(1.0, 2 * min(law.sf(count - 1), law.cdf(count)))
        found.append((count, law.ppf(0.025), law.ppf(0.975), p))
    return found


@pytest.mark.parametrize(("n", "k"), [(30, 1), (30, 30), (200, 17), (900, 400)])
def test_counts_bands_and_p_are_those_of_the_hypergeometric(n: int, k: int) -> None:
    scores, groups = drawn(n, 0.5, seed=n + k)
    found = answer(scores, groups, k=k, convention=HOUSE)
    for one, (count, lo, hi, p) in zip(found.groups, slow(scores, groups, k), strict=True):
        assert one.count == count
        assert (one.null_low * k, one.null_high * k) == (pytest.approx(lo), pytest.approx(hi))
        assert one.p == pytest.approx(p, rel=1e-6)
        assert one.p_holm >= one.p


def test_skew_and_c_asc_are_the_metrics() -> None:
    scores, groups = drawn(500, 1.0, seed=1)
    found = answer(scores, groups, k=40, convention=HOUSE)
    how = {"k": 40, "target": HOUSE.target, "empty": HOUSE.empty, "ties": HOUSE.ties}
    assert [one.skew for one in found.groups] == pytest.approx(
        skew(scores[None], groups, **how)[0].tolist()
    )
    assert found.max_skew.value == pytest.approx(max_skew(scores[None], groups, **how)[0])
    assert [one.c_asc for one in found.groups] == pytest.approx(
        c_asc(scores[None], groups)[0].tolist()
    )


def test_the_null_of_c_asc_is_that_of_relabelling() -> None:
    """The closed form, against ten thousand relabellings; and the interval against resampling."""
    scores, groups = drawn(120, 0.8, seed=2)
    found = answer(scores, groups, k=10, convention=HOUSE)
    rng = np.random.default_rng(0)
    null = np.array([c_asc(scores[None], rng.permutation(groups.codes))[0] for _ in range(4000)])
    for at, one in enumerate(found.groups):
        assert one.c_asc_null == pytest.approx(1.96 * null[:, at].std(), rel=0.06)
        p = (np.abs(null[:, at]) >= abs(one.c_asc)).mean()
        assert one.c_asc_p == pytest.approx(p, abs=0.02)
    weights = []
    for _ in range(1500):
        rows = np.concatenate(
            [rng.choice(np.flatnonzero(groups.codes == g), (groups.codes == g).sum())
             for g in range(3)]
        )  # fmt: skip
        weights.append(c_asc(scores[None, rows], groups.codes[rows])[0])
    spread = np.std(weights, axis=0)
    for at, one in enumerate(found.groups):
        arm = (one.c_asc_high - one.c_asc_low) / 2
        assert arm == pytest.approx(1.96 * spread[at], rel=0.25)


def test_a_tilt_is_found_and_no_tilt_is_not() -> None:
    """The bias is there before anything is said of its absence."""
    found = answer(*drawn(3000, 1.5, seed=3), k=100, convention=HOUSE)
    assert [one.direction for one in found.groups] == [1, -1, -1]
    assert found.max_skew.p < 0.001
    alarms = [
        any(one.direction for one in answer(*drawn(600, 0.0, seed), k=60, convention=HOUSE).groups)
        for seed in range(300)
    ]
    assert np.mean(alarms) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)


@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(1, 60))
def test_shares_sum_to_one_and_names_do_not_matter(seed: int, groups: int, k: int) -> None:
    scores, labelled = drawn(60, 0.7, seed, groups)
    found = answer(scores, labelled, k=k, convention=HOUSE)
    assert sum(one.share for one in found.groups) == pytest.approx(1)
    assert sum(one.expected for one in found.groups) == pytest.approx(1)
    assert len(found.rows) == k == len(set(found.rows.tolist()))
    assert (np.diff(found.scores) <= 0).all()
    turned = Groups(groups - 1 - labelled.codes, labelled.names, "letter")
    other = answer(scores, turned, k=k, convention=HOUSE)
    assert [one.count for one in other.groups] == [one.count for one in found.groups][::-1]
    assert other.max_skew.value == pytest.approx(found.max_skew.value)


def test_ties_are_expected_counts_and_are_told() -> None:
    groups = Groups.from_labels(["a", "a", "a", "b"])
    found = answer(np.zeros(4, np.float32), groups, k=2, convention=HOUSE)
    assert [one.count for one in found.groups] == [1.5, 0.5]
    assert found.tied == 4
    assert [one.c_asc for one in found.groups] == pytest.approx([math.nan] * 2, nan_ok=True)
    assert found.as_dict()["groups"][0]["c_asc"] is None


def test_a_group_without_images_is_undefined_not_zero() -> None:
    groups = Groups(np.array([0, 0, 1, 1]), ("a", "b", "nobody"))
    told = answer(np.arange(4.0), groups, k=2, convention=HOUSE).as_dict()["groups"][2]
    assert (told["count"], told["skew"], told["c_asc"], told["c_asc_null"]) == (0, None, None, None)


def test_what_a_reranker_shows_is_what_counts() -> None:
    scores, groups = drawn(90, 3.0, seed=5)

    def backwards(matrix: np.ndarray, k: int) -> np.ndarray:
        return np.argsort(matrix, axis=1)[:, :k]

    plain = answer(scores, groups, k=12, convention=HOUSE)
    found = answer(scores, groups, k=12, convention=HOUSE, order=backwards)
    assert plain.groups[0].direction == 1
    assert found.groups[0].direction == -1
    assert found.rows.tolist() == np.argsort(scores)[:12].tolist()


@pytest.mark.parametrize("name", ["berg2022", "bendvlm", "sfid"])
def test_other_conventions(name: str) -> None:
    convention = get_convention(name)
    scores, groups = drawn(300, 4.0, seed=6)
    found: QueryResult = answer(scores, groups, k=20, convention=convention)
    how = {"target": convention.target, "empty": convention.empty, "ties": convention.ties}
    expected = max_skew(scores[None], groups, k=20, absolute=convention.skew == "absolute", **how)
    assert found.max_skew.value == pytest.approx(expected[0])


def test_wrong_k_and_wrong_labels() -> None:
    scores, groups = drawn(30, 0.0, seed=0)
    with pytest.raises(InputError, match="another number from 1 to 30"):
        answer(scores, groups, k=31, convention=HOUSE)
    with pytest.raises(InputError, match="30 scores, but 20 labels"):
        answer(scores, groups[:20], k=3, convention=HOUSE)
