"""Every image with every text is what pairs of them are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiltmeter.models.match_grid import match_grid
from tiltmeter.types import GridMatcher


def check_grid(model: Any, images: Any, texts: Sequence[str]) -> None:
    """The grid of a model that reads images once is that of a model that reads them per pair."""

    class PairByPair:
        match = staticmethod(model.match)

    assert isinstance(model, GridMatcher)
    grid = match_grid(model, images, texts)
    assert grid.shape == (len(images), len(texts))
    assert grid.std(axis=0).min() > 1e-4  # of different images
    assert np.abs(grid - match_grid(PairByPair(), images, texts)).max() < 1e-5
