"""Matching logits of every image with every text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.types import Floats, GridMatcher, Matcher


def match_grid(model: Matcher, images: Any, texts: Sequence[str]) -> Floats:
    """Score every image with every text; each image is read once where the model can.

    Parameters
    ----------
    model
        A matcher.
    images
        Images, as the model takes them.
    texts
        Texts.

    Returns
    -------
    array of shape (images, texts)
        Logits: the higher, the better they match.
    """
    if isinstance(model, GridMatcher):
        return np.asarray(to_numpy(model.match_grid(images, texts)), float)
    columns = [to_numpy(model.match(images, [text] * len(images))) for text in texts]
    return np.stack(columns, axis=1).astype(float)
