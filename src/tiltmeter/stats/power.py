"""Power analysis: which bias can an audit detect, given the sizes of the groups?"""

from __future__ import annotations

from typing import Any

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.stats.lift_verdict import RULE, enough_images
from tiltmeter.types import Floats, Ints


def association_count(words: int, groups: int) -> int:
    """Number of associations of words with groups that are tested.

    Parameters
    ----------
    words, groups : int
        How many there are. Of two groups, one mirrors the other.

    Returns
    -------
    int
        Number of tests.

    Examples
    --------
    >>> association_count(33, 2), association_count(33, 9)
    (33, 297)
    """
    return words * (1 if groups == 2 else groups)


def c_asc_power(effect: Any, sizes: Ints, *, level: float = 0.05, tests: int = 1) -> Floats:
    """Probability that the two-sided test of C-ASC detects a true effect, for each group.

    Parameters
    ----------
    effect : float or array of shape (groups,)
        The true C-ASC.
    sizes : array of int of shape (groups,)
        Sizes of the groups.
    level : float
        Level of the test.
    tests : int
        Number of tests; the level is divided by it (Bonferroni), an upper bound on what maxT costs.

    Returns
    -------
    array of shape (groups,)
        From `level` to 1.

    Examples
    --------
    >>> c_asc_power(0.2, [500, 500]).round(3)
    array([0.885, 0.885])
    """
    from scipy.special import ndtr

    edge, spread = _critical(level, tests), _spread(sizes)
    z = np.asarray(effect) / spread
    return np.asarray(ndtr(z - edge) + ndtr(-z - edge))


def smallest_effect(
    sizes: Ints, *, power: float = 0.8, level: float = 0.05, tests: int = 1
) -> Floats:
    """The smallest C-ASC that is detected with a given power, for each group against the rest.

    Parameters
    ----------
    sizes : array of int of shape (groups,)
        Sizes of the groups.
    power : float
        Probability of detecting it.
    level : float
        Level of the test.
    tests : int
        Number of tests; the level is divided by it (Bonferroni), an upper bound on what maxT costs.

    Returns
    -------
    array of shape (groups,)
        NaN for a group that is empty or all.

    Examples
    --------
    >>> smallest_effect([5162, 5792]).round(3)
    array([0.054, 0.054])
    """
    from scipy.special import ndtri

    return np.asarray((_critical(level, tests) + ndtri(power)) * _spread(sizes))


def images_needed(
    effect: float, share: float, *, power: float = 0.8, level: float = 0.05, tests: int = 1
) -> int:
    """Number of images that an audit needs to detect an effect.

    Parameters
    ----------
    effect : float
        The true C-ASC.
    share : float
        Share of the group among the images.
    power : float
        Probability of detecting it.
    level : float
        Level of the test.
    tests : int
        Number of tests; the level is divided by it (Bonferroni), an upper bound on what maxT costs.

    Returns
    -------
    int
        Number of images of all groups.

    Raises
    ------
    InputError
        The share is not between 0 and 1, or the effect is 0.

    Examples
    --------
    >>> images_needed(0.1, share=0.5)
    3140
    """
    if not 0 < share < 1 or effect == 0:
        raise InputError(
            f"the share must be between 0 and 1 and the effect not 0; got {share} and {effect}"
        )
    from scipy.special import ndtri

    z = _critical(level, tests) + ndtri(power)
    return int(np.ceil((z / effect) ** 2 / (share * (1 - share))))


def detectable_lift(sizes: Ints, *, spread: float = 1.0, power: float = 0.8) -> Floats:
    """The smallest lift that images can show to be above 1.25x, for each group.

    It is the image test of a verdict on lift. The comparison with neutral words requires more, and
    depends on the model.

    Parameters
    ----------
    sizes : array of int of shape (groups,)
        Sizes of the groups. Groups with fewer images than a verdict takes are left out.
    spread : float
        Standard deviation of a word's score within a group, in nats, relative to neutral words.
    power : float
        Probability that the test finds it.

    Returns
    -------
    array of shape (groups,)
        In nats; NaN for groups that are left out.

    Examples
    --------
    >>> np.exp(detectable_lift([200, 200])).round(2)
    array([1.66, 1.66])
    >>> np.exp(detectable_lift([200, 200, 12])).round(2)
    array([1.66, 1.66,  nan])
    """
    from scipy.special import ndtri
    from scipy.stats import t as student

    sizes = np.asarray(sizes)
    kept = enough_images(sizes)
    found = np.full(len(sizes), np.nan)
    if len(kept) > 1:
        variance = spread**2 / sizes[kept]
        k = len(kept)
        error = np.sqrt(variance + (variance.sum() - variance) / (k - 1) ** 2)
        level = RULE.class_p / (2 * (1 if k == 2 else k))
        edge = student.isf(level, sizes[kept] - 1) + ndtri(power)
        found[kept] = RULE.smallest + edge * error
    return found


def _critical(level: float, tests: int) -> float:
    from scipy.special import ndtri

    return float(-ndtri(level / tests / 2))


def _spread(sizes: Ints) -> Floats:
    """Standard error of C-ASC without bias: 1 / sqrt(n p (1 - p))."""
    sizes = np.asarray(sizes, dtype=float)
    n = sizes.sum()
    inside = sizes * (n - sizes) / n
    return 1 / np.sqrt(np.where(inside > 0, inside, np.nan))
