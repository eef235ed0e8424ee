"""PBM and MPR: slow ways to the same order, bounds that hold, and how an order is audited."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import tiltmeter as tm
from tests.conftest import brought_embeddings
from tiltmeter.debiasers.debiased import Debiased
from tiltmeter.debiasers.mpr import Mpr, solve_by_counts
from tiltmeter.debiasers.pbm import Pbm
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics import METRICS
from tiltmeter.probes.probe import CannotRunError
from tiltmeter.types import Groups

NAMES = ("a", "b", "c", "neutral")


def slow_pbm(scores: np.ndarray, codes: np.ndarray, neutral: int | None) -> list[int]:
    """Kong et al.'s loop, with lists: a round of every group's best, or the best neutral item."""
    best = sorted(range(len(scores)), key=lambda at: (-scores[at], at))
    left = {g: [at for at in best if codes[at] == g] for g in sorted(set(codes))}
    apart = left.pop(neutral, []) if neutral is not None else []
    shown: list[int] = []
    while apart or any(left.values()):
        fronts = [some[0] for some in left.values() if some]
        mean = np.mean([scores[at] for at in fronts]) if fronts else -np.inf
        if apart and not mean > scores[apart[0]]:
            shown.append(apart.pop(0))
            continue
        for at in sorted(fronts, key=best.index):
            left[codes[at]].remove(at)
            shown.append(at)
    return shown


@pytest.mark.parametrize("seed", range(30))
def test_pbm_is_the_slow_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 60))
    codes = rng.choice(4, n, p=rng.dirichlet(np.ones(4)))
    scores = rng.normal(size=(3, n))
    if seed % 2:  # with ties; sums of halves are exact, whichever way they are added
        scores = np.round(2 * scores) / 2
    groups = Groups(codes, NAMES)
    made = Pbm(neutral=("neutral",)).fit(None, groups)
    found = made.order(scores, groups, n)
    for row, order in zip(scores, found, strict=True):
        assert order.tolist() == slow_pbm(row, codes, 3)
    for k in (1, n // 2, n):  # a shorter list is the beginning of a longer one
        assert np.array_equal(made.order(scores, groups, k), found[:, :k])
    plain = Pbm(neutral=()).fit(None, groups).order(scores, groups, n)
    assert plain[0].tolist() == slow_pbm(scores[0], codes, None)


def test_pbm_with_one_group_or_none_is_the_plain_order() -> None:
    scores = np.random.default_rng(0).normal(size=(4, 50))
    plain = np.argsort(-scores, axis=1, kind="stable")[:, :20]
    one = Groups(np.zeros(50, int), ("a",))
    all_neutral = Groups(np.zeros(50, int), ("neutral",))
    for groups in (None, one, all_neutral):
        made = Pbm().fit(None, groups)
        assert made.fit(None, groups) is made
        assert np.array_equal(made.order(scores, groups, 20), plain)


def tilted(n: int = 1000, groups: int = 2, lean: float = 1.0, seed: int = 0):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, groups, n)
    scores = rng.normal(size=(5, n)) + lean * codes / (groups - 1)
    return scores, Groups(codes, tuple("abcdefg"[:groups]), "kind")


def max_skew(order: np.ndarray, groups: Groups, k: int) -> np.ndarray:
    """Of orders, against the data's own shares."""
    p = np.array([np.bincount(groups.codes[row[:k]], minlength=len(groups.names)) for row in order])
    return np.log(np.maximum(p / k, 1 / k) / groups.shares).max(axis=1)


def test_pbm_balances_every_prefix() -> None:
    scores, groups = tilted(groups=3)
    plain = np.argsort(-scores, axis=1)
    assert max_skew(plain, groups, 90).min() > 0.3
    shown = Pbm().fit(None, groups).order(scores, groups, 300)
    for k in range(1, 301):
        counts = [np.bincount(groups.codes[row[:k]], minlength=3) for row in shown]
        assert np.ptp(counts, axis=1).max() <= 1


# --- MPR ----------------------------------------------------------------------------------------


def test_mpr_of_group_shares_by_hand() -> None:
    """60 and 40 of 100 where the reference has halves: sqrt(.1^2/.5 + .1^2/.5) = .2."""
    made = Mpr().fit(np.ones((10, 2)), np.arange(10) % 2)
    codes = np.r_[np.zeros(60, int), np.ones(40, int)]
    assert made.measure(np.eye(2)[codes]) == pytest.approx(0.2, abs=1e-12)
    assert made.measure(np.eye(2)[np.arange(10) % 2]) == pytest.approx(0.0, abs=1e-12)


