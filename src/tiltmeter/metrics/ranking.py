"""Metrics of the ranking of items by score (Berg et al. 2022, App. B).

tau_k is the top k of a ranking, p_A the share of group A in it, q_A its desired share.
"""

from __future__ import annotations

import math

import numpy as np

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.arrays import as_groups, kernels, like, matrix, namespace, to_numpy
from tiltmeter.metrics.convention import CHOICES, Convention, choices_of, get_convention
from tiltmeter.metrics.summary import TopItems, check_k
from tiltmeter.types import Array, Floats, Groups

LOG_EPSILON = math.log(1e-10)  # skew of an absent group where p/q is taken as 1e-10


def composition(scores: Array, groups: Groups | Array, *, k: int, ties: str = "expected") -> Array:
    """Share of each group in the top k: p_A.

    Parameters
    ----------
    scores : array of shape (queries, items)
        Similarity of each query to each item.
    groups : Groups or array of shape (items,)
        The group of each item.
    k : int
        Size of the top of the ranking, from 1 to the number of items.
    ties : {"stable", "expected"}
        Equal scores keep the order of the rows, or counts are expected over all orders.

    Returns
    -------
    array of shape (queries, groups)
        Rows sum to 1.

    Raises
    ------
    InputError
        `scores` is not a finite matrix, `groups` does not label every item, or `k` is out of range.
    UnknownNameError
        A choice is not one of those listed.

    Examples
    --------
    >>> composition([[4, 3, 2, 1]], [0, 1, 0, 0], k=2)
    array([[0.5, 0.5]])
    """
    return top_counts(scores, groups, k=k, ties=ties) / k


def top_counts(scores: Array, groups: Groups | Array, *, k: int, ties: str) -> Array:
    """Number of items of each group in the top k.

    Parameters
    ----------
    scores : array of shape (queries, items)
        Similarity of each query to each item.
    groups : Groups or array of shape (items,)
        The group of each item.
    k : int
        Size of the top of the ranking, from 1 to the number of items.
    ties : {"stable", "expected"}
        Equal scores keep the order of the rows, or counts are expected over all orders.

    Returns
    -------
    array of shape (queries, groups)
        Rows sum to k.

    Raises
    ------
    InputError
        `scores` is not a finite matrix, `groups` does not label every item, or `k` is out of range.
    UnknownNameError
        A choice is not one of those listed.

    Examples
    --------
    >>> top_counts([[1, 1, 1, 0]], [0, 1, 1, 1], k=2, ties="stable")
    array([[1., 1.]])
    >>> top_counts([[1, 1, 1, 0]], [0, 1, 1, 1], k=2, ties="expected").round(3)
    array([[0.667, 1.333]])
    """
    _check("ties", ties)
    scores = matrix(scores, "scores", "queries", "items")
    check_k(k, scores.shape[1])
    return TopItems.of(scores, groups, k).counts(k, ties)


def skew(
    scores: Array,
    groups: Groups | Array,
    *,
    k: int | None = None,
    target: str | Array | None = None,
    empty: str | None = None,
    ties: str | None = None,
    convention: str | Convention | None = None,
) -> Array:
    """Skew of each group in the top k: Skew_A@k = ln(p_A / q_A).

    Parameters
    ----------
    scores : array of shape (queries, items)
        Similarity of each query to each item.
    groups : Groups or array of shape (items,)
        The group of each item.
    k : int
        Size of the top of the ranking, from 1 to the number of items.
    target : {"uniform", "prior"} or array of shape (groups,)
        The desired shares: equal, those of the dataset, or given ones that sum to 1.
    empty : {"floor", "bounded", "epsilon", "drop", "nan"}
        What an absent group counts for: see `metrics.convention.CHOICES`.
    ties : {"stable", "expected"}
        Equal scores keep the order of the rows, or counts are expected over all orders.
    convention : str or Convention, optional
        A named convention (`get_convention`) that answers what is not given here.

    Returns
    -------
    array of shape (queries, groups)
        Above 0 where a group is over-represented; ideal 0. NaN for a desired share of 0.

    Raises
    ------
    InputError
        `scores` is not a finite matrix, `groups` does not label every item, or `k` is out of range.
    UnknownNameError
        A choice is not one of those listed.

    Examples
    --------
    >>> ranking = [list(range(10, 0, -1))]
    >>> skew(ranking, [0, 0, 0, 1, 1, 0, 0, 1, 1, 1],
    ...      k=5, target="uniform", empty="nan", ties="stable").round(3)
    array([[ 0.182, -0.223]])
    """
    chosen = choices_of(convention, k=k, target=target, empty=empty, ties=ties)
    k, counts = chosen["k"], top_counts(scores, groups, k=chosen["k"], ties=chosen["ties"])
    q = _shares(counts, chosen["target"], groups)
    return skew_of_shares(counts / k, q, k=k, empty=chosen["empty"])


