"""Variance components: does a value vary with the word, the template, or the sample of images?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.types import Floats, Ints


class VarianceShares(NamedTuple):
    """Shares of the variance of one value of one word in one template; they sum to 1.

    Attributes
    ----------
    word, template : array
        Differences between words, and between templates.
    interaction : array
        A template that changes one word more than another.
    image : array
        Another sample of images of the same size.
    """

    word: Floats
    template: Floats
    interaction: Floats
    image: Floats


def variance_shares(
    values: Floats, image_variance: Floats | float, counts: Ints | None = None
) -> VarianceShares:
    """Variance components of values of words x templates, by the method of moments.

    Parameters
    ----------
    values : array of shape (words, templates)
        One value per prompt.
    image_variance : float or array of the shape of `values`
        Sampling variance of a value, from a bootstrap over images.
    counts : array of shape (..., words), optional
        How often each word counts, in each of several resamples; once by default.

    Returns
    -------
    VarianceShares
        Negative estimates count as 0; NaN where nothing varies.

    Raises
    ------
    InputError
        There are fewer than 2 words or 2 templates.

    Examples
    --------
    >>> word, template = np.array([0.0, 1.0, 2.0]), np.array([0.0, 0.5])
    >>> [round(float(x), 2) for x in variance_shares(word[:, None] + template, 0.0)]
    [0.89, 0.11, 0.0, 0.0]
    """
    values = np.asarray(values, dtype=float)
    words, templates = values.shape
    if words < 2 or templates < 2:
        raise InputError(
            f"variance shares need at least 2 words and 2 templates; got {words} and {templates}"
        )
    weights = np.ones(words) if counts is None else np.asarray(counts, dtype=float)
    n = weights.sum(axis=-1)
    values = values - values.mean()  # sums of squares are then exact to rounding
    by_word, by_template = values.mean(axis=1), weights @ values / n[..., None]
    grand = weights @ by_word / n
    # sums of squares of means, each as often as it counts, and of single values
    ss_word = templates * (weights @ by_word**2)
    ss_template = n * (by_template**2).sum(axis=-1)
    ss_grand = n * templates * grand**2
    ss_rest = weights @ (values**2).sum(axis=1) - ss_word - ss_template + ss_grand
    ms_word = (ss_word - ss_grand) / (n - 1)
    ms_template = (ss_template - ss_grand) / (templates - 1)
    ms_rest = ss_rest / ((n - 1) * (templates - 1))
    image = weights @ np.broadcast_to(image_variance, values.shape).mean(axis=1) / n
    parts = np.maximum(
        [(ms_word - ms_rest) / templates, (ms_template - ms_rest) / n, ms_rest - image, image],
        0.0,
    )
    total = parts.sum(axis=0)
    return VarianceShares(
        *np.divide(parts, total, out=np.full_like(parts, np.nan), where=total > 0)
    )
