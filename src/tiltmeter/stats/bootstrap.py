"""Intervals: what would another sample of images, words and wordings have given?

A draw resamples the images of each group with replacement (groups keep their sizes), and where a
figure is a mean over words or templates, these too, independently: the crossed bootstrap. A draw
of images is a row of weights, so nothing is copied: the top k under weights is a walk down the
ranking until the weights add up to k.
"""

from __future__ import annotations

import numpy as np

from tiltmeter.metrics.arrays import as_groups, matrix
from tiltmeter.stats import defined
from tiltmeter.stats.intervals import Z
from tiltmeter.stats.null import stretches
from tiltmeter.types import Floats, Groups, Ints

LEVEL = 0.95
MANY = 1e9  # as good as endless


def stratified_weights(groups: Groups, draws: int, rng: np.random.Generator) -> Ints:
    """How often each item is drawn, draws x items; each group keeps its size.

    >>> groups = Groups.from_labels(["a", "a", "b"])
    >>> weights = stratified_weights(groups, 4, np.random.default_rng(0))
    >>> weights[:, :2].sum(axis=1).tolist(), weights[:, 2].tolist()
    ([2, 2, 2, 2], [1, 1, 1, 1])
    """
    weights = np.empty((draws, len(groups)), np.uint8)
    for code, size in enumerate(groups.counts):
        rows = np.flatnonzero(groups.codes == code)
        for draw in range(draws):
            picked = rng.integers(0, size, size=size)
            weights[draw, rows] = np.minimum(np.bincount(picked, minlength=size), 255)
    return weights


def c_asc_draws(scores: Floats, groups: Groups | Ints, weights: Ints) -> Floats:
    """C-ASC under each row of weights: draws x queries x groups."""
    from tiltmeter.stats import kernels

    scores = matrix(scores, "scores", "queries", "items")
    groups = as_groups(groups, scores.shape[1])
    sums, squares = kernels.weighted_sums(
        kernels.standardized(scores), groups.codes, weights, len(groups.names)
    )
    # weights keep the groups' sizes, so only sums change
    return kernels.c_asc_of_sums(sums, groups.counts, squares)


def top_count_draws(order: Ints, groups: Groups, weights: Ints, k: int) -> Floats:
    """Top-k counts under each row of weights, for rankings `order`: draws x queries x groups."""
    from tiltmeter.stats import kernels

    return kernels.weighted_top_counts(order, groups.codes, weights, k, len(groups.names))


def ndkl_draws(order: Ints, groups: Groups, weights: Ints, shares: Floats) -> Floats:
    """Whole-ranking NDKL under each row of weights: draws x queries."""
    from tiltmeter.stats import kernels

    return kernels.weighted_ndkl(order, groups.codes, weights, shares)


def interval(draws: Floats, value: Floats, stretch: Floats | float = 1.0) -> tuple[Floats, Floats]:
    """Percentile interval of draws along the first axis, stretched away from the value.

    >>> [float(edge.round(6)) for edge in interval(np.arange(1.0, 1000.0), np.float64(500.0))]
    [25.0, 975.0]
    """
    # quantiles of (R + 1) points: those of R points would leave out a little too much
    lo, hi = defined.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="weibull")
    return value + stretch * (lo - value), value + stretch * (hi - value)


def small_sample_stretch(counts: Ints) -> Floats:
    """How much longer an interval of each group against the rest must be, when groups are small.

    Tends to 1 as groups grow.

    >>> small_sample_stretch(np.array([20, 20])).round(3)
    array([1.06, 1.06])
    >>> small_sample_stretch(np.array([5000, 5000])).round(3)
    array([1., 1.])
    """
    n = np.asarray(counts, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):  # one group has no rest
        # what each stratum adds to the variance of a group's gap: 1/n of its own, else its share
        parts = np.where(np.eye(len(n), dtype=bool), 1 / n, n / (n.sum() - n)[:, None] ** 2)
        return _stretch(parts.T, n[:, None])


