"""LEACE's theorems, before vectors are made unit again."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.debiasers.making import planted
from tiltmeter.debiasers.leace import Leace
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.types import Groups


def cross_covariance(x: np.ndarray, groups: Groups) -> float:
    z = np.eye(len(groups.names))[groups.codes]
    return float(np.abs((x - x.mean(0)).T @ (z - z.mean(0)) / len(x)).max())


def probe_loss(x: np.ndarray, groups: Groups) -> float:
    """Cross-entropy of the best softmax regression without any penalty."""
    n, k = len(x), len(groups.names)
    x = np.c_[np.ones(n), x]
    z = np.eye(k)[groups.codes]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        logits = x @ flat.reshape(-1, k)
        logits -= logits.max(axis=1, keepdims=True)
        p = np.exp(logits)
        p /= p.sum(axis=1, keepdims=True)
        return -float(np.log(p[z > 0]).mean()), (x.T @ (p - z) / n).ravel()

    start = np.zeros((x.shape[1], k))
    start[0] = np.log(groups.shares)
    return float(minimize(loss, start.ravel(), jac=True, method="L-BFGS-B").fun)


@pytest.mark.parametrize("groups", [2, 3, 7])
def test_vectors_and_labels_become_uncorrelated(groups: int) -> None:
    x, labels = planted(groups=groups)
    assert cross_covariance(x, labels) > 0.01  # it was there
    assert cross_covariance(Leace().fit(x, labels).erase(x), labels) < 1e-8


def test_no_linear_probe_beats_the_constant() -> None:
    x, labels = planted()
    constant = -float((labels.shares * np.log(labels.shares)).sum())
    assert probe_loss(x, labels) < constant - 0.2
    assert probe_loss(Leace().fit(x, labels).erase(x), labels) > constant - 1e-6


def test_every_text_scores_all_groups_alike() -> None:
    x, labels = planted()
    erased = Leace().fit(x, labels).erase(x)
    texts = np.random.default_rng(1).normal(size=(50, x.shape[1]))
    means = np.stack([(texts @ erased[labels.codes == g].T).mean(axis=1) for g in range(3)])
    assert np.ptp(means, axis=0).max() < 1e-10


def test_it_is_idempotent_and_of_full_rank_less_groups() -> None:
    x, labels = planted(groups=3)
    leace = Leace().fit(x, labels)
    once = leace.erase(x)
    assert np.abs(leace.erase(once) - once).max() < 1e-10
    assert leace.proj_right_.shape[0] == 2
    assert np.linalg.matrix_rank(once - once.mean(0), tol=1e-8) == x.shape[1] - 2


def test_no_competitor_changes_less() -> None:
    """Affine maps that also make vectors and labels uncorrelated move further, in mean square."""
    x, labels = planted()
    rng = np.random.default_rng(2)
    erased = Leace().fit(x, labels).erase(x)
    least = ((erased - x) ** 2).sum(axis=1).mean()
    mean = x.mean(axis=0)
    z = np.eye(3)[labels.codes]
    crossed = (x - mean).T @ (z - z.mean(0)) / len(x)
    off, _ = np.linalg.qr(crossed[:, :2])
    plain = x - (x - mean) @ off @ off.T  # the orthogonal projection
    assert cross_covariance(plain, labels) < 1e-8
    assert ((plain - x) ** 2).sum(axis=1).mean() > least * 1.01
    for _ in range(50):
        # erased vectors moved on by any linear map keep no correlation
        moved = erased + 0.02 * (erased - mean) @ rng.normal(size=(x.shape[1],) * 2)
        assert cross_covariance(moved, labels) < 1e-8
        assert ((moved - x) ** 2).sum(axis=1).mean() > least
        skew = np.eye(x.shape[1]) + 0.1 * rng.normal(size=(x.shape[1],) * 2)
        oblique = off @ np.linalg.solve(off.T @ skew @ off, off.T @ skew)
        other = x - (x - mean) @ oblique.T
        assert ((other - x) ** 2).sum(axis=1).mean() > least


def test_rows_of_one_place_hold_no_direction_to_lose() -> None:
    """Vectors that lie in a plane stay in it."""
    x, labels = planted(d=8)
    flat = np.c_[x, np.zeros((len(x), 4))]
    erased = Leace().fit(flat, labels).erase(flat)
    assert np.abs(erased[:, 8:]).max() < 1e-12
    assert cross_covariance(erased, labels) < 1e-8


def test_labels_that_say_nothing_change_nothing() -> None:
    x, _ = planted()
    both = np.r_[x, x]  # each vector once in either group
    groups = Groups(np.repeat([0, 1], len(x)), ("a", "b"))
    assert np.abs(Leace().fit(both, groups).erase(both) - both).max() < 1e-7


def test_what_it_refuses() -> None:
    x, labels = planted()
    with pytest.raises(InputError, match="one group of 'kind'"):
        Leace().fit(x, Groups(np.zeros(len(x), int), ("g0", "g1", "g2"), "kind"))
    with pytest.raises(InputError, match="labels 600 rows, but there are 10"):
        Leace().fit(x[:10], labels)
    with pytest.raises(UnknownNameError, match="images"):
        Leace(towers="image").fit(x, labels)
    with pytest.raises(InputError, match="call fit first"):
        Leace().transform(x)
    with pytest.raises(InputError, match="fitted on 24 dimensions; X has 5"):
        Leace().fit(x, labels).transform(x[:, :5])


@pytest.mark.parametrize("shrink", [0.01, 0.3, 1.0])
def test_shrinking_erases_as_exactly_and_spares_vectors_of_another_kind(shrink: float) -> None:
    rng = np.random.default_rng(0)
    x, labels = planted(d=8)
    # directions in which the fitted vectors hardly differ, but others do
    seen = np.c_[x, 1e-5 * rng.normal(size=(len(x), 4))]
    others = np.c_[x, 0.1 * rng.normal(size=(len(x), 4))]
    plain, shrunk = Leace().fit(seen, labels), Leace(shrink=shrink).fit(seen, labels)
    assert cross_covariance(shrunk.erase(seen), labels) < 1e-8

    def moved(leace: Leace, vectors: np.ndarray) -> float:
        return float(np.linalg.norm(leace.erase(vectors) - vectors, axis=1).mean())

    assert moved(plain, others) > 10 * moved(plain, seen)  # torn about ...
    assert moved(shrunk, others) < 2 * moved(shrunk, seen)  # ... and not


def test_shrink_is_a_share() -> None:
    x, labels = planted()
    with pytest.raises(InputError, match="from 0 to 1; got 2"):
        Leace(shrink=2).fit(x, labels)
