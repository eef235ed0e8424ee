"""The scale of a dual encoder's cosines, fitted on pairs of an image and its caption."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import softmax

from tiltmeter.errors import InputError
from tiltmeter.types import Floats

#: A larger scale is none: the pairs are told apart surely at any.
LARGEST = 1e4


@dataclass(frozen=True)
class FittedScale:
    """A scale, with its 95% interval over pairs."""

    value: float
    low: float
    high: float


def fit_scale(cosines: Floats) -> FittedScale:
    """Fit the scale that makes cosines log odds: one-parameter InfoNCE, in both directions.

    The loss is convex in the scale; its derivative is the mean cosine that the model expects minus
    that of the pairs.

    Parameters
    ----------
    cosines
        Captions x images; caption i describes image i.

    Returns
    -------
    FittedScale
        The interval is from the sandwich estimator, on the log scale.

    Raises
    ------
    InputError
        Fewer than 10 pairs, or pairs that have no scale: those that match score no higher than
        others, or always highest.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> images, noise = rng.normal(size=(2, 300, 16)) / 4
    >>> 7 < fit_scale((images + noise) @ images.T).value < 11
    True
    """
    cosines = np.asarray(cosines, float)
    n = len(cosines)
    if cosines.shape != (n, n) or n < 10:
        raise InputError(
            f"a scale is fitted on at least 10 pairs of an image and its caption; got cosines of "
            f"shape {cosines.shape}"
        )

    def moments(scale: float) -> tuple[Floats, float]:
        """Derivative of the loss for each pair, and the mean second derivative."""
        derivative, curvature = np.zeros(n), 0.0
        for table in (cosines, cosines.T):
            p = softmax(scale * table, axis=1)
            mean = (p * table).sum(axis=1)
            derivative += (mean - np.diag(table)) / 2
            curvature += float(((p * table**2).sum(axis=1) - mean**2).mean()) / 2
        return derivative, curvature

    def slope(scale: float) -> float:
        return float(moments(scale)[0].mean())

    if slope(0.0) >= -1e-12:  # equal cosines differ by rounding
        raise InputError(
            "no scale can be fitted: images score no higher with their own captions than with "
            "others; check that captions and images belong together"
        )
    top = 1.0
    while slope(top) <= 0:
        top *= 2
        if top > LARGEST:
            raise InputError(
                f"no scale can be fitted on these {n} pairs: images always score highest with "
                "their own captions; use more pairs"
            )
    value = float(brentq(slope, 0.0, top, xtol=1e-9 * top))
    derivative, curvature = moments(value)
    error = float(derivative.std(ddof=1)) / math.sqrt(n) / curvature / value
    return FittedScale(value, value * math.exp(-1.96 * error), value * math.exp(1.96 * error))


@dataclass(frozen=True, eq=False)
class Reliability:
    """Captions in bins of the probability that the model gives to its best image."""

    confidence: Floats  # mean of that probability in each bin
    hits: Floats  # captions whose best image is theirs
    count: Floats


def reliability(cosines: Floats, scale: float, bins: int = 10) -> Reliability:
    """How often a caption finds its image, where the model is this sure.

    Parameters
    ----------
    cosines
        Captions x images; caption i describes image i.
    scale
        Makes them logits.
    bins
        Bins with the same number of captions.

    Examples
    --------
    >>> found = reliability(np.eye(4), 9.0, bins=2)
    >>> found.confidence.round(2), found.hits
    (array([1., 1.]), array([2., 2.]))
    """
    p = softmax(scale * np.asarray(cosines, float), axis=1)
    best = p.argmax(axis=1)
    sure, hit = p.max(axis=1), best == np.arange(len(p))
    parts = np.array_split(np.argsort(sure, kind="stable"), min(bins, len(p)))
    return Reliability(
        np.array([sure[part].mean() for part in parts]),
        np.array([float(hit[part].sum()) for part in parts]),
        np.array([float(len(part)) for part in parts]),
    )
