"""Bootstrap intervals: what would another sample of images, words and templates have given?

A bootstrap resample draws the images of each group with replacement (groups keep their sizes), and
where a value is a mean over words or templates, these too, independently: the crossed bootstrap. A
resample of images is a row of weights, so nothing is copied: the top k under weights are the first
ranks whose weights sum to k.
"""

from __future__ import annotations

import numpy as np

from tiltmeter.metrics.arrays import as_groups, matrix
from tiltmeter.stats import defined
from tiltmeter.stats.intervals import Z
from tiltmeter.types import Floats, Groups, Ints

LEVEL = 0.95
MANY = 1e9  # practically infinite


def bootstrap_weights_within_groups(groups: Groups, draws: int, rng: np.random.Generator) -> Ints:
    """Bootstrap resamples of images within groups, as weights.

    Parameters
    ----------
    groups : Groups
        The group of each image.
    draws : int
        Number of resamples.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    array of uint8 of shape (draws, images)
        How often each resample contains each image; each group keeps its size.

    Examples
    --------
    >>> groups = Groups.from_labels(["a", "a", "b"])
    >>> weights = bootstrap_weights_within_groups(groups, 4, np.random.default_rng(0))
    >>> weights[:, :2].sum(axis=1).tolist(), weights[:, 2].tolist()
    ([2, 2, 2, 2], [1, 1, 1, 1])
    """
    from tiltmeter.stats.random_draws import resampled_weights

    return resampled_weights(groups.codes, groups.counts, draws, rng)


def bootstrap_c_asc(scores: Floats, groups: Groups | Ints, weights: Ints) -> Floats:
    """C-ASC of bootstrap resamples.

    Parameters
    ----------
    scores : array of shape (queries, items)
        Similarity of each query to each item.
    groups : Groups or array of shape (items,)
        The group of each item.
    weights : array of shape (draws, items)
        As `bootstrap_weights_within_groups` returns them.

    Returns
    -------
    array of shape (draws, queries, groups)
        One C-ASC per resample.

    Examples
    --------
    >>> groups = Groups.from_labels(["a", "a", "b", "b"])
    >>> weights = np.ones((1, 4), np.uint8)  # the sample itself
    >>> bootstrap_c_asc([[1.0, 2.0, 3.0, 4.0]], groups, weights).round(3)
    array([[[-1.549,  1.549]]])
    """
    from tiltmeter.stats import kernels

    scores = matrix(scores, "scores", "queries", "items")
    groups = as_groups(groups, scores.shape[1])
    z = kernels.standardized(scores)
    sums = kernels.weighted_sums(z, groups.codes, weights, len(groups.names))
    squares = kernels.weighted_squares(z, weights)
    # weights keep the groups' sizes, so only sums change
    return kernels.c_asc_of_sums(sums, groups.counts, squares)


def bootstrap_top_counts(order: Ints, groups: Groups, weights: Ints, k: int) -> Floats:
    """Top-k counts of bootstrap resamples.

    Parameters
    ----------
    order : array of int of shape (queries, items)
        Rankings: items, best first.
    groups : Groups
        The group of each item.
    weights : array of shape (draws, items)
        As `bootstrap_weights_within_groups` returns them.
    k : int
        Size of the top.

    Returns
    -------
    array of shape (draws, queries, groups)
        Counts that sum to k.

    Examples
    --------
    >>> groups = Groups.from_labels(["a", "a", "b"])
    >>> weights = np.array([[2, 0, 1]], np.uint8)
    >>> bootstrap_top_counts(np.array([[2, 0, 1]]), groups, weights, 2).tolist()
    [[[1, 1]]]
    """
    from tiltmeter.stats import kernels

    return kernels.weighted_top_counts(order, groups.codes, weights, k, len(groups.names))


def bootstrap_ndkl(order: Ints, groups: Groups, weights: Ints, shares: Floats) -> Floats:
    """NDKL of the whole ranking, of bootstrap resamples.

    Parameters
    ----------
    order : array of int of shape (queries, items)
        Rankings: items, best first.
    groups : Groups
        The group of each item.
    weights : array of shape (draws, items)
        As `bootstrap_weights_within_groups` returns them.
    shares : array of shape (groups,)
        Desired shares.

    Returns
    -------
    array of shape (draws, queries)
        One NDKL per resample.

    Examples
    --------
    >>> groups, weights = Groups.from_labels(["a", "b", "a", "b"]), np.ones((1, 4), np.uint8)
    >>> bootstrap_ndkl(np.array([[0, 1, 2, 3]]), groups, weights, np.array([0.5, 0.5])).round(4)
    array([[0.2816]])
    """
    from tiltmeter.stats import kernels

    return kernels.weighted_ndkl(order, groups.codes, weights, shares)


