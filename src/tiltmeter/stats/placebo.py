"""Neutral words (placebos), the second reference: how much bias do words show that cannot have any?

Thousands of faces differ along almost any direction, so a word can beat the permutation null
without any stereotype behind it. A result has to be beyond neutral words too, in the same template
and of the same part of speech.
"""

from __future__ import annotations

import numpy as np

from tiltmeter.types import Floats

BEYOND = "beyond neutral words"
NOT_BEYOND = "not beyond neutral words"
WITHIN_CHANCE = "within chance"
LEVEL = 0.05
#: With fewer neutral words the smallest possible p_placebo, 2 / (R + 1), is above the level.
FEWEST_PLACEBOS = 39


def p_placebo(values: Floats, placebos: Floats) -> Floats:
    """P-value of words against neutral words, two-sided.

    min(1, 2 min(share of placebos >= value, share <= value)), shares as (b + 1) / (R + 1): around
    the neutral words' own distribution, whose mean need not be 0.

    Parameters
    ----------
    values : array
        Values of words; NaN has no p-value.
    placebos : array of shape (placebos,)
        Values of neutral words; NaN does not count.

    Returns
    -------
    array
        P-values, of the shape of `values`; NaN without neutral words.

    Examples
    --------
    >>> p_placebo(np.array([0.9, 0.5]), np.linspace(0, 0.8, 99))
    array([0.02, 0.76])
    """
    values = np.asarray(values, dtype=float)
    ordered = np.sort(placebos[~np.isnan(placebos)])
    count = len(ordered)
    if count == 0:
        return np.full(values.shape, np.nan)
    above = count - np.searchsorted(ordered, values, side="left")
    below = np.searchsorted(ordered, values, side="right")
    p = np.minimum(1.0, 2 * (np.minimum(above, below) + 1) / (count + 1))
    return np.where(np.isnan(values), np.nan, p)


def leave_one_out(placebos: Floats) -> Floats:
    """`p_placebo` of each neutral word against the others: about 5% should be below .05.

    Parameters
    ----------
    placebos : array of shape (placebos,)
        Values of neutral words; NaN stays NaN.

    Returns
    -------
    array of shape (placebos,)
        P-values.

    Examples
    --------
    >>> float((leave_one_out(np.random.default_rng(0).normal(size=200)) <= 0.05).mean())
    0.05
    """
    placebos = np.asarray(placebos, dtype=float)
    ordered = np.sort(placebos[~np.isnan(placebos)])
    # shares among the others: each is counted once in its own sample
    above = len(ordered) - np.searchsorted(ordered, placebos, side="left") - 1
    below = np.searchsorted(ordered, placebos, side="right") - 1
    p = np.minimum(1.0, 2 * (np.minimum(above, below) + 1) / max(len(ordered), 1))
    return np.where(np.isnan(placebos), np.nan, p)


def verdict(p_fwer: float, p_placebo: float, signs: Floats | None = None) -> str | None:
    """The verdict on one association.

    Parameters
    ----------
    p_fwer : float
        Family-wise p-value of the permutation test.
    p_placebo : float
        P-value against neutral words.
    signs : array, optional
        Values of the same metric for other seeds or checkpoints, whose signs must agree.

    Returns
    -------
    str or None
        `beyond neutral words` (beyond permutations and neutral words), `not beyond neutral words`,
        `within chance`, or None where it cannot be decided.

    Examples
    --------
    >>> verdict(0.001, 0.4)
    'not beyond neutral words'
    """
    if np.isnan(p_fwer):
        return None
    if p_fwer > LEVEL:
        return WITHIN_CHANCE
    if np.isnan(p_placebo):
        return None  # no neutral words to compare with: nothing can be beyond them
    agree = signs is None or len(np.unique(np.sign(signs))) == 1
    return BEYOND if p_placebo <= LEVEL and agree else NOT_BEYOND


def verdicts(p_fwer: Floats, p_placebo: Floats) -> Floats:
    """`verdict` of many associations.

    Parameters
    ----------
    p_fwer, p_placebo : array
        As for `verdict`.

    Returns
    -------
    array of object
        Verdicts; None where it cannot be decided.

    Examples
    --------
    >>> verdicts(np.array([0.001, 0.2, np.nan]), np.array([0.4, np.nan, 0.1])).tolist()
    ['not beyond neutral words', 'within chance', None]
    """
    beyond = np.where(p_placebo <= LEVEL, BEYOND, NOT_BEYOND).astype(object)
    beyond[np.isnan(p_placebo)] = None
    found = np.where(p_fwer > LEVEL, WITHIN_CHANCE, beyond)
    found[np.isnan(p_fwer)] = None
    return found
