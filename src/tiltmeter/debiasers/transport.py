"""Transport: groups are carried onto each other, place by place, after LEACE.

LEACE makes the groups' means equal over all images. The top of a ranking is a small part of them,
and there the groups may still differ, one way in this part and the other way in that; nor are their
spreads equal. So the erased vectors are divided into clusters that hold every group, and in each
the groups are carried onto one normal distribution: for group g with mean m_g and covariance C_g

    m + A_g (y - m_g),   A_g = C_g^-1/2 (C_g^1/2 C C_g^1/2)^1/2 C_g^-1/2

where m is the mean of the means and C the Wasserstein barycentre of the covariances (Agueh and
Carlier 2011): of all ways to make means and covariances equal, the one that moves normal
distributions least. With one cluster and labels at hand this is the quadratic LEACE of EleutherAI.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tiltmeter.debiasers.debiaser import GroupTexts
from tiltmeter.debiasers.leace import Leace
from tiltmeter.debiasers.learners import learner, linear_probe, scale_of
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import like, namespace, unit
from tiltmeter.types import Array, Floats, Groups, Ints

#: A cluster holds so many rows of every group, and so much of its share among all rows.
FEWEST, SHARE = 30, 0.5
#: When the covariance of the barycentre has settled.
SETTLED, ROUNDS = 1e-9, 200


class Transport(Leace):
    """Carries the groups onto each other, cluster by cluster, after LEACE: tops become even too.

    `clusters` is how many there are at most: the largest number is taken at which every cluster
    holds every group, since a group without its counterparts cannot be carried to them. Images to
    be mapped need no labels: a linear probe, learned when fitting, weighs the groups' maps.
    `shrink` evens spreads out as it does for LEACE: at 1 only means are made equal.
    """

    towers = "images"
    tolerance = 1e-10

    def __init__(self, clusters: int = 16, shrink: float = 0.1, seed: int = 0) -> None:
        self.clusters = clusters
        self.shrink = shrink
        self.seed = seed

    def learn(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        if self.clusters < 1:
            raise InputError(f"clusters are 1 or more; got {self.clusters}")
        super().learn(x, labels, texts)
        there, codes = np.unique(labels.codes, return_inverse=True)
        shares = labels.shares[there]
        scale = scale_of(x)
        probe = linear_probe((x - self.mean_) / scale, codes)
        coef, bias = np.asarray(probe.coef_), np.asarray(probe.intercept_)
        if len(there) == 2:  # one row says how much likelier the second is
            coef, bias = np.vstack([0 * coef, coef]), np.append(0.0, bias)
        self.tell_: Floats = coef / scale  # groups x dimensions
        self.tell_bias_: Floats = bias - self.tell_ @ self.mean_
        y = self.erase(x)
        self.centres_, cluster = self._divided(y, codes, shares)
        cells = [[y[(cluster == at) & (codes == g)] for g in range(len(there))]
                 for at in range(len(self.centres_))]  # fmt: skip
        self.from_: Floats = np.array([[cell.mean(axis=0) for cell in row] for row in cells])
        self.to_: Floats = np.einsum("g,kgd->kd", shares, self.from_)
        spreads = [[_covariance(cell) for cell in row] for row in cells]
        level = np.trace(np.mean(spreads, axis=(0, 1))) / x.shape[1] * np.eye(x.shape[1])
        self.carry_: Floats = np.stack(
            [
                carried([(1 - self.shrink) * one + self.shrink * level for one in row], shares)
                for row in spreads
            ]
        )  # clusters x groups x dimensions x dimensions

    def _divided(self, y: Floats, codes: Ints, shares: Floats) -> tuple[Floats, Ints]:
        """Centres and the cluster of each row: as many as hold every group."""
        for count in range(self.clusters, 1, -1):
            if len(y) < count * FEWEST:
                continue
            found = learner("cluster", "KMeans", n_clusters=count, n_init=4,
                            random_state=self.seed).fit(y)  # fmt: skip
            held = np.zeros((count, len(shares)))
            np.add.at(held, (found.labels_, codes), 1)
            enough = held / held.sum(axis=1, keepdims=True) >= SHARE * shares
            if held.min() >= FEWEST and enough.all():
                return np.asarray(found.cluster_centers_), np.asarray(found.labels_)
        return y.mean(axis=0, keepdims=True), np.zeros(len(y), int)

    def _weights(self, vectors: Array) -> Array:
        """How much the map of each group counts for each vector: rows x groups.

        A means to the correction: it says nothing of a person, and nothing gives it out.
        """
        kind = str(vectors.dtype).rpartition(".")[2]
        xp = namespace(vectors)
        found = vectors @ like(vectors, self.tell_, kind).T + like(vectors, self.tell_bias_, kind)
        found = xp.exp(found - xp.amax(found, 1)[:, None])
        return found / found.sum(1)[:, None]

    def carry(self, vectors: Array, weights: Array) -> Array:
        """Erased vectors where the groups meet, carried by the groups' maps as weighted."""
        kind = str(vectors.dtype).rpartition(".")[2]
        centres = like(vectors, self.centres_, kind)
        near = (vectors @ centres.T - (centres * centres).sum(1) / 2).argmax(1)
        found = like(vectors, np.zeros(tuple(vectors.shape)), kind)
        for at in range(len(centres)):
            rows = near == at
            some, weight = vectors[rows], weights[rows]
            moved = sum(
                weight[:, g : g + 1] * ((some - like(some, m, kind)) @ like(some, a, kind))
                for g, (m, a) in enumerate(zip(self.from_[at], self.carry_[at], strict=True))
            )
            found[rows] = moved + like(some, self.to_[at], kind)
        return found

    def map(self, vectors: Array) -> Array:
        return unit(self.carry(self.erase(vectors), self._weights(vectors)))


def carried(covariances: Sequence[Floats], shares: Floats) -> Floats:
    """Maps that carry centred normals onto their barycentre, one after the other (symmetric).

    >>> wide, narrow = np.diag([9.0, 1.0]), np.diag([1.0, 1.0])
    >>> carried([wide, narrow], np.array([0.5, 0.5]))[0].round(6)  # spreads of 3 and 1 become 2
    array([[0.666667, 0.      ],
           [0.      , 1.      ]])
    """
    middle = np.einsum("g,gij->ij", shares, np.asarray(covariances))
    for _ in range(ROUNDS):
        # the fixed point of Alvarez-Esteban et al. 2016
        root, inverse = roots(middle)
        mean = sum(s * roots(root @ one @ root)[0]
                   for s, one in zip(shares, covariances, strict=True))  # fmt: skip
        before, middle = middle, inverse @ mean @ mean @ inverse
        if np.abs(middle - before).max() <= SETTLED * np.abs(middle).max():
            break
    found = []
    for one in covariances:
        root, inverse = roots(one)
        found.append(inverse @ roots(root @ middle @ root)[0] @ inverse)
    return np.stack(found)


def roots(matrix: Floats) -> tuple[Floats, Floats]:
    """The square root of a covariance, and its inverse where there is any spread."""
    values, basis = np.linalg.eigh((matrix + matrix.T) / 2)
    there = values > 1e-12 * max(values.max(), 1e-300)
    root = np.sqrt(np.where(there, values, 0.0))
    inverse = np.where(there, 1 / np.where(there, root, 1.0), 0.0)
    return (basis * root) @ basis.T, (basis * inverse) @ basis.T


def _covariance(rows: Floats) -> Floats:
    centred = rows - rows.mean(axis=0)
    return np.asarray(centred.T @ centred / len(rows))
