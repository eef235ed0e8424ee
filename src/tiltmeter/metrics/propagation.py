"""From representation to result: does the intrinsic measure order queries as the extrinsic does?"""

from __future__ import annotations

from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import as_groups, flat, like, namespace
from tiltmeter.types import Array, Groups


def spearman(x: Array, y: Array, groups: Groups | Array | None = None) -> Array:
    """Spearman's rho of x and y within each group (over all, without groups); one a group.

    Equal values share their mean rank. NaN where a group has fewer than two items or one side
    does not vary.

    >>> spearman([1, 2, 3, 4], [1, 3, 2, 4], groups=[0, 0, 0, 0]).round(3)
    array([0.8])
    """
    x, y = flat(x, "x"), flat(y, "y")
    if len(x) != len(y):
        raise InputError(f"x has {len(x)} values, y has {len(y)}: they must be of the same queries")
    xp = namespace(x)
    if xp.isnan(x).any() or xp.isnan(y).any():
        raise InputError("x and y must not hold NaN: leave out the queries that have no value")
    if groups is None:
        groups = [0] * len(x)
    groups = as_groups(groups, len(x))
    codes = like(x, groups.codes, "int64")
    rho = [_pearson(mean_ranks(x[codes == g]), mean_ranks(y[codes == g]))
           for g in range(len(groups.names))]  # fmt: skip
    return namespace(x).stack(rho)


def mean_ranks(x: Array) -> Array:
    """Ranks from 1; equal values share the mean of theirs.

    >>> import numpy as np
    >>> mean_ranks(np.array([10.0, 20.0, 20.0, 5.0]))
    array([2. , 3.5, 3.5, 1. ])
    """
    xp = namespace(x)
    ordered = xp.sort(x) if xp.__name__ == "numpy" else xp.sort(x).values
    below = xp.searchsorted(ordered, x, side="left")
    upto = xp.searchsorted(ordered, x, side="right")
    return like(x, below + upto + 1) / 2


def _pearson(x: Array, y: Array) -> Array:
    if len(x) < 2:
        return x.sum() * float("nan") + float("nan")
    x, y = x - x.mean(), y - y.mean()
    scale = ((x * x).sum() * (y * y).sum()) ** 0.5
    return (x * y).sum() / scale if scale > 0 else scale * float("nan")