def test_mpr_is_the_largest_difference_over_linear_functions() -> None:
    rng = np.random.default_rng(1)
    reference, items = rng.normal(size=(300, 6)) @ rng.normal(size=(6, 6)), rng.normal(size=(40, 6))
    made = Mpr(features="vectors").fit(reference, np.arange(300) % 2)
    top = made.measure(items)
    found = []
    for _ in range(3000):
        w = rng.normal(size=6)
        spread = (reference @ w).std()
        found.append(abs((items @ w).mean() - (reference @ w).mean()) / spread)
    assert 0.5 * top < max(found) <= top + 1e-12
    narrow = Mpr(features="vectors", ridge=0.5).fit(reference, np.arange(300) % 2)
    assert narrow.measure(items) < top


def test_mpr_without_a_limit_is_the_plain_top() -> None:
    scores, groups = tilted()
    made = Mpr(rho=float("inf")).fit(np.ones((len(groups), 2)), groups)
    plain = np.argsort(-scores, axis=1, kind="stable")[:, :50]
    assert np.array_equal(made.order(scores, groups, 50), plain)
    wide = Mpr(rho=10.0).fit(np.ones((len(groups), 2)), groups)
    assert np.array_equal(wide.order(scores, groups, 50), plain)


@pytest.mark.parametrize("seed", range(12))
def test_mpr_never_beats_its_bound(seed: int) -> None:
    """Every one of the 1,287 ways to choose 5 of 13 is tried."""
    rng = np.random.default_rng(seed)
    codes = np.r_[0, 1, 2, rng.integers(0, 3, 10)]
    groups = Groups(codes, ("a", "b", "c"))
    scores = rng.normal(size=13) + codes
    rho = float(rng.choice([0.2, 0.4, 0.7]))
    made = Mpr(rho=rho).fit(np.ones((90, 2)), Groups(np.arange(90) % 3, groups.names))
    x = made.item_features(groups, None, 13)
    chosen = made.select(scores, x, 5)
    assert len(set(chosen.items.tolist())) == 5
    assert scores[chosen.items].sum() <= chosen.bound + 1e-9
    assert chosen.bound <= np.sort(scores)[-5:].sum() + 1e-9
    assert (np.diff(scores[chosen.items]) <= 0).all()
    within = 0
    for some in map(list, combinations(range(13), 5)):
        if made.measure(x[some]) <= chosen.rho:
            within += 1
            assert scores[some].sum() <= chosen.bound + 1e-9
    assert within or chosen.rho <= 0.4  # a small rho may fit no whole items at all


