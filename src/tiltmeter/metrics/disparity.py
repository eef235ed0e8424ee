"""Rates by group and the gaps between them; the measure and the grouping stay apart."""

from __future__ import annotations

from collections.abc import Callable

from tiltmeter.metrics.arrays import as_groups, flat, like, namespace
from tiltmeter.types import Array, Groups


def by_group(measure: Callable[[Array], Array], values: Array, groups: Groups | Array) -> Array:
    """`measure` of the values of each group; NaN for a group without any.

    >>> import numpy as np
    >>> by_group(np.median, [1.0, 2.0, 5.0, 9.0], [0, 0, 0, 1])
    array([2., 9.])
    """
    values = flat(values, "values")
    groups = as_groups(groups, len(values))
    xp = namespace(values)
    codes = like(values, groups.codes, "int64")
    found = []
    for code, count in enumerate(groups.counts):
        one = measure(values[codes == code]) if count else float("nan")
        found.append(like(values, one))
    return xp.stack(found)


def group_rates(outcomes: Array, groups: Groups | Array) -> Array:
    """Mean outcome of each group: the rate, for outcomes of 0 and 1.

    >>> group_rates([1, 0, 1, 1], [0, 0, 1, 1])
    array([0.5, 1. ])
    """
    return by_group(namespace(outcomes).mean, outcomes, groups)


def gaps(rates: Array) -> Array:
    """Rate of each group minus rate of each other: groups x groups, antisymmetric; ideal 0.

    `gaps(rates).max()` is the largest gap.

    >>> gaps([0.5, 1.0])
    array([[ 0. , -0.5],
           [ 0.5,  0. ]])
    """
    rates = flat(rates, "rates")
    return rates[:, None] - rates[None, :]
