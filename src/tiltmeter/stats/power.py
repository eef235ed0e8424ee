"""How much can an audit see? Answered before it is made, from the sizes of the groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.types import Floats, Ints


def association_count(words: int, groups: int) -> int:
    """How many associations of words with groups are tested: of two groups one mirrors the other.

    >>> association_count(33, 2), association_count(33, 9)
    (33, 297)
    """
    return words * (1 if groups == 2 else groups)


def c_asc_power(effect: Any, sizes: Ints, *, level: float = 0.05, tests: int = 1) -> Floats:
    """Chance that the two-sided test of C-ASC finds a true `effect`, for each group.

    `tests` divides the level (Bonferroni): an upper bound on what maxT costs.

    >>> c_asc_power(0.2, [500, 500]).round(3)
    array([0.885, 0.885])
    """
    from scipy.special import ndtr

    edge, spread = _critical(level, tests), _spread(sizes)
    away = np.asarray(effect) / spread
    return np.asarray(ndtr(away - edge) + ndtr(-away - edge))


def smallest_effect(
    sizes: Ints, *, power: float = 0.8, level: float = 0.05, tests: int = 1
) -> Floats:
    """The C-ASC that is found with the given power, for each group against the rest.

    >>> smallest_effect([5162, 5792]).round(3)
    array([0.054, 0.054])
    """
    from scipy.special import ndtri

    return np.asarray((_critical(level, tests) + ndtri(power)) * _spread(sizes))


def images_needed(
    effect: float, share: float, *, power: float = 0.8, level: float = 0.05, tests: int = 1
) -> int:
    """How many images an audit needs to see `effect` for a group of that share.

    >>> images_needed(0.1, share=0.5)
    3140
    """
    if not 0 < share < 1 or effect == 0:
        raise InputError(f"needs 0 < share < 1 and an effect other than 0; got {share}, {effect}")
    from scipy.special import ndtri

    z = _critical(level, tests) + ndtri(power)
    return int(np.ceil((z / effect) ** 2 / (share * (1 - share))))


def _critical(level: float, tests: int) -> float:
    from scipy.special import ndtri

    return float(-ndtri(level / tests / 2))


def _spread(sizes: Ints) -> Floats:
    """Standard error of C-ASC without tilt: 1 / sqrt(n p (1 - p))."""
    sizes = np.asarray(sizes, dtype=float)
    n = sizes.sum()
    inside = sizes * (n - sizes) / n
    return 1 / np.sqrt(np.where(inside > 0, inside, np.nan))