def max_skew(
    scores: Array,
    groups: Groups | Array,
    *,
    k: int | None = None,
    target: str | Array | None = None,
    empty: str | None = None,
    ties: str | None = None,
    absolute: bool | None = None,
    convention: str | Convention | None = None,
) -> Array:
    """Skew of the most over-represented group: MaxSkew@k = max_A Skew_A@k.

    Parameters
    ----------
    scores : array of shape (queries, items)
        Similarity of each query to each item.
    groups : Groups or array of shape (items,)
        The group of each item.
    k : int
        Size of the top of the ranking, from 1 to the number of items.
    target : {"uniform", "prior"} or array of shape (groups,)
        The desired shares: equal, those of the dataset, or given ones that sum to 1.
    empty : {"floor", "bounded", "epsilon", "drop", "nan"}
        What an absent group counts for: see `metrics.convention.CHOICES`.
    ties : {"stable", "expected"}
        Equal scores keep the order of the rows, or counts are expected over all orders.
    absolute : bool, optional
        Take max_A |Skew_A@k| instead; by default what the convention takes, or no.
    convention : str or Convention, optional
        A named convention (`get_convention`) that answers what is not given here.

    Returns
    -------
    array of shape (queries,)
        Ideal 0.

    Raises
    ------
    InputError
        `scores` is not a finite matrix, `groups` does not label every item, or `k` is out of range.
    UnknownNameError
        A choice is not one of those listed.

    Examples
    --------
    >>> max_skew([[4, 3, 2, 1]], [0, 0, 1, 1],
    ...          k=2, target="prior", empty="bounded", ties="stable").round(3)
    array([0.693])
    >>> max_skew([[4, 3, 2, 1]], ["man", "man", "woman", "woman"],
    ...          k=2, convention="tiltmeter").round(3)
    array([0.693])
    """
    if absolute is None:
        absolute = convention is not None and get_convention(convention).skew == "absolute"
    skews = skew(scores, groups, k=k, target=target, empty=empty, ties=ties, convention=convention)
    return largest_skew(skews, "absolute" if absolute else "max")


def min_skew(
    scores: Array,
    groups: Groups | Array,
    *,
    k: int | None = None,
    target: str | Array | None = None,
    empty: str | None = None,
    ties: str | None = None,
    convention: str | Convention | None = None,
) -> Array:
    """Skew of the most under-represented group: MinSkew@k = min_A Skew_A@k.

    Parameters
    ----------
    scores : array of shape (queries, items)
        Similarity of each query to each item.
    groups : Groups or array of shape (items,)
        The group of each item.
    k : int
        Size of the top of the ranking, from 1 to the number of items.
    target : {"uniform", "prior"} or array of shape (groups,)
        The desired shares: equal, those of the dataset, or given ones that sum to 1.
    empty : {"floor", "bounded", "epsilon", "drop", "nan"}
        What an absent group counts for: see `metrics.convention.CHOICES`.
    ties : {"stable", "expected"}
        Equal scores keep the order of the rows, or counts are expected over all orders.
    convention : str or Convention, optional
        A named convention (`get_convention`) that answers what is not given here.

    Returns
    -------
    array of shape (queries,)
        Ideal 0.

    Raises
    ------
    InputError
        `scores` is not a finite matrix, `groups` does not label every item, or `k` is out of range.
    UnknownNameError
        A choice is not one of those listed.

    Examples
    --------
    >>> min_skew([[4, 3, 2, 1]], [0, 0, 1, 1],
    ...          k=2, target="prior", empty="bounded", ties="stable").round(3)
    array([0.])
    """
    skews = skew(scores, groups, k=k, target=target, empty=empty, ties=ties, convention=convention)
    return -max_of(-skews)


