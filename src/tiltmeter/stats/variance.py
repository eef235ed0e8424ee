"""Variance components: does a value vary with the word, the template, or the sample of images?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.types import Floats


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


def variance_shares(values: Floats, image_variance: Floats | float) -> VarianceShares:
    """Variance components of values of words x templates, by the method of moments.

    Parameters
    ----------
    values : array of shape (..., words, templates)
        One value per prompt.
    image_variance : float or array of the shape of `values`
        Sampling variance of a value, from a bootstrap over images.

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
    words, templates = values.shape[-2:]
    if words < 2 or templates < 2:
        raise InputError(
            f"variance shares need at least 2 words and 2 templates; got {words} and {templates}"
        )
    grand = values.mean(axis=(-2, -1))[..., None]
    by_word, by_template = values.mean(axis=-1), values.mean(axis=-2)
    residual = values - by_word[..., None] - (by_template - grand)[..., None, :]
    ms_word = templates * ((by_word - grand) ** 2).sum(axis=-1) / (words - 1)
    ms_template = words * ((by_template - grand) ** 2).sum(axis=-1) / (templates - 1)
    ms_rest = (residual**2).sum(axis=(-2, -1)) / ((words - 1) * (templates - 1))
    image = np.broadcast_to(image_variance, values.shape).mean(axis=(-2, -1))
    parts = np.maximum(
        [(ms_word - ms_rest) / templates, (ms_template - ms_rest) / words, ms_rest - image, image],
        0.0,
    )
    total = parts.sum(axis=0)
    return VarianceShares(
        *np.divide(parts, total, out=np.full_like(parts, np.nan), where=total > 0)
    )
