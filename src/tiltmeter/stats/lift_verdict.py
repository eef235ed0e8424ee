"""Verdicts on lift: of a word, a class of words, a category, an attribute, and a change.

A word is associated with a group where its lift is beyond that of neutral words (it could not be
one of them) and beyond the smallest effect of interest (the sample of images cannot explain it).
Arrays hold only groups with enough images (`enough_images`); lift and its error are those of
`tiltmeter.metrics.group_lift`, computed without the groups that are left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from tiltmeter.errors import InputError
from tiltmeter.stats.multiplicity import benjamini_hochberg
from tiltmeter.types import Floats, Ints

ASSOCIATED, NO_LARGER, CANNOT_TELL = "associated", "no larger", "cannot tell"
CLEAR, WEAK, NONE_FOUND = "clear", "weak", "none found"
#: Makes the median absolute deviation of normal numbers their standard deviation.
_MAD = 1.4826
_ONE_SIDED = 1.645  # 95% of a normal distribution lie below


@dataclass(frozen=True)
class LiftRule:
    """What a verdict asks for."""

    smallest: float = math.log(1.25)  # effect of interest, nats
    fdr: float = 0.10
    class_p: float = 0.05  # no word of a class is flagged unless Simes' test of the class passes
    group_images: int = 20  # in every group that is judged; 200 are advised
    neutral_words: int = 300  # with fewer no word is flagged


RULE = LiftRule()


@dataclass(frozen=True, eq=False)
class WordVerdicts:
    """One entry per word: where its lift stands out most, how surely, and what follows."""

    group: Ints  # the group whose lift stands out most; -1 where lift is undefined
    lift: Floats  # in that group, nats
    p_word: Floats  # among neutral words
    p_image: Floats  # of a lift beyond the smallest effect, given the sample of images
    p: Floats  # the larger of both
    p_bh: Floats  # adjusted over these words
    verdict: tuple[str | None, ...]  # None where lift is undefined
    images_needed: Floats  # per group, to tell "no larger"; NaN where images would not tell

    @property
    def flagged(self) -> Floats:
        return np.array([verdict == ASSOCIATED for verdict in self.verdict])


def enough_images(counts: Ints, rule: LiftRule = RULE) -> Ints:
    """Groups with enough images to be judged.

    >>> enough_images([200, 19, 20])
    array([0, 2])
    """
    return np.flatnonzero(np.asarray(counts) >= rule.group_images)


def left_out(names: Sequence[str], counts: Ints, rule: LiftRule = RULE) -> str | None:
    """Which groups have too few images to be judged; None if all have enough.

    >>> left_out(["a", "b", "c"], [200, 19, 20])
    'left out, fewer than 20 images: b'
    """
    few = [name for name, count in zip(names, counts, strict=True) if count < rule.group_images]
    return f"left out, fewer than {rule.group_images} images: {', '.join(few)}" if few else None


TOO_FEW_GROUPS = f"fewer than {RULE.group_images} images in all groups but one"


def word_verdicts(
    lift: Floats, error: Floats, neutral: Floats, counts: Ints, rule: LiftRule = RULE,
    weights: Floats | None = None,
) -> WordVerdicts:  # fmt: skip
    """Judge words of one class and attribute.

    Parameters
    ----------
    lift, error
        Words x groups: lift in nats and its standard error through the sample of images.
    neutral
        Neutral words of the same class x groups: their lift.
    counts
        Images of each group.
    rule
        Smallest effect of interest, false discovery rate, and the least samples.
    weights
        `neutral_weights`, where words and neutral words were not scored in the same captions.

    Returns
    -------
    WordVerdicts
        p_word is the rank of a word's largest standardised lift among neutral words; p_image
        tests that the lift exceeds the smallest effect of interest; both must be small. Words are
        flagged by Benjamini-Hochberg over this class, if any word of the class is associated by
        Simes' test (the smallest adjusted p).

    Raises
    ------
    InputError
        Where fewer than two groups are given, a group has too few images, there are fewer than
        two neutral words, or neutral words have no spread.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> lift = np.array([[0.9, -0.9], [0.01, -0.01], [0.3, -0.3]])
    >>> neutral = rng.normal(scale=0.1, size=(400, 1)) * [1, -1]
    >>> found = word_verdicts(lift, np.full((3, 2), 0.05), neutral, [500, 500])
    >>> found.verdict
    ('associated', 'no larger', 'cannot tell')
    """
    lift, error, neutral = (np.atleast_2d(np.asarray(x, float)) for x in (lift, error, neutral))
    counts = np.asarray(counts)
    _check(lift, error, neutral, counts, rule)
    k = neutral.shape[1]
    weights = np.ones(len(neutral)) if weights is None else np.asarray(weights, float)
    m = weights.sum()
    spread = neutral_spread(neutral)
    sizes = np.abs(lift) / spread
    defined = np.asarray(np.isfinite(lift + error).all(axis=1))
    # two groups mirror each other: rounding must not choose between them
    largest_in = np.argmax(np.nan_to_num(sizes), axis=1) if k > 2 else np.zeros(len(lift), int)
    group = np.where(defined, largest_in, 0)
    rows = np.arange(len(lift))
    own, own_error = lift[rows, group], error[rows, group]
    largest = (np.abs(neutral) / spread).max(axis=1)
    order = np.argsort(largest)
    weight_below = np.concatenate([[0.0], np.cumsum(weights[order])])
    beyond = m - weight_below[np.searchsorted(largest[order], sizes[rows, group], side="left")]
    p_word = np.where(defined, (1 + beyond) / (m + 1), np.nan)
    sides = 2 * (1 if k == 2 else k)  # both signs, and the choice of the group
    excess = np.abs(own) - rule.smallest
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = sides * student.sf(excess / own_error, counts[group] - 1)
        p_image = np.where(excess > 0, np.minimum(1.0, tail), 1.0)
        narrow = (rule.smallest - np.abs(lift)) / _ONE_SIDED  # the error that would do
        times = np.where(narrow > 0, (error / narrow) ** 2, np.nan)
    p_image = np.where(defined, p_image, np.nan)
    p = np.maximum(p_word, p_image)
    p_bh = benjamini_hochberg(p)
    any_associated = bool((p_bh <= rule.class_p).any())
    flagged = (p_bh <= rule.fdr) & any_associated & (m >= rule.neutral_words)
    no_larger = np.all(np.abs(lift) + _ONE_SIDED * error < rule.smallest, axis=1)
    verdict = tuple(
        None if not known else ASSOCIATED if flag else NO_LARGER if small else CANNOT_TELL
        for known, flag, small in zip(defined, flagged, no_larger, strict=True)
    )
    needed = np.ceil((times * counts).max(axis=1))
    needed = np.where([one == CANNOT_TELL for one in verdict], needed, np.nan)
    return WordVerdicts(
        np.where(defined, group, -1), np.where(defined, own, np.nan), p_word, p_image, p, p_bh,
        verdict, needed,
    )  # fmt: skip


def neutral_weights(words: Sequence[Hashable], neutral: Sequence[Hashable]) -> Floats:
    """Weights that give neutral words the same mix of kinds, such as captions, as words have.

    Where words of one caption vary more than those of another, a class with more words of that
    caption would stand out among neutral words. The weights sum to the number of equally weighted
    neutral words that would be as precise (Kish's effective sample size).

    Parameters
    ----------
    words, neutral
        The kind of each word, and of each neutral word.

    Examples
    --------
    >>> neutral_weights(["a", "a", "an", "an"], ["a", "a", "a", "an"]).round(2)
    array([0.5, 0.5, 0.5, 1.5])
    """
    of_words, of_neutral = Counter(words), Counter(neutral)
    weights = np.array([of_words[kind] / of_neutral[kind] for kind in neutral])
    # rounded, so that words and neutral words of one caption have weights of exactly 1
    return np.asarray(np.round(weights * weights.sum() / (weights**2).sum(), 12))


def neutral_spread(neutral: Floats) -> Floats:
    """Spread of the lift of neutral words in each group, like a standard deviation.

    Raises
    ------
    InputError
        Neutral words have no spread.

    Examples
    --------
    >>> neutral_spread([[0.1, -0.1], [-0.1, 0.1], [0.3, -0.3]]).round(3)
    array([0.148, 0.148])
    """
    spread = _MAD * np.median(np.abs(neutral), axis=0)
    if not (spread > 0).all():
        raise InputError(
            "neutral words have the same lift in a group: their scores do not differ, so they "
            "show nothing; check the model's scores"
        )
    return np.asarray(spread)


def fewest_words_flagged_together(words: int, neutral: int, rule: LiftRule = RULE) -> int:
    """The fewest words that can be flagged, unless none is.

    The smallest p_word is 1 / (neutral + 1), so the test of the class passes with at least this
    many.

    >>> fewest_words_flagged_together(200, 300)
    14
    """
    return math.ceil(words / (rule.class_p * (neutral + 1)))


def bias_size(lift: Floats, neutral: Floats) -> Floats:
    """Size of a model's bias by one attribute, in nats: what words have beyond neutral words.

    sqrt(max(0, mean lift^2 over words - mean lift^2 over neutral words)). The last two axes are
    words and groups; axes before them, such as splits of the images, are kept.

    >>> float(bias_size([[0.5, -0.5]], [[0.3, -0.3]]).round(3))
    0.4
    """
    of_words, of_neutral = (np.square(np.asarray(x, float)).mean((-2, -1)) for x in (lift, neutral))
    return np.asarray(np.sqrt(np.maximum(0.0, of_words - of_neutral)))


def share_below(size: float, splits: Floats) -> float:
    """Share of random visible splits of the images in which words move less than `size`.

    Sizes are compared, and not their ratio to neutral words: where images hardly differ otherwise,
    neutral words hardly move, and a ratio says that a split of nothing is as large as a bias.

    >>> share_below(0.4, [0.1, 0.2, 0.5, 0.3])
    0.75
    """
    splits = np.asarray(splits, float)
    return float((splits < size).mean()) if len(splits) else math.nan


def category_p(
    lift: Floats, image_error: Floats, neutral_categories: Floats
) -> tuple[Floats, Floats]:
    """Mean lift of a category of words by group, and its p-value.

    The unit of noise is the category: categories of neutral words differ from each other too, by
    more than their words do, so words alone would call every category significant.

    Parameters
    ----------
    lift
        Words of the category x groups.
    image_error
        By group: standard error of the category's mean lift through the sample of images.
    neutral_categories
        Categories of neutral words x groups: the mean lift of each.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> neutral = rng.normal(scale=0.1, size=(9, 1)) * [1, -1]
    >>> mean, p = category_p([[0.8, -0.8], [0.7, -0.7]], [0.02, 0.02], neutral)
    >>> mean.round(2), bool((p < 0.001).all())
    (array([ 0.75, -0.75]), True)
    """
    lift, neutral = np.atleast_2d(np.asarray(lift, float)), np.asarray(neutral_categories, float)
    words, k = lift.shape
    known = len(neutral)
    if known < 2:
        raise InputError(
            f"a category is judged by how categories of neutral words differ; got {known}: give "
            "neutral words in at least two categories"
        )
    mean = lift.mean(axis=0)
    of_words = lift.std(axis=0, ddof=1) / math.sqrt(words) if words > 1 else np.zeros(k)
    between = neutral.var(axis=0, ddof=1)
    error = np.sqrt(of_words**2 + np.asarray(image_error, float) ** 2 + between * (1 + 1 / known))
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * student.sf(np.abs(mean) / error, known - 1)
    return mean, np.minimum(1.0, (1 if k == 2 else k) * p)


def attribute_verdict(verdicts: WordVerdicts, share_of_splits: float) -> str:
    """The sentence of a summary: clear, weak, none found, or cannot tell.

    Parameters
    ----------
    verdicts
        Words of one class by one attribute.
    share_of_splits
        `share_below` of their size among random visible splits of the same images.
    """
    if verdicts.flagged.any():
        return CLEAR if share_of_splits > 0.95 else WEAK
    known = [verdict for verdict in verdicts.verdict if verdict is not None]
    enough = known and sum(verdict == NO_LARGER for verdict in known) >= len(known) / 2
    return NONE_FOUND if enough else CANNOT_TELL


def _check(lift: Floats, error: Floats, neutral: Floats, counts: Ints, rule: LiftRule) -> None:
    k = len(counts)
    if lift.shape != error.shape or lift.shape[1] != k or neutral.shape[1] != k:
        raise InputError(
            f"lift {lift.shape}, error {error.shape}, neutral {neutral.shape} and counts ({k}) "
            "must have the same groups, and lift and error the same words"
        )
    if k < 2 or (counts < rule.group_images).any():
        raise InputError(
            f"a verdict takes at least two groups with {rule.group_images} images each; got "
            f"{counts.tolist()}: leave small groups out (enough_images) or add images"
        )
    if not len(neutral) or not np.isfinite(neutral).all():
        raise InputError("there are no neutral words with a defined lift to judge words by")
    if len(neutral) < 2:
        raise InputError(
            "1 neutral word; a spread needs at least 2, and to call a word associated "
            f"{rule.neutral_words} are needed"
        )