@pytest.mark.parametrize(("groups", "rho"), [(2, 0.0), (2, 0.1), (4, 0.05), (4, 0.3)])
def test_two_multipliers_solve_the_same_programme_as_cuts(
    groups: int, rho: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiltmeter.debiasers.mpr.SLACK", 1e-5)
    scores, labels = tilted(200, groups)
    made = Mpr(rho=rho, cuts=300).fit(np.ones((200, 2)), labels)
    x = made.item_features(labels, None, 200)
    for row in scores[:2]:
        top = np.zeros(200)
        top[np.argsort(-row)[:30]] = 1
        weights, bound, _, _ = solve_by_counts(row, labels.codes, made.mean_, top, rho)
        slow = made.solve_by_cuts(row, x, top)
        assert weights.sum() == pytest.approx(30, abs=1e-8)
        assert bound == pytest.approx(slow[1], abs=1e-5)
        assert bound < row @ top - 0.01  # it does bind


def test_a_smaller_rho_costs_similarity_and_brings_representation() -> None:
    scores, groups = tilted(groups=3)
    sums, skews = [], []
    for rho in (1.0, 0.3, 0.1, 0.03):
        made = Mpr(rho=rho).fit(np.ones((len(groups), 2)), groups)
        shown = made.order(scores, groups, 100)
        for row in shown:
            assert made.measure(np.eye(3)[groups.codes[row]]) < rho + 0.03  # items are whole
        sums.append(np.take_along_axis(scores, shown, 1).sum())
        skews.append(max_skew(shown, groups, 100).mean())
    assert skews[0] > 0.3
    assert skews[-1] < 0.06
    assert (np.diff(sums) <= 0).all()
    assert (np.diff(skews) < 0).all()


def test_where_nothing_is_near_enough_the_nearest_is_shown() -> None:
    scores, _ = tilted(60)
    groups = Groups(np.r_[np.zeros(55, int), np.ones(5, int)], ("a", "b"))
    made = Mpr(rho=0.01).fit(np.ones((40, 2)), Groups(np.arange(40) % 2, ("a", "b")))
    chosen = made.select(scores[0], made.item_features(groups, None, 60), 20)
    assert groups.codes[chosen.items].sum() == 5  # all there are, of the 10 that it takes
    assert chosen.rho == pytest.approx(0.5, abs=1e-4) == chosen.mpr
    slow = Mpr(rho=0.01, ridge=1e-12).fit(np.ones((40, 2)), Groups(np.arange(40) % 2, ("a", "b")))
    assert slow.select(scores[0], slow.item_features(groups, None, 60), 20).mpr == pytest.approx(
        0.5
    )


@pytest.mark.parametrize("functions", ["linear", "trees"])
def test_mpr_on_vectors_asks_for_no_labels_of_the_items(functions: str) -> None:
    if functions == "trees":
        pytest.importorskip("sklearn")
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 2, 600)
    x = rng.normal(size=(600, 2))
    x[:, 0] += 3 * codes
    scores = (x[:300, 0] + 0.5 * rng.normal(size=300))[None]
    made = Mpr(rho=0.3, features="vectors", functions=functions, depth=2, cuts=15)
    made.fit(x[300:], codes[300:])
    assert made.attribute_ is None
    before = codes[np.argsort(-scores[0])[:60]].mean()
    after = codes[:300][made.order(scores, None, 60, vectors=x[:300])[0]].mean()
    assert before > 0.95
    assert after < 0.75
    chosen = made.select(scores[0], x[:300], 60)
    assert scores[0][chosen.items].sum() <= chosen.bound + 1e-9


def test_mpr_refuses() -> None:
    scores, groups = tilted(50)
    made = Mpr().fit(np.ones((50, 2)), groups)
    with pytest.raises(InputError, match="needs the groups of the items"):
        made.order(scores, None, 5)
    with pytest.raises(InputError, match="reference set has no group 'z'"):
        made.order(scores, Groups(groups.codes, ("a", "z")), 5)
    with pytest.raises(InputError, match="needs the vectors"):
        Mpr(features="vectors").fit(np.eye(50), groups).order(scores, None, 5)
    with pytest.raises(InputError, match="must be 0 or more"):
        Mpr(rho=-1).fit(np.eye(50), groups)
    with pytest.raises(UnknownNameError, match="features"):
        Mpr(features="label").fit(np.eye(50), groups)


# --- an audit of an order -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return brought_embeddings(tmp_path_factory.mktemp("audit") / "brought")


def audited(place: Path, model, **given):
    chosen = {"permutations": 199, "bootstraps": 50, "k": [20, 60], "device": "cpu", **given}
    return tm.audit(model, f"embeddings:{place}", probes=["ranking"], **chosen)


def reranked(place: Path, debiaser) -> Debiased:
    spec = f"embeddings:{place}"
    faces = tm.load_data(spec)
    return Debiased(
        tm.load_model(spec), debiaser.fit(faces.vectors, faces.groups["gender"]), spec=spec
    )


def values(run, **where) -> dict[tuple, float]:
    return {
        (row["concept"], row["group"], row["k"]): row["value"]
        for row in run.where(**where)
        if row["concept"] is not None
    }


