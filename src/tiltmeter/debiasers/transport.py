"""Transport: groups are mapped onto each other, cluster by cluster, after LEACE.

LEACE makes the groups' means equal over all images. The top of a ranking is a small part of them,
and there the groups may still differ, one way in this part and the other way in that; nor are their
covariances equal. So the erased vectors are divided into clusters that contain every group, and in
each the groups are mapped onto one normal distribution: for group g with mean m_g and covariance
C_g

    m + A_g (y - m_g),   A_g = C_g^-1/2 (C_g^1/2 C C_g^1/2)^1/2 C_g^-1/2

where m is the mean of the means and C the Wasserstein barycentre of the covariances (Agueh and
Carlier 2011): of all ways to make means and covariances equal, the one that moves normal
distributions least. With one cluster and known labels this is the quadratic LEACE of EleutherAI.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tiltmeter.debiasers.debiaser import GroupTexts, check_at_least, like_input
from tiltmeter.debiasers.leace import Erasure
from tiltmeter.debiasers.learners import learner, linear_probe, scale_of
from tiltmeter.metrics.arrays import namespace, unit
from tiltmeter.types import Array, Floats, Groups, Ints

#: A cluster contains so many rows of every group, and so much of its share among all rows.
FEWEST, SHARE = 30, 0.5
#: When the covariance of the barycentre has converged, and the most iterations.
CONVERGED, ROUNDS = 1e-9, 200


@dataclass(eq=False)
class Transport(Erasure):
    """Maps the groups onto each other, cluster by cluster, after LEACE: evens out top ranks too.

    Images to be mapped need no labels: a linear probe, learned when fitting, weights the groups'
    maps.

    Parameters
    ----------
    clusters
        Maximum number of clusters. The largest number is used at which every cluster contains every
        group, since a group without counterparts cannot be mapped onto them.
    shrink
        From 0 to 1: how far variances are evened out, as in LEACE. At 1 only means become equal.
    seed
        Seed of the clustering.

    Attributes
    ----------
    mean_, proj_left_, proj_right_
        The erasure: see `Leace`.
    probe_coef_, probe_intercept_
        The probe that weights the groups' maps.
    centres_ : array of shape (n_clusters, n_dimensions)
        Cluster centres, in erased vectors.
    sources_ : array of shape (n_clusters, n_groups, n_dimensions)
        Mean of each group in each cluster.
    targets_ : array of shape (n_clusters, n_dimensions)
        The mean that all groups of a cluster are mapped to.
    maps_ : array of shape (n_clusters, n_groups, n_dimensions, n_dimensions)
        The maps A_g.
    """

    clusters: int = 16
    shrink: float = 0.1
    seed: int = 0
    towers = "images"

    def _fit(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        check_at_least(1, clusters=self.clusters)
        super()._fit(x, labels, texts)
        present, codes = np.unique(labels.codes, return_inverse=True)
        shares = labels.shares[present]
        scale = scale_of(x)
        probe = linear_probe((x - self.mean_) / scale, codes)
        coef, intercept = np.asarray(probe.coef_), np.asarray(probe.intercept_)
        if len(present) == 2:  # one row: how much more likely the second group is
            coef, intercept = np.vstack([0 * coef, coef]), np.append(0.0, intercept)
        self.probe_coef_: Floats = coef / scale  # groups x dimensions
        self.probe_intercept_: Floats = intercept - self.probe_coef_ @ self.mean_
        y = self.erase(x)
        self.centres_, cluster = self._cluster(y, codes, shares)
        cells = [[y[(cluster == at) & (codes == g)] for g in range(len(present))]
                 for at in range(len(self.centres_))]  # fmt: skip
        self.sources_: Floats = np.array([[cell.mean(axis=0) for cell in row] for row in cells])
        self.targets_: Floats = np.einsum("g,kgd->kd", shares, self.sources_)
        covariances = [[_covariance(cell) for cell in row] for row in cells]
        level = np.trace(np.mean(covariances, axis=(0, 1))) / x.shape[1] * np.eye(x.shape[1])
        self.maps_: Floats = np.stack(
            [
                barycentre_maps([(1 - self.shrink) * c + self.shrink * level for c in row], shares)
                for row in covariances
            ]
        )

    def _cluster(self, y: Floats, codes: Ints, shares: Floats) -> tuple[Floats, Ints]:
        """Centres and the cluster of each row: as many as contain every group."""
        for count in range(self.clusters, 1, -1):
            if len(y) < count * FEWEST:
                continue
            kmeans = learner("cluster", "KMeans", n_clusters=count, n_init=4,
                             random_state=self.seed).fit(y)  # fmt: skip
            sizes = np.zeros((count, len(shares)))
            np.add.at(sizes, (kmeans.labels_, codes), 1)
            enough = sizes / sizes.sum(axis=1, keepdims=True) >= SHARE * shares
            if sizes.min() >= FEWEST and enough.all():
                return np.asarray(kmeans.cluster_centers_), np.asarray(kmeans.labels_)
        return y.mean(axis=0, keepdims=True), np.zeros(len(y), int)

    def _group_weights(self, X: Array) -> Array:
        """The weight of each group's map for each vector: rows x groups.

        Internal to the correction: never reported as a property of a person.
        """
        xp = namespace(X)
        coef, intercept = like_input(X, self.probe_coef_, self.probe_intercept_)
        logits = X @ coef.T + intercept
        weights = xp.exp(logits - xp.amax(logits, 1)[:, None])
        return weights / weights.sum(1)[:, None]

    def carry(self, X: Array, weights: Array) -> Array:
        """Map erased vectors by the groups' maps of their cluster.

        Parameters
        ----------
        X : array of shape (n, n_dimensions)
            Erased vectors.
        weights : array of shape (n, n_groups)
            Weight of each group's map.
        """
        [centres] = like_input(X, self.centres_)
        nearest = (X @ centres.T - (centres * centres).sum(1) / 2).argmax(1)
        [mapped] = like_input(X, np.zeros(tuple(X.shape)))
        for at in range(len(centres)):
            rows = nearest == at
            x, weight = X[rows], weights[rows]
            sources, target, maps = like_input(
                X, self.sources_[at], self.targets_[at], self.maps_[at]
            )
            moved = sum(
                weight[:, g : g + 1] * ((x - sources[g]) @ maps[g]) for g in range(len(maps))
            )
            mapped[rows] = moved + target
        return mapped

    def _transform(self, X: Array) -> Array:
        return unit(self.carry(self.erase(X), self._group_weights(X)))


def barycentre_maps(covariances: Sequence[Floats], shares: Floats) -> Floats:
    """Return the symmetric maps of centred normal distributions onto their barycentre.

    Parameters
    ----------
    covariances
        One covariance per group.
    shares : array of shape (n_groups,)
        Weights of the groups.

    Examples
    --------
    >>> wide, narrow = np.diag([9.0, 1.0]), np.diag([1.0, 1.0])
    >>> maps = barycentre_maps([wide, narrow], np.array([0.5, 0.5]))
    >>> maps[0].round(6)  # deviations of 3 and 1 become 2
    array([[0.666667, 0.      ],
           [0.      , 1.      ]])
    """
    middle = np.einsum("g,gij->ij", shares, np.asarray(covariances))
    for _ in range(ROUNDS):
        # the fixed point of Alvarez-Esteban et al. 2016
        root, inverse = roots(middle)
        mean = sum(s * roots(root @ c @ root)[0]
                   for s, c in zip(shares, covariances, strict=True))  # fmt: skip
        before, middle = middle, inverse @ mean @ mean @ inverse
        if np.abs(middle - before).max() <= CONVERGED * np.abs(middle).max():
            break
    maps = []
    for covariance in covariances:
        root, inverse = roots(covariance)
        maps.append(inverse @ roots(root @ middle @ root)[0] @ inverse)
    return np.stack(maps)


def roots(matrix: Floats) -> tuple[Floats, Floats]:
    """Return the square root of a covariance, and its inverse where it is not singular."""
    values, basis = np.linalg.eigh((matrix + matrix.T) / 2)
    nonzero = values > 1e-12 * max(values.max(), 1e-300)
    root = np.sqrt(np.where(nonzero, values, 0.0))
    inverse = np.where(nonzero, 1 / np.where(nonzero, root, 1.0), 0.0)
    return (basis * root) @ basis.T, (basis * inverse) @ basis.T


def _covariance(rows: Floats) -> Floats:
    centred = rows - rows.mean(axis=0)
    return np.asarray(centred.T @ centred / len(rows))
