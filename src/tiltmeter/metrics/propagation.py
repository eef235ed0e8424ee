"""From embeddings to results: does an intrinsic measure order queries as an extrinsic one does?"""

from __future__ import annotations

import numpy as np

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.arrays import as_groups, flat, like, namespace
from tiltmeter.types import Array, Floats, Groups, Ints

#: What a group's items are compared with: all items, including its own, or the others.
MIXED = ("all", "rest")
#: A standard deviation of cosines this small is zero up to rounding.
ROUNDING = 1e-12


def spearman(x: Array, y: Array, groups: Groups | Array | None = None) -> Array:
    """Spearman's rank correlation of x and y within each group.

    Parameters
    ----------
    x, y : array of shape (queries,)
        Two values per query. Equal values share their mean rank.
    groups : Groups or array of shape (queries,), optional
        The group of each query; one group of all without it.

    Returns
    -------
    array of shape (groups,)
        NaN where a group has fewer than two queries, or x or y does not vary.

    Raises
    ------
    InputError
        The lengths differ, or a value is NaN.

    Examples
    --------
    >>> spearman([1, 2, 3, 4], [1, 3, 2, 4], groups=[0, 0, 0, 0]).round(3)
    array([0.8])
    """
    x, y = flat(x, "x"), flat(y, "y")
    if len(x) != len(y):
        raise InputError(f"x has {len(x)} values, y has {len(y)}: give one of each per query")
    xp = namespace(x)
    if xp.isnan(x).any() or xp.isnan(y).any():
        raise InputError("x and y must not contain NaN: leave out the queries without a value")
    if groups is None:
        groups = np.zeros(len(x), np.int64)
    groups = as_groups(groups, len(x))
    codes = like(x, groups.codes, "int64")
    rho = [_pearson(mean_ranks(x[codes == g]), mean_ranks(y[codes == g]))
           for g in range(len(groups.names))]  # fmt: skip
    return namespace(x).stack(rho)


def spearman_rows(x: Floats, y: Floats) -> Floats:
    """Spearman's rank correlation of each row of x with the same row of y.

    Parameters
    ----------
    x, y : array of shape (rows, queries)
        Columns that are NaN in a row of x are left out of that row.

    Returns
    -------
    array of shape (rows,)
        NaN where a row does not vary.

    Examples
    --------
    >>> spearman_rows([[1, 2, 3, 4], [1, 1, 1, 1]], [[1, 3, 2, 4], [1, 2, 3, 4]]).round(3)
    array([0.8, nan])
    """
    from tiltmeter.metrics import numpy_kernels as loops

    x, y = np.ascontiguousarray(x, np.float64), np.ascontiguousarray(y, np.float64)
    undefined = np.isnan(x)
    middle = (x.shape[1] + 1) / 2
    a, b = (loops.mean_ranks(values) - middle for values in (x, y))
    both, of_a, of_b = (np.einsum("ij,ij->i", *pair) for pair in ((a, b), (a, a), (b, b)))
    scale = np.sqrt(of_a * of_b)
    rho = np.divide(both, scale, out=np.full(len(x), np.nan), where=scale > 0)
    for row in np.flatnonzero(undefined.any(axis=1)):  # rare
        rho[row] = spearman(x[row, ~undefined[row]], y[row, ~undefined[row]])[0]
    return np.asarray(rho)


def mean_ranks(x: Array) -> Array:
    """Ranks from 1; equal values share their mean rank.

    >>> mean_ranks(np.array([10.0, 20.0, 20.0, 5.0]))
    array([2. , 3.5, 3.5, 1. ])
    """
    xp = namespace(x)
    ordered = xp.sort(x) if xp.__name__ == "numpy" else xp.sort(x).values
    below = xp.searchsorted(ordered, x, side="left")
    upto = xp.searchsorted(ordered, x, side="right")
    return like(x, below + upto + 1) / 2


