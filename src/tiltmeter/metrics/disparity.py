"""Rates by group and the gaps between them: any measure over any groups."""

from __future__ import annotations

from collections.abc import Callable

from tiltmeter.metrics.arrays import as_groups, flat, like, namespace
from tiltmeter.types import Array, Groups


def by_group(measure: Callable[[Array], Array], values: Array, groups: Groups | Array) -> Array:
    """Apply a measure to the values of each group.

    Parameters
    ----------
    measure : callable
        Takes a flat array and returns a number.
    values : array of shape (items,)
        One value per item.
    groups : Groups or array of shape (items,)
        The group of each item.

    Returns
    -------
    array of shape (groups,)
        NaN for a group without items.

    Raises
    ------
    InputError
        `values` is not flat, or `groups` does not label every item.

    Examples
    --------
    >>> import numpy as np
    >>> by_group(np.median, [1.0, 2.0, 5.0, 9.0], [0, 0, 0, 1])
    array([2., 9.])
    """
    values = flat(values, "values")
    groups = as_groups(groups, len(values))
    xp = namespace(values)
    codes = like(values, groups.codes, "int64")
    measured = [
        measure(values[codes == code]) if count else float("nan")
        for code, count in enumerate(groups.counts)
    ]
    return xp.stack([like(values, value) for value in measured])


def group_rates(outcomes: Array, groups: Groups | Array) -> Array:
    """Mean outcome of each group: the rate, for outcomes of 0 and 1.

    Parameters
    ----------
    outcomes : array of shape (items,)
        One outcome per item.
    groups : Groups or array of shape (items,)
        The group of each item.

    Returns
    -------
    array of shape (groups,)
        NaN for a group without items.

    Raises
    ------
    InputError
        `outcomes` is not flat, or `groups` does not label every item.

    Examples
    --------
    >>> group_rates([1, 0, 1, 1], [0, 0, 1, 1])
    array([0.5, 1. ])
    """
    return by_group(namespace(outcomes).mean, outcomes, groups)


def gaps(rates: Array) -> Array:
    """Rate of each group minus the rate of each other group.

    Parameters
    ----------
    rates : array of shape (groups,)
        As `group_rates` returns them.

    Returns
    -------
    array of shape (groups, groups)
        Antisymmetric; ideal 0. `gaps(rates).max()` is the largest gap.

    Raises
    ------
    InputError
        `rates` is not flat.

    Examples
    --------
    >>> gaps([0.5, 1.0])
    array([[ 0. , -0.5],
           [ 0.5,  0. ]])
    """
    rates = flat(rates, "rates")
    return rates[:, None] - rates[None, :]
