"""Interval of the size of a bias: over words and over images together.

Images are shared by all words, so their noise does not average out over words; and a mean of
squares grows with noise. Both are taken into account by resampling images and words together, and
by the basic bootstrap, which takes off what resampling added.
"""

from __future__ import annotations

import math

import numpy as np

from tiltmeter.metrics.numpy_kernels import quantiles_of_draws
from tiltmeter.types import Floats


def bias_size_interval(
    raw: Floats, neutral: Floats, noise: Floats, rng: np.random.Generator
) -> tuple[float, float]:
    """95% interval of `tiltmeter.stats.lift_verdict.bias_size`.

    Parameters
    ----------
    raw, neutral
        Words x groups and neutral words x groups: each group's mean score minus the mean of the
        others'.
    noise
        Draws x (words, then neutral words) x groups: the change of these when images are
        resampled.
    rng
        Resamples words.

    Returns
    -------
    tuple of float
        Bounds in nats, at least 0; NaN without draws.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> raw, neutral = rng.normal(size=(200, 1)) * [[1, -1]], 0.1 * rng.normal(size=(300, 1))
    >>> low, high = bias_size_interval(raw, neutral * [[1, -1]], np.zeros((200, 500, 2)), rng)
    >>> 0.8 < low < 1 < high < 1.2
    True
    """
    words, m = len(raw), len(neutral)
    if not len(noise):
        return math.nan, math.nan
    at_word = rng.integers(0, words, (len(noise), words))
    at_neutral = rng.integers(0, m, (len(noise), m))
    draw = np.arange(len(noise))[:, None]
    drawn = raw[at_word] + noise[draw, at_word]
    reference = neutral[at_neutral] + noise[draw, words + at_neutral]
    resampled = _square(drawn, reference)
    low, high = np.quantile(resampled, (0.025, 0.975))
    centre = 2 * float(_square(raw[None], neutral[None])[0])
    return math.sqrt(max(0.0, centre - high)), math.sqrt(max(0.0, centre - low))


def _square(raw: Floats, neutral: Floats) -> Floats:
    """Mean squared lift of words minus that of neutral words, one per draw."""
    middle = quantiles_of_draws(neutral, np.array([0.5]), -1)[0][:, None]  # the median
    of_words, of_neutral = (np.square(x - middle).mean(axis=(1, 2)) for x in (raw, neutral))
    return np.asarray(of_words - of_neutral)