def interval(draws: Floats, value: Floats, stretch: Floats | float = 1.0) -> tuple[Floats, Floats]:
    """Percentile interval (95%) of bootstrap resamples.

    Parameters
    ----------
    draws : array of shape (draws, ...)
        The value of each resample.
    value : array of shape (...)
        The estimate.
    stretch : array or float
        Factor by which both edges are moved away from the estimate: see `widen_for_small_groups`.

    Returns
    -------
    low, high : array of shape (...)
        The edges.

    Examples
    --------
    >>> [float(edge.round(6)) for edge in interval(np.arange(1.0, 1000.0), np.float64(500.0))]
    [25.0, 975.0]
    """
    # quantiles of (R + 1) points: those of R points would be a little too narrow
    lo, hi = defined.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="weibull")
    return value + stretch * (lo - value), value + stretch * (hi - value)


def widen_for_small_groups(counts: Ints) -> Floats:
    """Factor for percentile intervals of each group against the rest, when groups are small.

    Parameters
    ----------
    counts : array of int of shape (groups,)
        Sizes of the groups.

    Returns
    -------
    array of shape (groups,)
        Above 1; tends to 1 as groups grow.

    Examples
    --------
    >>> widen_for_small_groups(np.array([20, 20])).round(3)
    array([1.06, 1.06])
    >>> widen_for_small_groups(np.array([5000, 5000])).round(3)
    array([1., 1.])
    """
    n = np.asarray(counts, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):  # one group has no rest
        # variance of a group's gap from each stratum: 1/n of its own, else by its share
        parts = np.where(np.eye(len(n), dtype=bool), 1 / n, n / (n.sum() - n)[:, None] ** 2)
        return _stretch(parts.T, n[:, None])


