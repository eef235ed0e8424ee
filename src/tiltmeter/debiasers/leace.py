"""LEACE (Belrose et al. 2023): the least change after which no linear probe finds the attribute.

x - W+ P W (x - mu), where W whitens the vectors and P projects on the columns of W Sigma_xz, z
being the labels as indicators. Of all affine maps after which vectors and labels are uncorrelated
it moves the vectors least, in mean square.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from tiltmeter.debiasers.debiaser import TOWERS, GroupTexts, LabelMap, check_choice, like_input
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import unit
from tiltmeter.metrics.label_moments import LabelMoments
from tiltmeter.types import Array, Floats, Groups


class Erasure(LabelMap):
    """The erasure itself, without hyperparameters of its own."""

    shrink: float
    tolerance = 1e-10
    mean_: Floats
    proj_right_: Floats
    proj_left_: Floats

    def _fit(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        self._fit_moments(LabelMoments.of(x, labels.codes, len(labels.names)))

    def _fit_moments(self, moments: LabelMoments) -> None:
        """Learn from moments alone, of any number of images."""
        if not 0 <= self.shrink <= 1:
            raise InputError(f"shrink must be from 0 to 1; got {self.shrink:g}")
        self.mean_ = moments.mean
        covariance = moments.scatter / moments.n
        # the covariance of vectors and indicators: dimensions x groups
        crossed = ((moments.means - self.mean_) * (moments.counts / moments.n)[:, None]).T
        values, basis = np.linalg.eigh(covariance)
        nonzero = values > self.tolerance * values.max()
        basis, values = basis[:, nonzero], values[nonzero]
        values = (1 - self.shrink) * values + self.shrink * values.mean()
        whiten = (basis / np.sqrt(values)) @ basis.T  # W
        colour = (basis * np.sqrt(values)) @ basis.T  # W+
        left, sizes, _ = np.linalg.svd(whiten @ crossed, full_matrices=False)
        # the indicators sum to one, so one direction is always empty; rounding leaves a trace of it
        left = left[:, sizes > self.tolerance**0.5 * max(sizes.max(), self.tolerance)]
        self.proj_right_ = left.T @ whiten  # rank x dimensions
        self.proj_left_ = colour @ left  # dimensions x rank

    def erase(self, X: Array) -> Array:
        """Return vectors after the erasure, before they are normalised again."""
        self.check_fitted()
        mean, left, right = like_input(X, self.mean_, self.proj_left_, self.proj_right_)
        return X - (X - mean) @ right.T @ left.T


@dataclass(eq=False)
class Leace(Erasure):
    """LEACE (Belrose et al. 2023): erases what any linear probe could read of the attribute.

    Erasing from images alone gives every score the same mean in all groups, so texts are unchanged
    by default. Fitted vectors are unit vectors; the output is normalised again, after which the
    erasure is no longer exact.

    Whitening trusts directions in which the fitted images hardly differ. Other images may differ
    in them a lot, and are then moved far.

    Parameters
    ----------
    towers
        Embeddings to change: `images`, `texts` or `both`.
    shrink
        From 0 to 1: how far variances are evened out before whitening. At 1 all are equal, which
        projects off the groups' differences. Erases as exactly, moves the fitted vectors a little
        more, and others far less.
    tolerance
        Variances below this share of the largest count as zero.

    Attributes
    ----------
    mean_ : array of shape (n_dimensions,)
        Mean of the fitted vectors.
    proj_right_ : array of shape (rank, n_dimensions)
        Reads the attribute from centred vectors.
    proj_left_ : array of shape (n_dimensions, rank)
        What is subtracted for each unit of that.

    Examples
    --------
    >>> x = np.array([[1.0, 0.2], [0.9, -0.3], [-0.1, 1.0], [0.2, 0.8]])
    >>> erased = Leace().fit(x, np.array([0, 0, 1, 1])).erase(x)
    >>> np.allclose(erased[:2].mean(axis=0), erased[2:].mean(axis=0))
    True
    """

    towers: str = "images"
    shrink: float = 0.0
    tolerance: float = 1e-10

    def fit_moments(self, moments: LabelMoments) -> Self:
        """Learn from sizes, means and scatter of the groups, of any number of images."""
        check_choice("towers", self.towers, TOWERS)
        self.n_features_in_ = moments.means.shape[1]
        self._fit_moments(moments)
        return self

    def _transform(self, X: Array) -> Array:
        return unit(self.erase(X))
