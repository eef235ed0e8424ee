"""Lift: how many times as high a model scores a word with one group as with the others.

Scores are on the model's own log scale: logit_scale x cosine + bias of dual encoders, logits of
matchers, log-probabilities of masked and generative heads. Differences of such scores are log
ratios, so lift has one unit, the nat, for every kind of model; exp(lift) is the ratio that a
person reads. What any word gains with a group, neutral words gain as well: their median is
subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.arrays import as_groups, kernels, like, matrix, namespace
from tiltmeter.metrics.summary import Moments
from tiltmeter.types import Array, Groups, Ints

ESTIMATORS = ("mean", "odds")
NAN = float("nan")


def lift(
    scores: Array, groups: Groups | Array, *, neutral: Array, estimator: str = "mean"
) -> Array:
    """Lift of each word with each group, in nats; ideal 0.

    lift[w, g] = raw[w, g] - median of raw[n, g] over neutral words n, where raw[w, g] is the
    group's score minus the mean of the other groups' scores, each group with equal weight. So it
    does not depend on how many images of each group there are.

    Parameters
    ----------
    scores
        Words x images, on the model's log scale. Average over templates first.
    groups
        The group of each image, as codes or `Groups`.
    neutral
        Neutral words x the same images: words of the same class in the same templates.
    estimator
        How a group's score is made of its images: their ``"mean"`` (a ratio of geometric means),
        or ``"odds"``, the log of the mean of exp(score), which follows the images that match best.

    Returns
    -------
    Array
        Words x groups. NaN for a group without images, and where only one group has any.

    Examples
    --------
    A word that scores 1 higher with group 0, where neutral words score .5 higher:

    >>> lift([[3.0, 3.0, 2.0, 2.0]], [0, 0, 1, 1], neutral=[[1.5, 1.5, 1.0, 1.0]])
    array([[ 0.5, -0.5]])
    """
    scores = matrix(scores, "scores", "words", "images")
    neutral = _same_images(scores, matrix(neutral, "neutral", "neutral words", "images"))
    groups = as_groups(groups, scores.shape[1])
    if estimator not in ESTIMATORS:
        raise UnknownNameError("estimator", estimator, ESTIMATORS)
    if estimator == "odds":
        words, reference = (LogMeanExp.of(x, groups).value for x in (scores, neutral))
    else:
        words, reference = (_means(Moments.of(x, groups)) for x in (scores, neutral))
    return lift_of_group_scores(words, reference)


def lift_of_group_scores(words: Array, neutral: Array) -> Array:
    """Lift from mean scores of groups: gaps of words minus the median gap of neutral words.

    These may come from summaries that were merged: `Moments.mean` or `LogMeanExp.value`.

    >>> lift_of_group_scores([[3.0, 2.0]], [[1.5, 1.0], [1.0, 1.0], [0.0, 0.5]])
    array([[ 1., -1.]])
    """
    words, neutral = like(words, words), like(neutral, neutral)
    xp = namespace(words)
    reference = gaps(neutral)
    # torch.median takes the lower of two middle values; quantile the mean of both, as NumPy does
    middle = xp.quantile(reference, like(reference, 0.5), 0)
    return gaps(words) - middle


def lift_standard_error(centred: Moments) -> Array:
    """Standard error of lift through the sampling of images, words x groups.

    It says nothing of how well the model learned its own associations.

    Parameters
    ----------
    centred
        Moments of scores from which each image's mean over neutral words was subtracted
        (`centred`): what an image gives to all words alike is no noise of lift.

    Examples
    --------
    >>> scores = [[1.0, 3.0, 0.0, 2.0]]
    >>> lift_standard_error(Moments.of(scores, [0, 0, 1, 1]))
    array([[1.41421356, 1.41421356]])
    """
    xp = namespace(centred.mean)
    n = centred.count
    some = xp.where(n > 1, n, NAN)
    variance = centred.m2 / (some - 1) / some
    others = (~xp.isnan(variance)).sum(-1)[..., None] - 1
    total = xp.nansum(variance, -1)[..., None]
    some = xp.where(others > 0, others * 1.0, NAN)
    return (variance + (total - variance) / some**2) ** 0.5


def centred(scores: Array, neutral: Array) -> Array:
    """Scores minus each image's mean over neutral words.

    >>> centred([[3.0, 2.0]], [[1.0, 0.0], [3.0, 0.0]])
    array([[1., 2.]])
    """
    scores = matrix(scores, "scores", "words", "images")
    neutral = _same_images(scores, matrix(neutral, "neutral", "neutral words", "images"))
    return scores - neutral.mean(0)


@dataclass(frozen=True, eq=False)
class LogMeanExp:
    """Log of the mean of exp(score), by query and group, without overflow; mergeable.

    Examples
    --------
    >>> whole = LogMeanExp.of([[0.0, 1.0, 2.0, 800.0]], [0, 0, 1, 1])
    >>> parts = [LogMeanExp.of([[0.0, 2.0]], [0, 1]), LogMeanExp.of([[1.0, 800.0]], [0, 1])]
    >>> bool((parts[0].merge(parts[1]).value == whole.value).all())
    True
    """

    count: Array  # groups
    peak: Array  # queries x groups: the largest score, -inf without items
    total: Array  # queries x groups: sum of exp(score - peak)

    @classmethod
    def of(cls, scores: Array, groups: Groups | Array) -> LogMeanExp:
        """Summarise one block of items."""
        scores = matrix(scores, "scores", "queries", "items")
        groups = as_groups(groups, scores.shape[1])
        codes = like(scores, groups.codes, "int64")
        peak, total = kernels(scores).exp_sums(scores, codes, len(groups.names))
        return cls(like(scores, groups.counts), peak, total)

    def merge(self, other: LogMeanExp) -> LogMeanExp:
        """Summarise the items of both."""
        xp = namespace(self.peak)
        peak = xp.where(self.peak > other.peak, self.peak, other.peak)
        safe = xp.where(peak > -float("inf"), peak, 0.0)
        total = self.total * xp.exp(self.peak - safe) + other.total * xp.exp(other.peak - safe)
        return LogMeanExp(self.count + other.count, peak, total)

    def regroup(self, codes: Ints, groups: int) -> LogMeanExp:
        """The same for coarser groups: group `g` becomes part of group `codes[g]`."""
        xp = namespace(self.peak)
        parts = []
        for target in range(groups):
            at = [g for g, code in enumerate(codes) if code == target]
            peak = xp.amax(self.peak[:, at], 1)
            safe = xp.where(peak > -float("inf"), peak, 0.0)[:, None]
            total = (self.total[:, at] * xp.exp(self.peak[:, at] - safe)).sum(1)
            parts.append((self.count[at].sum(), peak, total))
        count, peak, total = zip(*parts, strict=True)
        return LogMeanExp(xp.stack(count), xp.stack(peak, 1), xp.stack(total, 1))

    @property
    def value(self) -> Array:
        """Queries x groups; NaN for a group without items."""
        xp = namespace(self.peak)
        some = self.count > 0
        mean = self.total / xp.where(some, self.count, 1.0)
        return xp.where(some, xp.log(xp.where(some, mean, 1.0)) + self.peak, NAN)


@dataclass(frozen=True, eq=False)
class GroupScores:
    """What lift needs to know of scores, words x groups: both estimators; mergeable.

    Examples
    --------
    >>> parts = [GroupScores.of([[0.0, 2.0]], [0, 1]), GroupScores.of([[1.0, 3.0]], [0, 1])]
    >>> parts[0].merge(parts[1]).moments.mean
    array([[0.5, 2.5]])
    """

    moments: Moments
    odds: LogMeanExp

    @classmethod
    def of(cls, scores: Array, groups: Groups | Array) -> GroupScores:
        """Summarise one block of items."""
        return cls(Moments.of(scores, groups), LogMeanExp.of(scores, groups))

    def merge(self, other: GroupScores) -> GroupScores:
        """Summarise the items of both."""
        return GroupScores(self.moments.merge(other.moments), self.odds.merge(other.odds))

    def regroup(self, codes: Ints, groups: int) -> GroupScores:
        """The same for coarser groups: group `g` becomes part of group `codes[g]`."""
        return GroupScores(self.moments.regroup(codes, groups), self.odds.regroup(codes, groups))

    def select(self, rows: Any = slice(None), groups: Any = slice(None)) -> GroupScores:
        """Some of the words, and some of the groups."""
        m, o = self.moments, self.odds
        return GroupScores(
            Moments(m.count[groups], m.mean[rows][:, groups], m.m2[rows][:, groups]),
            LogMeanExp(o.count[groups], o.peak[rows][:, groups], o.total[rows][:, groups]),
        )


def gaps(values: Array) -> Array:
    """Each group's value minus the mean of the other groups' values, equal weights.

    >>> import numpy as np
    >>> gaps(np.array([[3.0, 2.0, 1.0]]))
    array([[ 1.5,  0. , -1.5]])
    """
    xp = namespace(values)
    total = values.sum(-1)[..., None]
    if values.shape[-1] > 1 and not xp.isnan(total).any():  # the usual case, in a third of the time
        return values - (total - values) / (values.shape[-1] - 1)
    others = (~xp.isnan(values)).sum(-1)[..., None] - 1
    total = xp.nansum(values, -1)[..., None]
    some = xp.where(others > 0, others * 1.0, NAN)
    return values - (total - values) / some


def _means(moments: Moments) -> Array:
    xp = namespace(moments.mean)
    return xp.where(moments.count > 0, moments.mean, NAN)


def _same_images(scores: Array, neutral: Array) -> Array:
    if neutral.shape[1] != scores.shape[1]:
        raise InputError(
            f"neutral words were scored on {neutral.shape[1]} images and words on "
            f"{scores.shape[1]}: pass scores of the same images in the same order"
        )
    return neutral
