"""LEACE (Belrose et al. 2023): the least change after which no linear probe finds the attribute.

x - W+ P W (x - mu), where W whitens the vectors and P projects on the columns of W Sigma_xz, z
being the labels as indicators. Of all affine maps after which vectors and labels are uncorrelated
it moves the vectors least, in mean square.
"""

from __future__ import annotations

import numpy as np

from tiltmeter.debiasers.debiaser import GroupTexts, LabelMap
from tiltmeter.debiasers.subspace import matched
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import like, unit
from tiltmeter.types import Array, Floats, Groups


class Leace(LabelMap):
    """LEACE (Belrose et al. 2023): erases what any linear probe could read of the attribute.

    Images alone are enough for every score to have the same mean in all groups: by default texts
    stay as they are. Fitted vectors are unit; what comes out is made unit again, after which the
    erasure is no longer exact.

    Whitening trusts directions in which the fitted images hardly differ; other images may differ
    in them much, and are then torn about. `shrink` above 0 evens the spreads out before whitening
    (1: all alike, which projects off the groups' differences): it erases as exactly, moves the
    fitted vectors a little more, and others far less.
    """

    def __init__(
        self, towers: str = "images", shrink: float = 0.0, tolerance: float = 1e-10
    ) -> None:
        self.towers = towers
        self.shrink = shrink
        self.tolerance = tolerance  # of the largest: smaller variances count as none

    def learn(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        del texts
        if not 0 <= self.shrink <= 1:
            raise InputError(f"shrink lies from 0 to 1; got {self.shrink:g}")
        n = len(x)
        z = np.eye(len(labels.names))[labels.codes]
        self.mean_ = x.mean(axis=0)
        centred = x - self.mean_
        covariance = centred.T @ centred / n
        crossed = centred.T @ (z - z.mean(axis=0)) / n  # dimensions x groups
        values, basis = np.linalg.eigh(covariance)
        there = values > self.tolerance * values.max()
        basis, values = basis[:, there], values[there]
        values = (1 - self.shrink) * values + self.shrink * values.mean()
        whiten = (basis / np.sqrt(values)) @ basis.T  # W
        colour = (basis * np.sqrt(values)) @ basis.T  # W+
        left, sizes, _ = np.linalg.svd(whiten @ crossed, full_matrices=False)
        # the indicators sum to one, so one direction is always empty; rounding leaves a trace of it
        left = left[:, sizes > self.tolerance**0.5 * max(sizes.max(), self.tolerance)]
        self.read_: Floats = left.T @ whiten  # rank x dimensions
        self.write_: Floats = colour @ left  # dimensions x rank

    def erase(self, vectors: Array) -> Array:
        """Vectors after the erasure, before their length is made one again."""
        self.check_fitted()
        dtype = str(vectors.dtype).rpartition(".")[2]
        read = matched(self.read_, vectors)
        mean, write = (like(vectors, x, dtype) for x in (self.mean_, self.write_))
        return vectors - (vectors - mean) @ read.T @ write.T

    def map(self, vectors: Array) -> Array:
        return unit(self.erase(vectors))
