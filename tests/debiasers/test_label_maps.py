"""SFID, INLP, SPD and FairerCLIP: what they promise, slow ways to the same, and held-out rows."""

from __future__ import annotations

import sys

import numpy as np
import pytest

pytest.importorskip("sklearn")

from tests.debiasers.making import planted
from tests.refusing import refused
from tiltmeter.debiasers.debiaser import GroupTexts
from tiltmeter.debiasers.fairerclip import FairerClip, _centred, _dependence, fourier_features
from tiltmeter.debiasers.inlp import Inlp, Spd
from tiltmeter.debiasers.learners import low_confidence, split_rows
from tiltmeter.debiasers.sfid import Sfid
from tiltmeter.errors import InputError, UnknownNameError


def readable(fit: np.ndarray, codes: np.ndarray, test: np.ndarray, truth: np.ndarray) -> float:
    """Accuracy on other rows of least squares on indicators: a probe that no method here uses."""
    with_one = np.c_[fit, np.ones(len(fit))]
    read, *_ = np.linalg.lstsq(with_one, np.eye(codes.max() + 1)[codes], rcond=None)
    return float(((np.c_[test, np.ones(len(test))] @ read).argmax(axis=1) == truth).mean())


def halves(n: int = 3000, **given):
    x, groups = planted(n, **given)
    half = n // 2
    return x[:half], groups[np.arange(half)], x[half:], groups[np.arange(half, n)]