def widen_for_few_units(units: Ints) -> Floats:
    """Factor for percentile intervals of a mean over few resampled units.

    Parameters
    ----------
    units : array of int
        Number of units.

    Returns
    -------
    array
        Above 1; NaN for one unit, which does not vary.

    Examples
    --------
    >>> widen_for_few_units(np.array([1, 2, 20, 5000])).round(3)
    array([  nan, 9.168, 1.096, 1.   ])
    """
    n = np.asarray(units, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(n > 1, _stretch(np.ones((1, *n.shape)), n[None]), np.nan)


def widen_for_few_words(values: Floats, words: Ints, templates: Ints, draws: Floats) -> Floats:
    """Factor for percentile intervals of a mean over words and templates, which are few.

    The variance that words and templates contribute is estimated from `values`; the rest of the
    variance of the `draws` comes from the images, of which there are many.

    Parameters
    ----------
    values : array of shape (prompts, ...)
        The estimate of each prompt.
    words, templates : array of shape (prompts,)
        The word and the template of each prompt.
    draws : array of shape (draws, ...)
        As `bootstrap_mean_of_words` returns them.

    Returns
    -------
    array of shape (...)
        1 or more.

    Examples
    --------
    >>> values, rng = np.array([0.1, 0.4, 0.2, 0.3]), np.random.default_rng(0)
    >>> words, templates = np.arange(4), np.zeros(4, int)
    >>> draws = bootstrap_mean_of_words(values + np.zeros((999, 1)), words, templates, rng)
    >>> bool(1.5 < widen_for_few_words(values, words, templates, draws) < 2.5)
    True
    """
    parts, units = [], []
    rest = values
    for codes in (words, templates):
        names, at = np.unique(codes, return_inverse=True)
        if len(names) == len(codes):  # one row each, which is its own mean
            means = rest[np.argsort(at)]
        else:
            means = defined.mean_by(rest, at, len(names))
        rest = rest - means[at]  # of templates, what the words do not explain
        if len(names) > 1:
            parts.append(np.nan_to_num(defined.std(means)) ** 2 / len(names))
            units.append(float(len(names)))
    explained = sum(part * (n - 1) / n for part, n in zip(parts, units, strict=True))
    parts.append(np.maximum(np.nan_to_num(defined.std(draws)) ** 2 - explained, 0.0))
    return _stretch(np.stack(parts), np.array([*units, MANY]).reshape(-1, *[1] * (values.ndim - 1)))


def _stretch(variances: Floats, units: Floats) -> Floats:
    """The factor from the parts of a variance (first axis), each resampled from so many units.

    A resample of n units has (n - 1) / n of the variance it should have, and a normal quantile is
    too short for it; Student's is not, with Welch's degrees of freedom (Hesterberg 2015, the
    expanded percentile interval).
    """
    from scipy.special import stdtrit

    total = variances.sum(axis=0)
    shrunk = (variances * (units - 1) / units).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.minimum(total**2 / (variances**2 / (units - 1)).sum(axis=0), MANY)
        factor = stdtrit(freedom, (1 + LEVEL) / 2) / Z * np.sqrt(total / shrunk)
    return np.where(total > 0, factor, 1.0)


def standard_error_interval(
    draws: Floats, value: Floats, stretch: Floats | float = 1.0
) -> tuple[Floats, Floats]:
    """The value plus and minus 1.96 standard deviations of its bootstrap resamples.

    Noise moves a maximum or a divergence one way only, so its resamples, and their percentiles, are
    beyond the value. This interval is around what such a sample gives on average, including the
    noise: compare it with the null band.

    Parameters
    ----------
    draws : array of shape (draws, ...)
        The value of each resample.
    value : array of shape (...)
        The estimate.
    stretch : array or float
        Factor for the half-width.

    Returns
    -------
    low, high : array of shape (...)
        The edges.

    Examples
    --------
    >>> [float(edge.round(2)) for edge in standard_error_interval(np.array([1.0, 2.0, 3.0]), 2.0)]
    [0.04, 3.96]
    """
    half = stretch * Z * defined.std(draws)
    return value - half, value + half


def bootstrap_mean_of_words(
    draws: Floats, words: Ints, templates: Ints, rng: np.random.Generator
) -> Floats:
    """Mean over words of the mean over their templates, with both resampled.

    A resample takes the same templates for every word (crossed). A single word, or the single
    template of a word, is kept as it is.

    Parameters
    ----------
    draws : array of shape (draws, prompts, ...)
        The value of each prompt in each resample of images.
    words, templates : array of shape (prompts,)
        The word and the template of each prompt.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    array of shape (draws, ...)
        One mean per resample, over what is defined.

    Examples
    --------
    >>> draws = np.array([[1.0, 3.0], [1.0, 3.0]])
    >>> bootstrap_mean_of_words(draws, np.array([0, 1]), np.array([0, 0]), np.random.default_rng(1))
    array([2., 3.])
    """
    share = resampled_shares(words, templates, len(draws), rng)
    return mean_of_shares(draws, share)


def resampled_shares(words: Ints, templates: Ints, draws: int, rng: np.random.Generator) -> Floats:
    """How much each prompt counts in a mean over words, where words and templates are resampled.

    Parameters
    ----------
    words, templates : array of shape (prompts,)
        The word and the template of each prompt.
    draws : int
        Number of resamples.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    array of shape (draws, prompts)
        Shares that sum to the number of words.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> resampled_shares(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), 3, rng).sum(axis=1)
    array([2., 2., 2.])
    """
    _, word = np.unique(words, return_inverse=True)
    _, template = np.unique(templates, return_inverse=True)
    weight = _multiplicity(template, draws, rng)
    # not a matrix product: integers sum exactly in any order, and BLAS would start threads for
    # each of thousands of small ones
    order = np.argsort(word, kind="stable")
    starts = np.searchsorted(word[order], np.arange(word.max() + 1))
    total = np.add.reduceat(weight[:, order], starts, axis=1)  # draws x words
    # where none of a word's templates was drawn, all of them are used
    total = total[:, word]
    if (missed := total == 0).any():
        weight = np.where(missed, 1.0, weight)
        total = np.where(missed, np.bincount(word)[word], total)
    return np.asarray(weight / total * _multiplicity(word, draws, rng))


def mean_of_shares(draws: Floats, share: Floats) -> Floats:
    """Means over prompts, each with its share in that draw.

    Parameters
    ----------
    draws : array of shape (draws, prompts, ...)
        The value of each prompt in each resample of images.
    share : array of shape (draws, prompts)
        As `resampled_shares` returns them.

    Returns
    -------
    array of shape (draws, ...)
        Means of what is defined.

    Examples
    --------
    >>> mean_of_shares(np.array([[1.0, 3.0]]), np.array([[0.5, 1.5]]))
    array([2.5])
    """
    from tiltmeter.stats.kernels import shared_means

    rest = draws.shape[2:]
    four = draws.reshape(*draws.shape, *[1] * (4 - draws.ndim))
    return shared_means(four, share).reshape(len(draws), *rest)


def _multiplicity(codes: Ints, draws: int, rng: np.random.Generator) -> Floats:
    """How often each unit is drawn, for each of its members: draws x members."""
    count = int(codes.max()) + 1
    if count == 1:
        return np.ones((draws, len(codes)))
    units = rng.integers(0, count, (draws, count)) + count * np.arange(draws)[:, None]
    times = np.bincount(units.ravel(), minlength=draws * count).reshape(draws, count)
    return times[:, codes].astype(float)