def ndkl(
    scores: Array,
    groups: Groups | Array,
    *,
    target: str | Array | None = None,
    k: int | None = None,
    convention: str | Convention | None = None,
) -> Array:
    """NDKL: discounted mean of the KL divergence of the first i items from the desired shares.

    NDKL = (1/Z) sum_i KL(D_i || q) / log2(i + 1), with Z = sum_i 1 / log2(i + 1) and D_i the shares
    among the first i items. Equal scores keep the order of the rows; `tied_share` says how many
    there are.

    Parameters
    ----------
    scores : array of shape (queries, items)
        Similarity of each query to each item.
    groups : Groups or array of shape (items,)
        The group of each item.
    target : {"uniform", "prior"} or array of shape (groups,)
        The desired shares: equal, those of the dataset, or given ones that sum to 1.
    k : int, optional
        Sum over the first k ranks instead of the whole ranking.
    convention : str or Convention, optional
        A named convention (`get_convention`), for its target.

    Returns
    -------
    array of shape (queries,)
        From 0 up, in nats; ideal 0.

    Raises
    ------
    InputError
        `scores` is not a finite matrix, `groups` does not label every item, or `k` is out of range.
    UnknownNameError
        A choice is not one of those listed.

    Examples
    --------
    >>> ndkl([[4, 3, 2, 1]], [0, 1, 0, 1], target="uniform").round(4)
    array([0.2816])
    """
    scores = matrix(scores, "scores", "queries", "items")
    groups = as_groups(groups, scores.shape[1])
    loops = kernels(scores)
    if k is None:
        order = loops.rank(scores)
    else:
        check_k(k, scores.shape[1])
        order = loops.select(scores, k)
    codes = like(scores, groups.codes, "int64")
    target = choices_of(convention, target=target)["target"]
    log_target = like(scores, log_shares(target_shares(target, groups)))
    return loops.ndkl(order, codes, log_target)


def normalized_entropy(
    scores: Array, groups: Groups | Array, *, k: int, ties: str = "expected"
) -> Array:
    """Entropy of the shares of the top k, divided by its maximum: H(p) / ln(number of groups).

    Parameters
    ----------
    scores : array of shape (queries, items)
        Similarity of each query to each item.
    groups : Groups or array of shape (items,)
        The group of each item.
    k : int
        Size of the top of the ranking, from 1 to the number of items.
    ties : {"stable", "expected"}
        Equal scores keep the order of the rows, or counts are expected over all orders.

    Returns
    -------
    array of shape (queries,)
        1 for equal shares. The ideal is the dataset's own entropy, which need not be 1. NaN if
        there is one group only.

    Raises
    ------
    InputError
        `scores` is not a finite matrix, `groups` does not label every item, or `k` is out of range.
    UnknownNameError
        A choice is not one of those listed.

    Examples
    --------
    >>> normalized_entropy([[4, 3, 2, 1]], [0, 0, 1, 1], k=3).round(3)
    array([0.918])
    """
    return entropy_of_shares(composition(scores, groups, k=k, ties=ties))


def tied_share(scores: Array) -> Array:
    """Share of the items of each query whose score is not unique.

    Parameters
    ----------
    scores : array of shape (queries, items)
        Similarity of each query to each item.

    Returns
    -------
    array of shape (queries,)
        From 0 to 1.

    Raises
    ------
    InputError
        `scores` is not a finite matrix.

    Examples
    --------
    >>> tied_share([[3, 2, 2, 1]])
    array([0.5])
    """
    scores = matrix(scores, "scores", "queries", "items")
    loops = kernels(scores)
    return loops.tied_ranks(scores, loops.rank(scores))


# --- the same metrics from given top-k shares --------------------------------------------------


def skew_of_shares(p: Array, q: Array, *, k: int, empty: str) -> Array:
    """Skew ln(p / q) of given shares.

    Parameters
    ----------
    p : array of shape (..., groups)
        Shares of the top k.
    q : array of shape (groups,)
        Desired shares.
    k : int
        Size of the top.
    empty : {"floor", "bounded", "epsilon", "drop", "nan"}
        What an absent group counts for: see `metrics.convention.CHOICES`.

    Returns
    -------
    array of shape (..., groups)
        NaN for a group whose desired share is 0.

    Raises
    ------
    UnknownNameError
        `empty` is not one of those listed.

    Notes
    -----
    `floor` and `bounded` are a least share for every group: an expected count between 0 and 1,
    which only ties produce, is never worse than absence.

    Examples
    --------
    >>> p = np.array([40, 30, 20, 10, 0, 0, 0]) / 100
    >>> skew_of_shares(p, np.full(7, 1 / 7), k=100, empty="bounded").round(3)
    array([ 1.03 ,  0.742,  0.336, -0.357, -2.659, -2.659, -2.659])
    """
    _check("empty", empty)
    xp = namespace(p)
    q = q + 0 * p
    if empty == "floor":
        p = xp.where(p < 1 / k, 1 / k, p)
    elif empty == "bounded":
        p = xp.maximum(p, xp.where(q < 1 / k, q, 1 / k))
    absent = {"epsilon": LOG_EPSILON, "drop": 0.0}.get(empty, float("nan"))
    present, desired = p > 0, q > 0
    log_ratio = xp.log(xp.where(present, p, 1.0) / xp.where(desired, q, 1.0))
    return xp.where(desired, xp.where(present, log_ratio, absent), float("nan"))


