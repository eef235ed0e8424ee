"""Sizes, means and scatter of embeddings by group, for linear corrections; mergeable."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiltmeter.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class LabelMoments:
    """Sizes and means of groups, and the scatter of all embeddings around their mean.

    Examples
    --------
    >>> x = np.array([[1.0, 0.0], [3.0, 0.0], [2.0, 2.0]])
    >>> whole = LabelMoments.of(x, np.array([0, 0, 1]), 2)
    >>> parts = [LabelMoments.of(x[:1], np.array([0]), 2), LabelMoments.of(x[1:], [0, 1], 2)]
    >>> both = parts[0].merge(parts[1])
    >>> np.allclose(both.scatter, whole.scatter), both.means.tolist()
    (True, [[2.0, 0.0], [2.0, 2.0]])
    """

    counts: Ints  # groups
    means: Floats  # groups x dimensions; 0 for a group without images
    scatter: Floats  # dimensions x dimensions: sum of (x - mean)(x - mean)'

    @classmethod
    def of(cls, x: Floats, codes: Ints, groups: int) -> LabelMoments:
        """The moments of one block, in double precision."""
        x, codes = np.asarray(x, np.float64), np.asarray(codes)
        counts = np.bincount(codes, minlength=groups)
        sums = np.zeros((groups, x.shape[1]))
        np.add.at(sums, codes, x)
        centred = x - x.mean(axis=0)
        return cls(counts, sums / np.maximum(counts, 1)[:, None], centred.T @ centred)

    def merge(self, other: LabelMoments) -> LabelMoments:
        """The moments of two blocks together (Chan, Golub and LeVeque 1983)."""
        counts = self.counts + other.counts
        sums = self.counts[:, None] * self.means + other.counts[:, None] * other.means
        n, m = int(self.counts.sum()), int(other.counts.sum())
        gap = other.mean - self.mean
        scatter = self.scatter + other.scatter + np.outer(gap, gap) * (n * m / (n + m))
        return LabelMoments(counts, sums / np.maximum(counts, 1)[:, None], scatter)

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    @property
    def mean(self) -> Floats:
        """The mean of all embeddings."""
        return np.asarray(self.counts @ self.means / max(self.n, 1))
