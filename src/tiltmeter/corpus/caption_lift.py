"""Lift of words in captions, in nats, as in a model: how many times as often with one group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiltmeter.metrics.group_lift import lift_of_group_scores
from tiltmeter.types import Floats, Ints

HALF = 0.5  # added to each count, which makes logs finite (Haldane and Anscombe)
#: Captions of a word that each group would have, if the word were like all captions. Below it the
#: noise of a log of counts is not known well enough.
EXPECTED = 5
FEWEST_NEUTRAL = 20  # neutral words; with fewer, all captions are the reference


@dataclass(frozen=True, eq=False)
class CaptionLift:
    """Lift of words by group, and what is known of its noise."""

    value: Floats  # words x groups
    error: Floats  # standard error through the word's own counts
    expected_error: Floats  # the same for a word of this frequency with no association
    often: Ints  # words: whether it occurs often enough to be compared with a model
    neutral: int  # neutral words that it is relative to; 0: relative to all captions


def lift_of_caption_counts(words: Ints, neutral: Ints, everything: Ints) -> CaptionLift:
    """Lift from counts of captions that name one group only.

    lift[w, g] = ln rate[w, g] - mean of ln rate[w, h] over the other groups h, minus the median of
    the same over neutral words: the definition of `tiltmeter.metrics.group_lift`, where a rate is
    the share of a group's captions that contain the word. What captions write about a group more
    often is the same for all words, so it drops out.

    Parameters
    ----------
    words
        Words x groups: captions with the word.
    neutral
        Neutral words x groups.
    everything
        Groups: all captions.

    Examples
    --------
    >>> found = lift_of_caption_counts([[60, 20]], np.empty((0, 2)), [5000, 5000])
    >>> found.value.round(2), found.neutral
    (array([[ 1.08, -1.08]]), 0)
    """
    words, everything = np.asarray(words, float), np.asarray(everything, float)
    share = everything / max(1.0, everything.sum())
    neutral = np.asarray(neutral, float)
    neutral = neutral[_often(neutral, share)]
    enough = len(neutral) >= FEWEST_NEUTRAL
    reference = neutral if enough else everything[None]
    value = np.asarray(lift_of_group_scores(np.log(words + HALF), np.log(reference + HALF)))
    expected = words.sum(axis=1, keepdims=True) * share
    return CaptionLift(
        value, _error(words), _error(expected), _often(words, share), len(neutral) * enough
    )


def _often(words: Floats, share: Floats) -> Ints:
    return np.asarray(words.sum(axis=1) * share.min() >= EXPECTED)


def _error(counts: Floats) -> Floats:
    """Standard error of a log of counts minus the mean log of the other groups' counts."""
    variance = 1 / (counts + HALF)
    others = (variance.sum(axis=1, keepdims=True) - variance) / (counts.shape[1] - 1) ** 2
    return np.asarray(np.sqrt(variance + others))