@pytest.mark.parametrize("debiaser", [Pbm(), Mpr(rho=0.1)], ids=["pbm", "mpr"])
@pytest.mark.parametrize("convention", ["tiltmeter", "berg2022"])
def test_the_ranking_probe_measures_the_order_that_is_shown(
    place: Path, debiaser, convention: str
) -> None:
    made = reranked(place, debiaser)
    run = audited(place, made, convention=convention)
    assert {row["metric"] for row in run.where(probe="ranking")} == {
        "skew", "max_skew", "min_skew", "normalized_entropy", "ndkl",
    }  # fmt: skip
    if convention == "berg2022":  # which draws a sample of its own
        assert values(run, metric="max_skew", attribute="gender")["thing 0", None, 20] < 0.15
        return
    faces = tm.load_data(f"embeddings:{place}")
    x = faces.vectors / np.linalg.norm(faces.vectors, axis=1, keepdims=True)
    text = made.encode_texts(["a photo of thing 0"])
    scores = text / np.linalg.norm(text) @ x.T
    for attribute in ("gender", "age"):
        groups = faces.groups[attribute]
        found = values(run, metric="max_skew", attribute=attribute)
        for k in (20, 60):
            order = made.debiaser.order(scores, faces.groups["gender"], k)
            share = np.bincount(groups.codes[order[0]], minlength=len(groups.names)) / k
            floor = np.minimum(1 / k, groups.shares)
            expected = np.log(np.maximum(share, floor) / groups.shares).max()
            assert found["thing 0", None, k] == pytest.approx(expected, abs=1e-6)
        # NDKL of the longest list, by a ranking that has its items in that order
        line = np.zeros((1, len(faces)))
        line[0, order[0]] = np.arange(60, 0, -1)
        known = METRICS["ndkl"](line, groups, target="prior", k=60)[0]
        shown = values(run, metric="ndkl", attribute=attribute)
        assert shown["thing 0", None, 60] == pytest.approx(known, abs=1e-6)


def test_the_tilt_was_there_and_its_order_has_none(place: Path) -> None:
    before = audited(place, tm.load_model(f"embeddings:{place}"))
    after = audited(place, reranked(place, Pbm()))
    rows = [
        next(r for r in run.where(metric="max_skew", attribute="gender", k=60)
             if r["concept"] == "thing 0")
        for run in (before, after)
    ]  # fmt: skip
    assert rows[0]["value"] > rows[0]["null_high"] > 0.1
    assert rows[0]["p"] < 0.01
    assert rows[1]["value"] < 0.02
    assert rows[1]["p"] > 0.9
    # the null is the same noise floor; an interval would take a re-ranking of every draw
    assert rows[1]["null_high"] == pytest.approx(rows[0]["null_high"], abs=0.05)
    assert rows[0]["ci_low"] is not None
    assert rows[1]["ci_low"] is None
    assert rows[1]["note"] == "order re-ranked, pbm by gender; null: a random order; no interval"
    assert rows[0]["note"] is None
    assert after.where(metric="c_asc") == []


def test_an_order_by_labels_that_are_not_there_cannot_be_made(place: Path) -> None:
    made = reranked(place, Pbm())
    faces = tm.load_data(f"embeddings:{place}")
    made.debiaser.attribute_ = "gender*race"
    with pytest.raises(CannotRunError, match="has no labels of race .it has gender, age"):
        made.reordering(faces)
    assert Debiased(made, Pbm().fit(None, None)).reordering(faces).groups is None


def test_a_model_says_whether_it_reranks(place: Path) -> None:
    made = reranked(place, Pbm())
    faces = tm.load_data(f"embeddings:{place}")
    fair = tm.debias("leace", made.model, faces, attribute="gender", device="cpu")
    assert made.reranks
    assert not fair.reranks
    assert fair.reordering(faces) is None
    above = Debiased(made, fair.debiaser)  # a map over a re-ranker
    assert above.reranks
    assert above.reordering(faces).by == "pbm by gender"


def test_what_measures_scores_does_not_apply(place: Path) -> None:
    made, faces = reranked(place, Pbm()), tm.load_data(f"embeddings:{place}")
    with pytest.raises(InputError, match="does not apply to a re-ranker"):
        tm.audit(made, faces, probes=["harms"])


def test_a_saved_reranker_is_audited_like_any_model(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    tm.debias("pbm", "testbed:dual", "testbed:?images=280&seed=3", attribute="shape",
              out=tmp_path / "fair", device="cpu")  # fmt: skip
    found = []
    for model in ("testbed:dual", str(tmp_path / "fair")):
        run = tm.audit(
            model, "testbed:?images=280&seed=4", probes=["ranking"], k=[50], permutations=0,
            bootstraps=0, templates=["a photo of a {} person"], device="cpu",
        )  # fmt: skip
        found.append(np.mean(list(values(run, metric="max_skew", attribute="shape").values())))
    assert found[0] > 0.3
    assert found[1] < 0.05
    with pytest.raises(InputError, match="all 280 rows of testbed"):
        tm.audit(str(tmp_path / "fair"), "testbed:?images=280&seed=3", probes=["ranking"], k=[50])