def mean_stretch(units: Ints) -> Floats:
    """The same for a mean over so many resampled units; NaN for one, which does not vary.

    >>> mean_stretch(np.array([1, 2, 20, 5000])).round(3)
    array([  nan, 9.168, 1.096, 1.   ])
    """
    n = np.asarray(units, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(n > 1, _stretch(np.ones((1, *n.shape)), n[None]), np.nan)


def crossed_stretch(values: Floats, words: Ints, templates: Ints, draws: Floats) -> Floats:
    """The same for a mean over words and templates, which are few; `values` are of prompts.

    What words and templates add to the variance of the mean is taken from `values`; what is
    left of the variance of the `draws` (crossed means) is the images', of which there are many.
    """
    parts, units = [], []
    rest = values
    for codes in (words, templates):
        names, at = np.unique(codes, return_inverse=True)
        means = np.stack([defined.mean(rest[at == unit]) for unit in range(len(names))])
        rest = rest - means[at]  # of templates, what the words do not explain
        if len(names) > 1:
            parts.append(np.nan_to_num(defined.std(means)) ** 2 / len(names))
            units.append(float(len(names)))
    told = sum(part * (n - 1) / n for part, n in zip(parts, units, strict=True))
    parts.append(np.maximum(np.nan_to_num(defined.std(draws)) ** 2 - told, 0.0))
    return _stretch(np.stack(parts), np.array([*units, MANY]).reshape(-1, *[1] * (values.ndim - 1)))


def _stretch(variances: Floats, units: Floats) -> Floats:
    """From the parts of a variance (first axis), each resampled from so many units.

    A resample of n units has (n - 1) / n of the variance it should have, and a normal quantile is
    too short for it; Student's is not, with Welch's degrees of freedom (Hesterberg 2015, the
    expanded percentile interval).
    """
    from scipy.special import stdtrit

    whole = variances.sum(axis=0)
    shrunk = (variances * (units - 1) / units).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.minimum(whole**2 / (variances**2 / (units - 1)).sum(axis=0), MANY)
        longer = stdtrit(freedom, (1 + LEVEL) / 2) / Z * np.sqrt(whole / shrunk)
    return np.where(whole > 0, longer, 1.0)


def standard_error_interval(
    draws: Floats, value: Floats, stretch: Floats | float = 1.0
) -> tuple[Floats, Floats]:
    """The value plus and minus 1.96 standard deviations of the draws.

    For a figure that noise pushes one way only (a maximum, a divergence), draws lie beyond the
    value and their percentiles with them. This interval is around what such a sample gives on
    average, noise floor and all: read it beside the null band.

    >>> [float(edge.round(2)) for edge in standard_error_interval(np.array([1.0, 2.0, 3.0]), 2.0)]
    [0.04, 3.96]
    """
    half = stretch * Z * defined.std(draws)
    return value - half, value + half


def crossed_means(draws: Floats, words: Ints, templates: Ints, rng: np.random.Generator) -> Floats:
    """Mean over words of the mean over their templates, both resampled, one a draw.

    `draws` is draws x prompts (x columns); `words` and `templates` say what each prompt is made
    of. A draw takes the same templates for every word (crossed), and leaves a lone word, or the
    lone template of a word, as it is.

    >>> draws = np.array([[1.0, 3.0], [1.0, 3.0]])
    >>> crossed_means(draws, np.array([0, 1]), np.array([0, 0]), np.random.default_rng(1))
    array([2., 1.])
    """
    _, word = np.unique(words, return_inverse=True)
    _, template = np.unique(templates, return_inverse=True)
    weight = _multiplicity(template, len(draws), rng)
    # not a product of matrices: whole numbers add up exactly in any order, and BLAS would start
    # threads for each of thousands of small ones
    order = np.argsort(word, kind="stable")
    starts = np.searchsorted(word[order], np.arange(word.max() + 1))
    total = np.add.reduceat(weight[:, order], starts, axis=1)  # draws x words
    # where none of a word's templates was drawn, all of them serve
    missed = total[:, word] == 0
    weight = np.where(missed, 1.0, weight)
    share = weight / np.where(missed, np.bincount(word)[word], total[:, word])
    share = share * _multiplicity(word, len(draws), rng)
    share = share.reshape(*share.shape, *[1] * (draws.ndim - 2))
    mean = np.full((len(draws), *draws.shape[2:]), np.nan)
    for rows in stretches(draws.shape, 0):
        there = ~np.isnan(draws[rows])  # a mean is over what is defined
        weight = (share[rows] * there).sum(axis=1)
        sums = (share[rows] * np.where(there, draws[rows], 0.0)).sum(axis=1)
        np.divide(sums, weight, out=mean[rows], where=weight > 0)
    return mean


def _multiplicity(codes: Ints, draws: int, rng: np.random.Generator) -> Floats:
    """How often each unit is drawn, for each of its members: draws x members."""
    count = int(codes.max()) + 1
    if count == 1:
        return np.ones((draws, len(codes)))
    return rng.multinomial(count, np.full(count, 1 / count), size=draws)[:, codes].astype(float)
