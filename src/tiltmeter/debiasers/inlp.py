"""INLP (Ravfogel et al. 2020) and SPD (Zhao et al. 2026): removes what linear probes read, in turn.

A linear probe learns the attribute; the directions it reads are projected off; a new probe learns
it from what is left, and so on. x - QQ'x, Q a basis of all directions. SPD removes few directions
and restores the mean of low-confidence samples on them: x - QQ'x + QQ'm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiltmeter.debiasers.debiaser import GroupTexts, LabelMap, check_at_least, like_input
from tiltmeter.debiasers.learners import linear_probe, low_confidence, scale_of, split_rows
from tiltmeter.metrics.arrays import unit
from tiltmeter.types import Array, Floats, Groups, Ints

TEST_SHARE = 0.25  # share of the rows on which a probe is tested against chance
Z_CHANCE = 1.645  # standard errors above the share of the largest group: one-sided 5%


class _Projection(LabelMap):
    """Projects off the columns of `basis_`."""

    basis_: Floats

    def project(self, X: Array) -> Array:
        """Return vectors without the directions, before they are normalised again."""
        self.check_fitted()
        [basis] = like_input(X, self.basis_)
        return X - X @ basis @ basis.T

    def _transform(self, X: Array) -> Array:
        return unit(self.project(X)) if self.basis_.shape[1] else X


@dataclass(eq=False)
class Inlp(_Projection):
    """INLP (Ravfogel et al. 2020): projects off what linear probes read, one after the other.

    Directions are learned on three quarters of the rows. It stops as soon as a probe is at chance
    on the other quarter (its accuracy is not above the share of the largest group, one-sided 5%).

    Parameters
    ----------
    rounds
        Maximum number of probes.
    towers
        Embeddings to change: `images`, `texts` or `both`.
    seed
        Seed of the split.

    Attributes
    ----------
    basis_ : array of shape (n_dimensions, rank)
        The removed directions.
    chance_ : float
        Share of the largest group among the test rows.
    accuracy_ : array
        Test accuracy of a probe before the first round, after it, and so on.
    """

    rounds: int = 30
    towers: str = "images"
    seed: int = 0

    def _fit(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        check_at_least(0, rounds=self.rounds)
        train, test = split_rows(labels.codes, TEST_SHARE, self.seed)
        self.basis_, accuracy = nullspace(x, labels.codes, (train, test), rounds=self.rounds)
        self.chance_ = float(np.bincount(labels.codes[test]).max() / max(len(test), 1))
        self.accuracy_: Floats = np.array(accuracy)


@dataclass(eq=False)
class Spd(_Projection):
    """SPD (Zhao et al. 2026): INLP's first directions, set to the mean of low-confidence samples.

    Parameters
    ----------
    rank
        Number of directions; 5 in the paper.
    confidence
        A sample is of low confidence if its largest probability, by the first probe and on rows
        that it was not trained on, is below this.
    towers
        Embeddings to change: `images`, `texts` or `both`.
    seed
        Seed of the split.

    Attributes
    ----------
    basis_ : array of shape (n_dimensions, rank)
        The directions.
    offset_ : array of shape (n_dimensions,)
        The mean of low-confidence samples along them.
    threshold_ : float
        The confidence that was used: raised where hardly any sample is below `confidence`.
    n_low_confidence_ : int
        Number of low-confidence samples.
    """

    rank: int = 5
    confidence: float = 0.7
    towers: str = "images"
    seed: int = 0

    def _fit(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        check_at_least(0, rank=self.rank)
        train, test = split_rows(labels.codes, TEST_SHARE, self.seed)
        test = test if len(test) else train
        self.basis_, _ = nullspace(x, labels.codes, (train, test[:0]), max_rank=self.rank)
        mean, scale = x[train].mean(axis=0), scale_of(x[train])
        probe = linear_probe((x[train] - mean) / scale, labels.codes[train])
        confidence = probe.predict_proba((x[test] - mean) / scale).max(axis=1)
        rows, self.threshold_ = low_confidence(confidence, self.confidence)
        self.n_low_confidence_ = len(rows)
        self.offset_: Floats = self.basis_ @ (self.basis_.T @ x[test[rows]].mean(axis=0))

    def project(self, X: Array) -> Array:
        return super().project(X) + like_input(X, self.offset_)[0]


def nullspace(
    x: Floats,
    labels: Ints,
    parts: tuple[Ints, Ints],
    *,
    rounds: int | None = None,
    max_rank: int | None = None,
) -> tuple[Floats, list[float]]:
    """Find the directions that successive linear probes read.

    One dimension is always left.

    Parameters
    ----------
    x : array of shape (n, n_dimensions)
        Embeddings.
    labels : array of shape (n,)
        Group codes.
    parts
        Rows to train probes on and rows to test them on. With test rows it stops at chance.
    rounds
        Maximum number of probes.
    max_rank
        Maximum number of directions.

    Returns
    -------
    array of shape (n_dimensions, rank)
        An orthonormal basis.
    list of float
        Test accuracies of the probes; the last is that of a probe on what the basis leaves.
    """
    train, test = parts
    x = x - x[train].mean(axis=0)
    x = x / scale_of(x[train])
    d = x.shape[1]
    basis: Floats = np.empty((d, 0))
    accuracy: list[float] = []
    chance = np.bincount(labels[test]).max() / len(test) if len(test) else 0.0
    threshold = chance + Z_CHANCE * np.sqrt(chance * (1 - chance) / max(len(test), 1))
    limit = d - 1 if max_rank is None else min(max_rank, d - 1)
    done = 0
    while basis.shape[1] < limit and (rounds is None or done < rounds):
        rest = x - x @ basis @ basis.T
        probe = linear_probe(rest[train], labels[train])
        if len(test):
            accuracy.append(float((probe.predict(rest[test]) == labels[test]).mean()))
            if accuracy[-1] <= threshold:
                return basis, accuracy
        coef = np.asarray(probe.coef_).T
        coef = coef - basis @ (basis.T @ coef)
        left, sizes, _ = np.linalg.svd(coef, full_matrices=False)
        left = left[:, sizes > 1e-8 * max(sizes.max(), 1e-300)][:, : limit - basis.shape[1]]
        if sizes.max() < 1e-12:
            break
        # orthonormalise again, since rounding leaves a trace of the directions before
        basis = np.linalg.qr(np.hstack([basis, left]))[0]
        done += 1
    if len(test):
        rest = x - x @ basis @ basis.T
        probe = linear_probe(rest[train], labels[train])
        accuracy.append(float((probe.predict(rest[test]) == labels[test]).mean()))
    return basis, accuracy
