"""From representation to result: does the intrinsic measure order queries as the extrinsic does?"""

from __future__ import annotations

import numpy as np

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.arrays import as_groups, flat, like, namespace
from tiltmeter.types import Array, Floats, Groups, Ints

#: What a group's items are compared with: all items, their own among them, or the others.
MIXED = ("all", "rest")
#: A spread of cosines this small is what rounding leaves of none at all.
ROUNDING = 1e-12


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


def spearman_rows(x: Floats, y: Floats) -> Floats:
    """Spearman's rho of each row of x with the same row of y.

    Columns that are NaN in a row of x are left out of that row.

    >>> spearman_rows([[1, 2, 3, 4], [1, 1, 1, 1]], [[1, 3, 2, 4], [1, 2, 3, 4]]).round(3)
    array([0.8, nan])
    """
    from tiltmeter.metrics import numpy_kernels as loops

    x, y = np.ascontiguousarray(x, np.float64), np.ascontiguousarray(y, np.float64)
    undefined = np.isnan(x)
    middle = (x.shape[1] + 1) / 2
    a, b = (loops.mean_ranks(one) - middle for one in (x, y))
    both, of_a, of_b = (np.einsum("ij,ij->i", *pair) for pair in ((a, b), (a, a), (b, b)))
    scale = np.sqrt(of_a * of_b)
    rho = np.divide(both, scale, out=np.full(len(x), np.nan), where=scale > 0)
    for row in np.flatnonzero(undefined.any(axis=1)):  # hardly ever
        rho[row] = spearman(x[row, ~undefined[row]], y[row, ~undefined[row]])[0]
    return np.asarray(rho)


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


def spearman_draws(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Spearman's rho of samples that hold each query as often as a row of `weights` says.

    >>> import numpy as np
    >>> spearman_draws([1, 2, 3, 4], [1, 3, 2, 4], np.array([[1, 1, 1, 1], [2, 0, 0, 1]])).round(3)
    array([0.8, 1. ])
    """
    weights = np.asarray(weights, dtype=float)
    total = weights.sum(axis=1, keepdims=True)
    a, b = (_drawn_ranks(flat(one, "x"), weights) - (total + 1) / 2 for one in (x, y))
    both, of_a, of_b = ((weights * one).sum(axis=1) for one in (a * b, a * a, b * b))
    scale = np.sqrt(of_a * of_b)
    return np.asarray(np.divide(both, scale, out=np.full(len(scale), np.nan), where=scale > 0))


def _drawn_ranks(x: Floats, weights: Floats) -> Floats:
    """Mean ranks of the queries in each draw: no draw is sorted, since x is sorted once."""
    values, place = np.unique(x, return_inverse=True)
    order = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place, minlength=len(values)))
    upto = np.cumsum(weights[:, order], axis=1)[:, ends - 1]
    below = np.concatenate([np.zeros((len(weights), 1)), upto[:, :-1]], axis=1)
    return np.asarray(((below + upto + 1) / 2)[:, place])


def valence_effects(cosines: Floats, sets: Ints) -> Floats:
    """SC-EAT of queries from their cosines, queries x items, for several sets of items.

    `sets` are columns of the cosines, sets x 2 x items: pleasant, then unpleasant. The answer is
    queries x sets.

    >>> valence_effects([[0.9, 0.7, 0.1, 0.3]], [[[0, 1], [2, 3]]]).round(3)
    array([[1.643]])
    """
    from tiltmeter.metrics import numpy_kernels as loops

    x, columns = np.asarray(cosines, dtype=np.float64), np.asarray(sets)
    gap, spread = loops.set_gaps(x, columns)
    return _over(gap, spread)


def group_effects(cosines: Floats, labels: Ints, *, groups: int, mixed: str) -> Floats:
    """SC-EAT of each group's items against the mixed set, for several ways to label the items.

    `cosines` is queries x items, `labels` ways x items; the answer is queries x ways x groups. The
    mixed set is `all` items, the group's among them, or the `rest`. The spread is over all items,
    which both sets together are: so the two readings differ by a factor, 1 - the group's share.

    >>> group_effects([[0.9, 0.7, 0.1, 0.3]], [[0, 0, 1, 1]], groups=2, mixed="rest").round(3)
    array([[[ 1.643, -1.643]]])
    """
    if mixed not in MIXED:
        raise UnknownNameError("mixed set", mixed, MIXED)
    x, labels = np.asarray(cosines, dtype=np.float64), np.asarray(labels)
    member = (labels[..., None] == np.arange(groups)).transpose(1, 0, 2).astype(float)
    counts = member.sum(axis=0)  # ways x groups
    mean = x.mean(axis=1, keepdims=True)
    sums = ((x - mean) @ member.reshape(len(member), -1)).reshape(len(x), *counts.shape)
    gap = _over(sums, counts)  # to the mean of all
    if mixed == "rest":
        gap = _over(gap, 1 - counts / x.shape[1])
    return _over(gap, x.std(axis=1, ddof=1)[:, None, None])


def z_scores(means: Floats) -> Floats:
    """Group means as z-scores over the groups, with n below: so their squares sum to n.

    The published ones do (Figure 6: -1.43, -1.31, .44, .45, 1.21, and .64 that the sum of 0 asks
    for).

    >>> z_scores([1.0, 2.0, 3.0]).round(3)
    array([-1.225,  0.   ,  1.225])
    """
    x = np.asarray(means, dtype=float)
    return _over(x - x.mean(), np.broadcast_to(x.std(), x.shape))


def _over(top: Floats, bottom: Floats) -> Floats:
    top, bottom = np.broadcast_arrays(top, bottom)
    found = np.full(top.shape, np.nan)
    return np.asarray(np.divide(top, bottom, out=found, where=bottom > ROUNDING))


def _pearson(x: Array, y: Array) -> Array:
    if len(x) < 2:
        return x.sum() * float("nan") + float("nan")
    x, y = x - x.mean(), y - y.mean()
    scale = ((x * x).sum() * (y * y).sum()) ** 0.5
    return (x * y).sum() / scale if scale > 0 else scale * float("nan")
