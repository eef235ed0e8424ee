"""How well a model sees a group in images: the ceiling of what it can repeat of its captions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax
from scipy.stats import t as student

from tiltmeter.metrics.group_lift import lift_standard_error
from tiltmeter.metrics.summary import Moments
from tiltmeter.types import Floats, Ints

_STEEPEST = 100.0  # slope of standardised evidence; groups that are told apart surely have no end


@dataclass(frozen=True, eq=False)
class Visibility:
    """One entry per group."""

    value: Floats
    error: Floats  # standard error through the sample of images
    worth: float  # nats of evidence for a group that one nat of the model's evidence is worth


def visibility(evidence: Floats, codes: Ints) -> Visibility:
    """Mean probability of a group with its own images, minus that with the others' images.

    The probability is what the model's evidence is worth: softmax(intercept of the group + worth x
    evidence), fitted by logistic regression with equal weight for each group. For two groups the
    value is Tjur's coefficient of discrimination (2009): 0 where the evidence says nothing, 1 where
    it is always right.

    Parameters
    ----------
    evidence
        Images x groups: the model's score of a text that names the group.
    codes
        The group of each image. Every group has images.

    Examples
    --------
    >>> codes = np.repeat([0, 1], 500)
    >>> noise = np.random.default_rng(0).normal(size=1000)
    >>> sees = np.stack([codes == 0, codes == 1], 1) * 9.0
    >>> visibility(sees, codes).value.round(2)
    array([1., 1.])
    >>> blind = np.stack([noise, -noise], 1)
    >>> visibility(blind, codes).value.round(2)
    array([0., 0.])
    """
    evidence, codes = np.asarray(evidence, float), np.asarray(codes)
    k = evidence.shape[1]
    own = np.eye(k)[codes]
    weight = (own / (k * own.sum(axis=0))).sum(axis=1)
    # what all groups gain with an image is no evidence
    z = evidence - evidence.mean(axis=1, keepdims=True)
    scale = float(z.std()) or 1.0
    z = z / scale

    def loss(free: Floats) -> tuple[float, Floats]:
        log_q = log_softmax(free[0] * z + free[1:], axis=1)
        wrong = weight[:, None] * (np.exp(log_q) - own)
        value = -float((weight[:, None] * own * log_q).sum())
        return value, np.array([(wrong * z).sum(), *wrong.sum(axis=0)])

    bounds = [(0.0, _STEEPEST), *[(None, None)] * k]
    fit = minimize(loss, np.zeros(k + 1), jac=True, method="L-BFGS-B", bounds=bounds).x
    q = np.exp(log_softmax(fit[0] * z + fit[1:], axis=1))
    moments = Moments.of(q.T, codes)  # probability of a group x true group
    mean = np.asarray(moments.mean)
    others = (mean.sum(axis=1) - np.diag(mean)) / (k - 1)
    return Visibility(
        np.diag(mean) - others,
        np.diag(np.asarray(lift_standard_error(moments))),
        float(fit[0] / scale),
    )


def evidence_worth(
    evidence: Floats, codes: Ints, folds: int = 10
) -> tuple[float, float, float] | None:
    """What one nat of the model's evidence is worth for the groups, with its 95% interval.

    The interval is from the jackknife: the regression is fitted again without each fold of the
    images. None where the evidence tells groups apart surely, so that it has no end.

    Examples
    --------
    >>> codes = np.arange(4000) % 2
    >>> seen = (2 * codes - 1) + np.random.default_rng(0).normal(size=4000)
    >>> value, low, high = evidence_worth(np.stack([0 * seen, 4 * seen], 1), codes)
    >>> round(value, 1), low < 0.5 < high
    (0.5, True)
    """
    evidence, codes = np.asarray(evidence, float), np.asarray(codes)
    whole = visibility(evidence, codes)
    if whole.value.min() > 0.999:
        return None
    fold = np.arange(len(codes)) // len(np.unique(codes)) % folds
    left = np.array(
        [visibility(evidence[fold != out], codes[fold != out]).worth for out in range(folds)]
    )
    error = float(np.sqrt((folds - 1) / folds * np.square(left - np.mean(left)).sum()))
    half = float(student.ppf(0.975, folds - 1)) * error
    return whole.worth, whole.worth - half, whole.worth + half
