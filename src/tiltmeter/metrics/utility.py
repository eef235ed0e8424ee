"""Utility of a model: zero-shot classification and retrieval, which debiasing may cost.

Each function returns one value per item or query, so that intervals can be computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import matrix, to_numpy
from tiltmeter.types import Array, Floats


def zero_shot_correct(scores: Array, labels: Array) -> Floats:
    """Whether the best class of each item is its own.

    Parameters
    ----------
    scores : array of shape (classes, items)
        Similarity of each class prompt to each item.
    labels : array of int of shape (items,)
        The class of each item.

    Returns
    -------
    array of shape (items,)
        1 or 0; of n classes that tie for the best, each counts 1/n, so that a model that scores all
        classes alike reaches chance.

    Raises
    ------
    InputError
        `labels` are not one class number per item.

    Examples
    --------
    >>> zero_shot_correct([[0.9, 0.2, 0.5], [0.1, 0.8, 0.5]], [0, 0, 1])
    array([1. , 0. , 0.5])
    """
    values = np.asarray(to_numpy(matrix(scores, "scores", "classes", "items")))
    codes = np.asarray(to_numpy(labels))
    if codes.shape != (values.shape[1],) or codes.min() < 0 or codes.max() >= len(values):
        raise InputError(
            f"labels must be {values.shape[1]} class numbers from 0 to {len(values) - 1}; got "
            f"shape {codes.shape}"
        )
    best = values == values.max(axis=0)
    return np.asarray(best[codes, np.arange(len(codes))] / best.sum(axis=0))


def found_in_top_k(ids: Array, queries: Array, items: Array, k: Sequence[int]) -> Floats:
    """Whether an item that belongs to a query is among its top k.

    Parameters
    ----------
    ids : array of int of shape (queries, ranks)
        Items of each query, best first, as `top_k` returns them.
    queries : array of int of shape (queries,)
        The key of each query.
    items : array of int of shape (items,)
        The key of each item: it belongs to the queries with the same key.
    k : sequence of int
        Sizes of the top.

    Returns
    -------
    array of shape (queries, len(k))
        1 or 0; NaN for a query that no item belongs to.

    Raises
    ------
    InputError
        `ids` is not one row per query, or a `k` is out of range.

    Examples
    --------
    >>> found_in_top_k([[2, 0, 1], [1, 2, 0]], queries=[7, 8], items=[7, 9, 9], k=[1, 3])
    array([[ 0.,  1.],
           [nan, nan]])
    """
    ranked, query_keys, item_keys = (np.asarray(to_numpy(x)) for x in (ids, queries, items))
    if ranked.ndim != 2 or len(ranked) != len(query_keys):
        raise InputError(
            f"ids must have one row of items for each of {len(query_keys)} queries; got shape "
            f"{ranked.shape}"
        )
    if not k or min(k) < 1 or max(k) > ranked.shape[1]:
        raise InputError(f"k must be between 1 and {ranked.shape[1]}; got {list(k)}")
    right = item_keys[ranked] == query_keys[:, None]
    hits = np.stack([right[:, :size].any(axis=1) for size in k], axis=1).astype(float)
    hits[~np.isin(query_keys, item_keys)] = np.nan
    return hits


def expected_recall(scores: Array, k: int) -> float:
    """Recall@k over queries where item i belongs to query i, and ties are broken at random.

    Parameters
    ----------
    scores : array of shape (n, n)
        Score of each item (column) for each query (row).
    k : int
        Size of the top.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> expected_recall([[0.9, 0.2, 0.5], [0.8, 0.8, 0.8], [0.3, 0.2, 0.1]], 1)
    0.4444444444444444
    """
    values = np.asarray(to_numpy(matrix(scores, "scores", "queries", "items")))
    own = np.diagonal(values)[:, None]
    above, alike = (values > own).sum(axis=1), (values == own).sum(axis=1)
    return float(np.clip((k - above) / alike, 0, 1).mean())
