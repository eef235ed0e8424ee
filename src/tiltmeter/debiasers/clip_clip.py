"""CLIP-clip (Wang, Liu and Wang 2021): dimensions that reveal the attribute are removed.

Dimensions are ranked by their mutual information with the attribute; the `keep` lowest are kept, in
both towers. Mutual information of a number and a label is estimated as scikit-learn does, which the
authors used: by nearest neighbours (Ross 2014).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import digamma

from tiltmeter.debiasers.debiaser import GroupTexts, LabelMap
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import like, unit
from tiltmeter.types import Array, Floats, Groups, Ints


@dataclass(eq=False)
class ClipClip(LabelMap):
    """CLIP-clip (Wang et al. 2021): keeps the dimensions that reveal least of the attribute.

    Parameters
    ----------
    keep
        Dimensions to keep: a number, or a share below 1. The paper keeps 490, 400 (the default
        share) or 256 of 512.
    neighbours
        Neighbours of the estimator of mutual information.

    Attributes
    ----------
    information_ : array of shape (n_dimensions,)
        Mutual information of each dimension with the attribute, in nats.
    kept_ : array of int
        The kept dimensions, sorted.
    """

    keep: float = 0.78125
    neighbours: int = 3

    def _fit(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        d = x.shape[1]
        keep = round(self.keep * d) if self.keep < 1 else int(self.keep)
        if not 1 <= keep <= d:
            raise InputError(
                f"keep = {self.keep:g} leaves {keep} of {d} dimensions: use a number from 1 to "
                f"{d}, or a share below 1"
            )
        self.information_: Floats = mutual_information(x, labels.codes, neighbours=self.neighbours)
        self.kept_: Ints = np.sort(np.argsort(self.information_, kind="stable")[:keep])

    def _transform(self, X: Array) -> Array:
        if len(self.kept_) == self.n_features_in_:
            return X
        return unit(X[:, like(X, self.kept_, "int64")])


def mutual_information(x: Floats, labels: Ints, *, neighbours: int = 3) -> Floats:
    """Return the mutual information in nats of each column with the labels, by Ross (2014).

    psi(n) + mean psi(k) - mean psi(n_label) - mean psi(m): m counts the points as near to a point
    as the k-th of its own label. Never below 0. A label that occurs once is left out.

    Parameters
    ----------
    x : array of shape (n, n_columns)
        Numbers.
    labels : array of shape (n,)
        Group codes.
    neighbours
        The k of the formula.
    """
    counts = np.bincount(labels)
    usable = counts[labels] > 1
    x, labels = x[usable], labels[usable]
    if not len(x):
        raise InputError("every image is the only one of its group: dimensions cannot be ranked")
    n, d = x.shape
    near = np.minimum(neighbours, counts - 1)[labels]
    known = digamma(n) + digamma(near).mean() - digamma(counts[labels]).mean()
    information = np.empty(d)
    for column in range(d):
        values = x[:, column]
        radius = np.empty(n)
        for label in np.flatnonzero(counts > 1):
            rows = np.flatnonzero(labels == label)
            radius[rows] = _kth_distance(values[rows], min(neighbours, len(rows) - 1))
        radius = np.nextafter(radius, 0)  # the k-th itself is not nearer than itself
        inside = _inside(np.sort(values), values, radius)
        information[column] = known - digamma(inside).mean()
    return np.maximum(information, 0)


def _inside(line: Floats, values: Floats, radius: Floats) -> Ints:
    """Count the points of a sorted line within the radius of each value.

    Sums of a value and its radius are rounded, so edges are corrected by the distances themselves.
    """
    last = len(line) - 1
    low = np.searchsorted(line, values - radius, side="left")
    high = np.searchsorted(line, values + radius, side="right") - 1  # the last one inside
    while (out := values - line[np.minimum(low, last)] > radius).any():
        low = low + out
    while (more := (low > 0) & (values - line[low - 1] <= radius)).any():
        low = low - more
    while (out := line[np.maximum(high, 0)] - values > radius).any():
        high = high - out
    while (more := (high < last) & (line[np.minimum(high + 1, last)] - values <= radius)).any():
        high = high + more
    return np.asarray(high - low + 1)


def _kth_distance(values: Floats, k: int) -> Floats:
    """Return the distance of each number to the k-th nearest of the others."""
    order = np.argsort(values, kind="stable")
    line = values[order]
    n = len(line)
    best = np.full(n, np.inf)
    for below in range(k + 1):  # so many of the k are below
        start = np.arange(n) - below
        fits = (start >= 0) & (start + k < n)
        at = start[fits]
        here = line[fits]
        best[fits] = np.minimum(best[fits], np.maximum(here - line[at], line[at + k] - here))
    distance = np.empty(n)
    distance[order] = best
    return distance