def on_axes(n: int = 2000, d: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two groups that differ on the axes 3, 7 and 11, and nowhere else."""
    rng = np.random.default_rng(seed)
    codes = np.arange(n) % 2
    x = rng.normal(size=(n, d))
    x[:, [3, 7, 11]] += 1.2 * codes[:, None]
    return x / np.linalg.norm(x, axis=1, keepdims=True), codes


# --- SFID ---------------------------------------------------------------------------------------


def test_sfid_without_dimensions_changes_nothing_to_the_bit() -> None:
    x, groups = planted()
    assert Sfid(dims=0).fit(x, groups).transform(x) is x


def test_sfid_is_that_of_the_slow_way() -> None:
    """Out-of-bag votes tree by tree, the imputed value row by row."""
    from sklearn.ensemble import RandomForestClassifier

    x, groups = planted(300, 10)
    made = Sfid(dims=4, trees=30, confidence=0.7, seed=3).fit(x, groups)
    forest = RandomForestClassifier(30, random_state=3).fit(x, groups.codes)
    votes = np.zeros((300, 3))
    for tree, drawn in zip(forest.estimators_, forest.estimators_samples_, strict=True):
        unseen = np.setdiff1d(np.arange(300), drawn)
        votes[unseen] += tree.predict_proba(x[unseen])
    sure = (votes / votes.sum(axis=1, keepdims=True)).max(axis=1)
    low = x[sure < 0.7]
    assert 10 < len(low) < 290
    assert made.n_low_confidence_ == len(low)
    dims = np.sort(np.argsort(forest.feature_importances_)[-4:])
    assert made.replaced_.tolist() == dims.tolist()
    for before, after in zip(x[:5], made.transform(x[:5]), strict=True):
        whole = [low[:, at].mean() if at in dims else before[at] for at in range(10)]
        assert np.allclose(after, np.array(whole) / np.linalg.norm(whole), atol=1e-12)


def test_sfid_works_where_an_attribute_lies_on_axes_and_not_where_it_does_not() -> None:
    """And what it took from unit vectors comes back in part when their length is made one again."""
    x, codes = on_axes()
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(24, 24)))[0]
    left = {}
    for name, rows in (("axes", x), ("turned", x @ turn)):
        fit, test = rows[:1000], rows[1000:]
        assert readable(fit, codes[:1000], test, codes[1000:]) > 0.8
        made = Sfid(dims=3).fit(fit, codes[:1000])
        if name == "axes":
            assert made.replaced_.tolist() == [3, 7, 11]
        for what, of in (("", made.transform), (", imputed only", made.impute)):
            left[name + what] = readable(of(fit), codes[:1000], of(test), codes[1000:])
    assert left["axes, imputed only"] < 0.55
    assert left["turned, imputed only"] > 0.65
    assert left["axes, imputed only"] + 0.1 < left["axes"] < 0.75


def test_sfid_refuses() -> None:
    x, groups = planted(100)
    for wrong in (25, -1):
        with pytest.raises(InputError, match="a number from 0 to 24"):
            Sfid(dims=wrong, trees=5).fit(x, groups)
    with pytest.raises(InputError, match="fitted on 24 dimensions; X has 3"):
        Sfid(trees=20).fit(x, groups).transform(x[:, :3])
    with pytest.raises(UnknownNameError, match="did you mean 'images'"):
        Sfid(towers="image").fit(x, groups)


def test_where_nobody_is_in_doubt_the_bar_is_raised() -> None:
    sure = np.linspace(0.8, 1.0, 50)
    rows, bar = low_confidence(sure, 0.7)
    assert rows.tolist() == list(range(10))
    assert bar == sure[9]
    assert low_confidence(np.r_[np.full(20, 0.6), sure], 0.7)[1] == 0.7


def test_parts_keep_every_group_and_share_no_row() -> None:
    labels = np.r_[np.zeros(40, int), np.ones(8, int), 2]
    learn, judge = split_rows(labels, 0.25, seed=1)
    assert sorted([*learn, *judge]) == list(range(49))
    assert np.bincount(labels[judge], minlength=3).tolist() == [10, 2, 0]


# --- INLP and SPD -------------------------------------------------------------------------------


def test_inlp_is_a_projection_whose_last_probe_is_at_chance() -> None:
    fit, groups, test, others = halves(groups=2)
    made = Inlp().fit(fit, groups)
    basis = made.basis_
    assert np.abs(basis.T @ basis - np.eye(basis.shape[1])).max() < 1e-12
    once = made.project(fit)
    assert np.abs(made.project(once) - once).max() < 1e-12
    assert readable(fit, groups.codes, test, others.codes) > 0.95
    assert readable(once, groups.codes, made.project(test), others.codes) < 0.56
    mapped = made.transform(fit), made.transform(test)
    assert readable(mapped[0], groups.codes, mapped[1], others.codes) < 0.58
    judged = round(0.25 * len(fit))
    assert made.accuracy_[0] > 0.95
    chance = made.chance_
    assert made.accuracy_[-1] <= chance + 1.645 * (chance * (1 - chance) / (judged - 2)) ** 0.5
    assert (made.accuracy_[:-1] > chance).all()


def test_inlp_of_one_round_after_the_other() -> None:
    """Each round by itself: project off the one direction of a probe on what is left so far."""
    from sklearn.linear_model import LogisticRegression

    x, groups = planted(400, 8, groups=2)
    made = Inlp(rounds=3, seed=2).fit(x, groups)
    learn, _ = split_rows(groups.codes, 0.25, 2)
    rest = x[learn] - x[learn].mean(axis=0)
    rest = rest / np.sqrt((rest**2).mean())
    whole = np.eye(8)
    for _ in range(3):
        w = LogisticRegression(max_iter=2000).fit(rest, groups.codes[learn]).coef_[0]
        off = np.eye(8) - np.outer(w, w) / (w @ w)
        rest, whole = rest @ off, whole @ off
    assert made.basis_.shape == (8, 3)
    # a probe on projected rows has no weight on what is gone, so the projections commute
    assert np.abs(x @ whole - made.project(x)).max() < 1e-3


def test_inlp_of_many_groups_takes_one_direction_less_than_groups_a_round() -> None:
    fit, groups, test, others = halves(groups=4)
    assert Inlp(rounds=1).fit(fit, groups).basis_.shape[1] == 3
    made = Inlp().fit(fit, groups)
    assert readable(fit, groups.codes, test, others.codes) > 0.9
    assert readable(made.transform(fit), groups.codes, made.transform(test), others.codes) < 0.35


def test_nothing_taken_away_changes_nothing_to_the_bit() -> None:
    x, groups = planted()
    assert Inlp(rounds=0).fit(x, groups).transform(x) is x
    assert Spd(rank=0).fit(x, groups).transform(x) is x
    for wrong in (Inlp(rounds=-1), Spd(rank=-1)):
        with pytest.raises(InputError, match="must be 0 or more; got -1"):
            wrong.fit(x, groups)


def test_spd_puts_one_value_on_the_directions_and_leaves_the_rest() -> None:
    from sklearn.linear_model import LogisticRegression

    x, groups = planted(1200, lean=0.1, groups=2)
    made = Spd(rank=5, seed=1).fit(x, groups)
    basis = made.basis_
    assert basis.shape == (24, 5)
    after = made.project(x)
    on = after @ basis
    assert np.ptp(on, axis=0).max() < 1e-12
    rest = np.eye(24) - basis @ basis.T
    assert np.abs((after - x) @ rest).max() < 1e-12
    # the value: the mean of held-out samples that the first probe is not sure of
    learn, judge = split_rows(groups.codes, 0.25, 1)
    middle = x[learn].mean(axis=0)
    scale = np.sqrt(((x[learn] - middle) ** 2).mean())
    probe = LogisticRegression(max_iter=2000).fit((x[learn] - middle) / scale, groups.codes[learn])
    sure = probe.predict_proba((x[judge] - middle) / scale).max(axis=1)
    assert made.n_low_confidence_ == (sure < 0.7).sum() > 10
    assert np.allclose(on[0], x[judge][sure < 0.7].mean(axis=0) @ basis, atol=1e-9)


def test_spd_takes_what_can_be_read_on_other_rows() -> None:
    fit, groups, test, others = halves(groups=2, lean=0.4)
    made = Spd().fit(fit, groups)
    before = readable(fit, groups.codes, test, others.codes)
    after = readable(made.transform(fit), groups.codes, made.transform(test), others.codes)
    assert before > 0.85
    assert after < before - 0.2


@pytest.mark.parametrize("kind", [Sfid, Inlp, Spd])
def test_texts_stay_unless_both_towers_are_asked_for(kind: type) -> None:
    x, groups = planted(200)
    texts = x[:3]
    assert kind().fit(x, groups).map_texts(texts, ["a", "b", "c"], None) is texts
    both = kind(towers="both").fit(x, groups)
    assert np.array_equal(both.map_texts(texts, ["a", "b", "c"], None), both.transform(texts))


@pytest.mark.parametrize("kind", [Sfid, Inlp, Spd])
def test_the_same_seed_gives_the_same_bytes(kind: type) -> None:
    x, groups = planted(300)
    one, other = (kind(seed=4).fit(x, groups).learned for _ in range(2))
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_without_scikit_learn_it_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    x, groups = planted(100)
    for module in ("sklearn.ensemble", "sklearn.linear_model"):
        monkeypatch.setitem(sys.modules, module, None)
    for method in (Sfid(), Inlp(), Spd()):
        with refused("missing-package", "scikit-learn", "pip install 'tiltmeter[debias]'"):
            method.fit(x, groups)


# --- FairerCLIP ---------------------------------------------------------------------------------

D = 24
TEXTS = np.zeros((2, D))
TEXTS[:, :3] = [[-1, -0.7, 0.5], [1, 0.7, 0.5]]
TEXTS /= np.linalg.norm(TEXTS, axis=1, keepdims=True)
CLASSES = GroupTexts(lambda some: TEXTS[[int(text[-1]) for text in some]], {})
TARGETS = ("class 0", "class 1")


def spurious(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vectors with a class and a group that goes with it in four of five; texts lean on both."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    s = np.where(rng.random(n) < 0.8, y, 1 - y)
    x = 0.5 * rng.normal(size=(n, D))
    x[:, 0] += 0.8 * (2 * y - 1)
    x[:, 1] += 1.2 * (2 * s - 1)
    x[:, 2] += 1
    return x / np.linalg.norm(x, axis=1, keepdims=True), y, s


def worst(images: np.ndarray, texts: np.ndarray, y: np.ndarray, s: np.ndarray) -> float:
    """Accuracy in the worst of the four cells of class and group."""
    right = (images @ texts.T).argmax(axis=1) == y
    return min(float(right[(y == a) & (s == b)].mean()) for a in (0, 1) for b in (0, 1))


def test_fairerclip_helps_the_worst_group_on_other_rows() -> None:
    x, _, s = spurious(3000, 0)
    rows, y, group = spurious(3000, 1)
    assert worst(rows, TEXTS, y, group) < 0.55
    found = {}
    for tau in (0.0, 0.6):
        made = FairerClip(TARGETS, tau=tau, features=500).fit(x, s, texts=CLASSES)
        images, texts = made.map_images(rows), made.map_texts(TEXTS, TARGETS, None)
        assert np.allclose(np.linalg.norm(images, axis=1), 1)
        found[tau] = worst(images, texts, y, group)
    assert found[0.0] < 0.5  # the target's own gain alone does not help
    assert found[0.6] > 0.8


def test_fairerclip_solves_its_eigenproblem() -> None:
    x, y, s = spurious(500, 2)
    method = FairerClip(TARGETS, tau=0.3, gamma=1e-3, kernel="linear")
    ys, ss = _centred(np.eye(2)[y]), _centred(np.eye(2)[s])
    mean, u = method._solve_tower(x, ys, ss, None, 1)
    centred = x - x.mean(axis=0)
    gain = _dependence(centred, ys) - 0.3 / 0.7 * _dependence(centred, ss)
    spread = centred.T @ centred / len(x) + 1e-3 * np.eye(D)
    assert np.allclose(mean, x.mean(axis=0))
    assert u.T @ spread @ u == pytest.approx(1.0, abs=1e-9)
    value = float((u.T @ gain @ u).item())
    assert np.abs(gain @ u - value * spread @ u).max() < 1e-9
    rng = np.random.default_rng(0)
    for _ in range(200):  # no other direction of the same size does better
        v = u[:, 0] + rng.normal(size=D) * rng.choice([0.01, 0.1, 1]) * np.abs(u).mean()
        assert v @ gain @ v / (v @ spread @ v) <= value + 1e-12


def test_dependence_is_hsic() -> None:
    """tr(K_z H K_s H) / n^2 of linear kernels, the long way, up to a scale that is divided out."""
    rng = np.random.default_rng(3)
    phi, s = rng.normal(size=(60, 5)), np.eye(3)[rng.integers(0, 3, 60)]
    h = np.eye(60) - 1 / 60
    u = rng.normal(size=5)
    found = []
    for one in (u, rng.normal(size=5)):
        z = phi @ one
        hsic = np.trace(np.outer(z, z) @ h @ (s @ s.T) @ h) / 60**2
        found.append((one @ _dependence(_centred(phi), _centred(s)) @ one) / hsic)
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    values = np.linalg.eigvalsh(_dependence(_centred(phi), _centred(s)))
    assert values.max() == pytest.approx(1.0)
    assert values.min() > -1e-12


def test_random_features_make_the_gaussian_kernel() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(30, 6))
    method = FairerClip(features=20_000)
    see, width, phase = method._features(x, rng)
    apart = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    sigma2 = 0.5 * np.median(apart[np.triu_indices(30, 1)])
    assert np.abs(see(x) @ see(x).T - np.exp(-apart / (2 * sigma2))).max() < 0.05
    assert np.array_equal(see(x), fourier_features(x, width, phase))


def test_fairerclip_without_targets_is_one_projection() -> None:
    fit, groups, test, others = halves(groups=2)
    made = FairerClip().fit(fit, groups)
    basis = made.basis_
    assert basis.shape[1] < 24
    assert np.abs(basis.T @ basis - np.eye(basis.shape[1])).max() < 1e-12
    before = np.abs(fit[groups.codes == 1].mean(0) - fit[groups.codes == 0].mean(0))
    mapped = made.transform(test)
    after = np.abs(mapped[others.codes == 1].mean(0) - mapped[others.codes == 0].mean(0))
    assert np.linalg.norm(after) < 0.5 * np.linalg.norm(before)
    whole = FairerClip(tau=0.0).fit(fit, groups)  # nothing to pay for: all is kept
    assert (
        np.abs(whole.transform(test) @ whole.transform(test[:3]).T - test @ test[:3].T).max()
        < 1e-12
    )


def test_fairerclip_refuses() -> None:
    x, _, s = spurious(200, 5)
    with pytest.raises(InputError, match="two targets or more"):
        FairerClip(("class 0",)).fit(x, s, texts=CLASSES)
    with pytest.raises(InputError, match="two targets or more"):
        FairerClip(TARGETS).fit(x, s)
    with pytest.raises(InputError, match="tau must be from 0 to below 1; got 1"):
        FairerClip(tau=1).fit(x, s)
    with pytest.raises(InputError, match="the same embedding for all of them: 'class 1', 'again"):
        FairerClip(("class 1", "again class 1"), kernel="linear").fit(x, s, texts=CLASSES)
    opposite = GroupTexts(lambda some: np.eye(D)[2] * [[1], [-1]], {})
    at_the_first = x[:, 2] > 0
    with pytest.raises(InputError, match="no image is nearer to another"):
        FairerClip(TARGETS, kernel="linear").fit(x[at_the_first], s[at_the_first], texts=opposite)