def spearman_resamples(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Spearman's rank correlation of bootstrap resamples.

    Parameters
    ----------
    x, y : array of shape (queries,)
        Two values per query.
    weights : array of shape (resamples, queries)
        How often each resample contains each query.

    Returns
    -------
    array of shape (resamples,)
        NaN where a resample does not vary.

    Examples
    --------
    >>> weights = np.array([[1, 1, 1, 1], [2, 0, 0, 1]])
    >>> spearman_resamples([1, 2, 3, 4], [1, 3, 2, 4], weights).round(3)
    array([0.8, 1. ])
    """
    weights = np.asarray(weights, dtype=float)
    total = weights.sum(axis=1, keepdims=True)
    a, b = (_drawn_ranks(flat(values, "x"), weights) - (total + 1) / 2 for values in (x, y))
    both, of_a, of_b = ((weights * product).sum(axis=1) for product in (a * b, a * a, b * b))
    scale = np.sqrt(of_a * of_b)
    return np.asarray(np.divide(both, scale, out=np.full(len(scale), np.nan), where=scale > 0))


def spearman_without_each(x: Floats, y: Floats) -> Floats:
    """Spearman's rank correlation without each query in turn.

    Parameters
    ----------
    x, y : array of shape (queries,)
        Two values per query.

    Returns
    -------
    array of shape (queries,)
        NaN where the others do not vary.

    Examples
    --------
    >>> spearman_without_each([1, 2, 3, 9], [1, 3, 2, 9]).round(3)
    array([0.5, 1. , 1. , 0.5])
    """
    n = len(x)
    blocks = []
    for start in range(0, n, 256):
        weights = np.ones((min(256, n - start), n))
        weights[np.arange(len(weights)), start + np.arange(len(weights))] = 0
        blocks.append(spearman_resamples(x, y, weights))
    return np.concatenate(blocks)


def spearman_p(rho: float, n: int) -> float:
    """Two-sided p of a rank correlation if the two values of each query were unrelated.

    Parameters
    ----------
    rho : float
        Spearman's rank correlation.
    n : int
        Queries, taken as independent.

    Returns
    -------
    float
        By Student's t with n - 2 degrees of freedom; NaN below three queries.

    Examples
    --------
    >>> round(spearman_p(0.5, 20), 4)
    0.0248
    """
    from scipy.special import stdtr

    if n < 3:
        return float("nan")
    t = abs(rho) * np.sqrt((n - 2) / max(1 - rho**2, 1e-300))
    return float(2 * stdtr(n - 2, -t))


def _drawn_ranks(x: Floats, weights: Floats) -> Floats:
    """Mean ranks of the queries in each resample: x is sorted once, and no resample is."""
    values, place = np.unique(x, return_inverse=True)
    order = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place, minlength=len(values)))
    upto = np.cumsum(weights[:, order], axis=1)[:, ends - 1]
    below = np.concatenate([np.zeros((len(weights), 1)), upto[:, :-1]], axis=1)
    return np.asarray(((below + upto + 1) / 2)[:, place])


def valence_effects(cosines: Floats, sets: Ints) -> Floats:
    """SC-EAT of queries from their cosines, for several pairs of item sets.

    Parameters
    ----------
    cosines : array of shape (queries, items)
        Cosine of each query and item.
    sets : array of int of shape (pairs, 2, items per set)
        Columns of the cosines: pleasant items, then unpleasant ones.

    Returns
    -------
    array of shape (queries, pairs)
        NaN where all cosines are equal.

    Examples
    --------
    >>> valence_effects([[0.9, 0.7, 0.1, 0.3]], [[[0, 1], [2, 3]]]).round(3)
    array([[1.643]])
    """
    from tiltmeter.metrics import numpy_kernels as loops

    x, columns = np.asarray(cosines, dtype=np.float64), np.asarray(sets)
    gap, spread = loops.set_gaps(x, columns)
    return _over(gap, spread)


def group_effects(cosines: Floats, labels: Ints, *, groups: int, mixed: str) -> Floats:
    """SC-EAT of each group's items against a mixed set, for several labellings of the items.

    Parameters
    ----------
    cosines : array of shape (queries, items)
        Cosine of each query and item.
    labels : array of int of shape (labellings, items)
        The group of each item.
    groups : int
        Number of groups.
    mixed : {"all", "rest"}
        Compare with all items, including the group's own, or with the others. The standard
        deviation is over all items, so the two differ by the factor 1 - the group's share.

    Returns
    -------
    array of shape (queries, labellings, groups)
        NaN where all cosines are equal.

    Raises
    ------
    UnknownNameError
        `mixed` is neither.

    Examples
    --------
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
    """Group means as z-scores over the groups, dividing by n: their squares sum to n.

    The published ones do (Figure 6: -1.43, -1.31, .44, .45, 1.21, and .64, which a sum of 0
    requires).

    Parameters
    ----------
    means : array of shape (groups,)
        One mean per group.

    Returns
    -------
    array of shape (groups,)
        NaN if all means are equal.

    Examples
    --------
    >>> z_scores([1.0, 2.0, 3.0]).round(3)
    array([-1.225,  0.   ,  1.225])
    """
    x = np.asarray(means, dtype=float)
    return _over(x - x.mean(), np.broadcast_to(x.std(), x.shape))


def _over(top: Floats, bottom: Floats) -> Floats:
    top, bottom = np.broadcast_arrays(top, bottom)
    ratio = np.full(top.shape, np.nan)
    return np.asarray(np.divide(top, bottom, out=ratio, where=bottom > ROUNDING))


def _pearson(x: Array, y: Array) -> Array:
    if len(x) < 2:
        return x.sum() * float("nan") + float("nan")
    x, y = x - x.mean(), y - y.mean()
    scale = ((x * x).sum() * (y * y).sum()) ** 0.5
    return (x * y).sum() / scale if scale > 0 else scale * float("nan")
