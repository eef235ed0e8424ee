"""INLP (Ravfogel et al. 2020) and SPD (Zhao et al. 2026): directions of linear probes go, in turn.

A linear probe learns the attribute; the directions it reads are projected off; a new probe learns
it from what is left, and so on. x - QQ'x, Q a basis of all directions. SPD takes few directions and
puts the mean of doubtful samples back on them: x - QQ'x + QQ'm.
"""

from __future__ import annotations

import numpy as np

from tiltmeter.debiasers.debiaser import GroupTexts, LabelMap
from tiltmeter.debiasers.learners import doubtful, linear_probe, scale_of, two_parts
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import like, unit
from tiltmeter.types import Array, Floats, Groups, Ints

JUDGED = 0.25  # share of the rows that tell when a probe is at chance
BEYOND = 1.645  # standard errors above the share of the largest group: one-sided 5%


class Inlp(LabelMap):
    """INLP (Ravfogel et al. 2020): projects off what linear probes read, one after the other.

    Directions are learned on three quarters of the rows. It stops as soon as a probe is at chance
    on the other quarter (its accuracy is not above the share of the largest group, one-sided 5%),
    or after `rounds`.
    """

    def __init__(self, rounds: int = 30, towers: str = "images", seed: int = 0) -> None:
        self.rounds = rounds
        self.towers = towers
        self.seed = seed

    def learn(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        del texts
        at_least_0("rounds", self.rounds)
        parts = two_parts(labels.codes, JUDGED, self.seed)
        self.basis_, accuracy = nullspace(x, labels.codes, parts, rounds=self.rounds)
        self.chance_ = float(np.bincount(labels.codes[parts[1]]).max() / max(len(parts[1]), 1))
        self.accuracy_: Floats = np.array(accuracy)  # before the first round, after it, ...

    def project(self, vectors: Array) -> Array:
        """Vectors without the directions, before their length is made one again."""
        self.check_fitted()
        dtype = str(vectors.dtype).rpartition(".")[2]
        if vectors.shape[1] != len(self.basis_):
            raise InputError(
                f"fitted on {len(self.basis_)} dimensions, asked to map {vectors.shape[1]}"
            )
        basis = like(vectors, self.basis_, dtype)
        return vectors - vectors @ basis @ basis.T

    def map(self, vectors: Array) -> Array:
        self.check_fitted()
        return unit(self.project(vectors)) if self.basis_.shape[1] else vectors


class Spd(Inlp):
    """SPD (Zhao et al. 2026): INLP's first directions, with the mean of doubtful samples on them.

    `rank` is the number of directions, 5 in the paper. Doubtful is a sample whose largest
    probability, by the first probe and on rows that it did not learn from, is below `confidence`.
    """

    def __init__(
        self, rank: int = 5, confidence: float = 0.7, towers: str = "images", seed: int = 0
    ) -> None:
        self.rank = rank
        self.confidence = confidence
        self.towers = towers
        self.seed = seed

    def learn(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        del texts
        at_least_0("rank", self.rank)
        learn, judge = two_parts(labels.codes, JUDGED, self.seed)
        judge = judge if len(judge) else learn
        self.basis_, _ = nullspace(x, labels.codes, (learn, judge[:0]), most=self.rank)
        middle, scale = x[learn].mean(axis=0), scale_of(x[learn])
        probe = linear_probe((x[learn] - middle) / scale, labels.codes[learn])
        sure = probe.predict_proba((x[judge] - middle) / scale).max(axis=1)
        rows, self.bar_ = doubtful(sure, self.confidence)
        self.doubtful_ = len(rows)
        self.put_back_: Floats = self.basis_ @ (self.basis_.T @ x[judge[rows]].mean(axis=0))

    def project(self, vectors: Array) -> Array:
        off = super().project(vectors)
        return off + like(vectors, self.put_back_, str(vectors.dtype).rpartition(".")[2])


def nullspace(
    x: Floats,
    labels: Ints,
    parts: tuple[Ints, Ints],
    *,
    rounds: int | None = None,
    most: int | None = None,
) -> tuple[Floats, list[float]]:
    """An orthonormal basis (dimensions x rank) of what probes read, and their accuracies.

    Goes on for `rounds`, or until there are `most` directions. With rows to judge by, it stops at
    chance, and the last accuracy is that of a probe on what the basis leaves. One dimension is
    always left.
    """
    learn, judge = parts
    x = x - x[learn].mean(axis=0)
    x = x / scale_of(x[learn])
    d = x.shape[1]
    basis: Floats = np.empty((d, 0))
    accuracy: list[float] = []
    chance = np.bincount(labels[judge]).max() / len(judge) if len(judge) else 0.0
    bar = chance + BEYOND * np.sqrt(chance * (1 - chance) / max(len(judge), 1))
    limit = d - 1 if most is None else min(most, d - 1)
    done = 0
    while basis.shape[1] < limit and (rounds is None or done < rounds):
        rest = x - x @ basis @ basis.T
        probe = linear_probe(rest[learn], labels[learn])
        if len(judge):
            accuracy.append(float((probe.predict(rest[judge]) == labels[judge]).mean()))
            if accuracy[-1] <= bar:
                return basis, accuracy
        read = np.asarray(probe.coef_).T
        read = read - basis @ (basis.T @ read)
        left, sizes, _ = np.linalg.svd(read, full_matrices=False)
        left = left[:, sizes > 1e-8 * max(sizes.max(), 1e-300)][:, : limit - basis.shape[1]]
        if sizes.max() < 1e-12:
            break
        # once more, since rounding leaves a trace of the directions before
        basis = np.linalg.qr(np.hstack([basis, left]))[0]
        done += 1
    if len(judge):
        rest = x - x @ basis @ basis.T
        probe = linear_probe(rest[learn], labels[learn])
        accuracy.append(float((probe.predict(rest[judge]) == labels[judge]).mean()))
    return basis, accuracy


def at_least_0(name: str, given: int) -> None:
    """Refuses a number below 0."""
    if given < 0:
        raise InputError(f"{name} must be 0 or more; got {given}")