def max_skew_of_shares(p: Array, q: Array, *, k: int, empty: str, skew: str) -> Array:
    """MaxSkew@k of given shares.

    Parameters
    ----------
    p : array of shape (..., groups)
        Shares of the top k.
    q : array of shape (groups,)
        Desired shares.
    k : int
        Size of the top.
    empty : {"floor", "bounded", "epsilon", "drop", "nan"}
        What an absent group counts for: see `metrics.convention.CHOICES`.
    skew : {"max", "absolute"}
        The largest skew, or the largest absolute skew.

    Returns
    -------
    array of shape (...)
        NaN where no group has a skew.

    Raises
    ------
    UnknownNameError
        `empty` or `skew` is not one of those listed.

    Examples
    --------
    >>> p, q = np.array([0.55, 0.45]), np.array([0.5, 0.5])
    >>> [float(max_skew_of_shares(p, q, k=100, empty="bounded", skew=choice).round(3))
    ...  for choice in ("max", "absolute")]
    [0.095, 0.105]
    """
    return largest_skew(skew_of_shares(p, q, k=k, empty=empty), skew)


def largest_skew(skews: Array, skew: str) -> Array:
    """The largest skew over groups, or with `skew="absolute"` the largest absolute one."""
    _check("skew", skew)
    return max_of(abs(skews) if skew == "absolute" else skews)


def entropy_of_shares(p: Array) -> Array:
    """Normalised entropy H(p) / ln(number of groups), over the last axis; NaN for one group.

    >>> entropy_of_shares(np.array([0.5, 0.5]))
    np.float64(1.0)
    """
    xp = namespace(p)
    if p.shape[-1] == 1:
        return p.sum(-1) * float("nan")
    h = -(p * xp.log(xp.where(p > 0, p, 1.0))).sum(-1)
    return h / math.log(p.shape[-1])


def kl_of_shares(p: Floats, q: Floats) -> Floats:
    """KL(p || q) in nats, over the last axis.

    >>> kl_of_shares(np.array([1.0, 0.0]), np.array([0.5, 0.5])).round(3)
    np.float64(0.693)
    """
    return np.asarray((p * np.log(np.where(p > 0, p, 1.0) / q)).sum(axis=-1))[()]


def max_of(values: Array) -> Array:
    """The largest value of the last axis that is not NaN; NaN where all are."""
    xp = namespace(values)
    defined = ~xp.isnan(values)
    top = xp.amax(xp.where(defined, values, float("-inf")), -1)
    return xp.where(defined.any(-1), top, float("nan"))


def target_shares(target: str | Array, groups: Groups) -> Floats:
    """The desired share q of each group.

    Parameters
    ----------
    target : {"uniform", "prior"} or array of shape (groups,)
        Equal shares, those of the dataset, or given ones.
    groups : Groups
        The groups of all items.

    Returns
    -------
    array of shape (groups,)
        They sum to 1.

    Raises
    ------
    InputError
        Given shares do not sum to 1, or are 0 for a group that has items.
    UnknownNameError
        `target` is another string.

    Examples
    --------
    >>> target_shares("prior", Groups.from_labels(["a", "b", "b", "b"]))
    array([0.25, 0.75])
    """
    if isinstance(target, str):
        _check("target", target)
        if target == "prior":
            return groups.shares
        return groups.shares * 0 + 1 / len(groups.names)
    shares = to_numpy(target).astype(float)
    if shares.shape != (len(groups.names),) or abs(shares.sum() - 1) > 1e-9 or shares.min() < 0:
        raise InputError(
            f"target must be 'uniform', 'prior', or {len(groups.names)} shares that sum to 1, one "
            f"per group; got {shares.tolist()}"
        )
    if (empty := (shares == 0) & (groups.counts > 0)).any():
        raise InputError(
            f"the target gives group {groups.names[int(empty.argmax())]!r} a share of 0, but it "
            "has items: remove those items, or give it a share"
        )
    return shares


def log_shares(shares: Floats) -> Floats:
    """ln q; 0 for groups whose share is 0, which have no items."""
    return np.log(np.where(shares > 0, shares, 1.0))


def _shares(reference: Array, target: str | Array, groups: Groups | Array) -> Array:
    groups = groups if isinstance(groups, Groups) else as_groups(groups, len(groups))
    return like(reference, target_shares(target, groups))


def _check(field: str, value: str) -> None:
    if value not in CHOICES[field]:
        raise UnknownNameError(f"choice for {field!r}", value, CHOICES[field])
