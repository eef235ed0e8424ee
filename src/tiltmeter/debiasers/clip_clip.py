"""CLIP-clip (Wang, Liu and Wang 2021): dimensions that tell the attribute are cut off.

Dimensions are ranked by their mutual information with the attribute; the `keep` lowest stay, in
both towers. Mutual information of a number and a label is estimated as scikit-learn does, which the
authors used: by nearest neighbours (Ross 2014).
"""

from __future__ import annotations

import numpy as np
from scipy.special import digamma

from tiltmeter.debiasers.debiaser import GroupTexts, LabelMap
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import like, unit
from tiltmeter.types import Array, Floats, Groups, Ints


class ClipClip(LabelMap):
    """CLIP-clip (Wang et al. 2021): keeps the dimensions that tell least of the attribute.

    `keep` is how many stay: a number of dimensions, or a share of them below 1. The paper keeps
    490, 400 or 256 of 512.
    """

    def __init__(self, keep: float = 0.78125, neighbours: int = 3) -> None:
        self.keep = keep  # by default 400 of 512
        self.neighbours = neighbours

    def learn(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        del texts
        d = x.shape[1]
        keep = round(self.keep * d) if self.keep < 1 else int(self.keep)
        if not 1 <= keep <= d:
            raise InputError(
                f"keep = {self.keep:g} leaves {keep} of {d} dimensions: give a number from 1 to "
                f"{d}, or a share below 1"
            )
        self.information_: Floats = mutual_information(x, labels.codes, neighbours=self.neighbours)
        lowest = np.argsort(self.information_, kind="stable")[:keep]
        self.kept_: Ints = np.sort(lowest)

    def map(self, vectors: Array) -> Array:
        self.check_fitted()
        d = len(self.information_)
        if vectors.shape[1] != d:
            raise InputError(f"fitted on {d} dimensions, asked to map {vectors.shape[1]}")
        if len(self.kept_) == d:
            return vectors
        return unit(vectors[:, like(vectors, self.kept_, "int64")])


def mutual_information(x: Floats, labels: Ints, *, neighbours: int = 3) -> Floats:
    """Mutual information in nats of each column of `x` with the labels, by Ross (2014).

    psi(n) + mean psi(k) - mean psi(n_label) - mean psi(m): m counts the points as near to a point
    as the k-th of its own label. Never below 0. A label that occurs once says nothing and is left
    out.
    """
    counts = np.bincount(labels)
    some = counts[labels] > 1
    x, labels = x[some], labels[some]
    if not len(x):
        raise InputError("every image is the only one of its group: there is nothing to rank by")
    n, d = x.shape
    near = np.minimum(neighbours, counts - 1)[labels]
    known = digamma(n) + digamma(near).mean() - digamma(counts[labels]).mean()
    found = np.empty(d)
    for column in range(d):
        values = x[:, column]
        radius = np.empty(n)
        for label in np.flatnonzero(counts > 1):
            rows = np.flatnonzero(labels == label)
            radius[rows] = _kth_distance(values[rows], min(neighbours, len(rows) - 1))
        radius = np.nextafter(radius, 0)  # the k-th itself is not nearer than itself
        inside = _inside(np.sort(values), values, radius)
        found[column] = known - digamma(inside).mean()
    return np.maximum(found, 0)


def _inside(line: Floats, values: Floats, radius: Floats) -> Ints:
    """How many of a sorted line lie within the radius of each value.

    Sums of a value and its radius are rounded, so edges are put right by the distances themselves.
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
    """The distance of each number to the k-th nearest of the others."""
    order = np.argsort(values, kind="stable")
    line = values[order]
    n = len(line)
    best = np.full(n, np.inf)
    for below in range(k + 1):  # so many of the k lie below
        start = np.arange(n) - below
        fits = (start >= 0) & (start + k < n)
        at = start[fits]
        here = line[fits]
        best[fits] = np.minimum(best[fits], np.maximum(here - line[at], line[at + k] - here))
    found = np.empty(n)
    found[order] = best
    return found
