"""What a model is still good for: zero-shot classes and retrieval, the price of debiasing.

Each function gives one figure an item or a query, so that intervals can be made of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import matrix, to_numpy
from tiltmeter.types import Array, Floats


def zero_shot_hits(scores: Array, labels: Array) -> Floats:
    """Whether each item's best class is its own: scores are classes x items.

    Of equal classes each counts its share: a model that cannot tell scores what chance does.

    >>> zero_shot_hits([[0.9, 0.2, 0.5], [0.1, 0.8, 0.5]], [0, 0, 1])
    array([1. , 0. , 0.5])
    """
    found = np.asarray(to_numpy(matrix(scores, "scores", "classes", "items")))
    codes = np.asarray(to_numpy(labels))
    if codes.shape != (found.shape[1],) or codes.min() < 0 or codes.max() >= len(found):
        raise InputError(
            f"labels must be {found.shape[1]} class numbers from 0 to {len(found) - 1}; got "
            f"shape {codes.shape}"
        )
    best = found == found.max(axis=0)
    return np.asarray(best[codes, np.arange(len(codes))] / best.sum(axis=0))


def recall_hits(ids: Array, queries: Array, items: Array, k: Sequence[int]) -> Floats:
    """Whether something that belongs to a query is among its k best: queries x k.

    `ids` are items, best first (as `top_k` gives them); `queries` and `items` are numbers that are
    equal where the two belong together. A query to which nothing belongs is NaN.

    >>> recall_hits([[2, 0, 1], [1, 2, 0]], queries=[7, 8], items=[7, 9, 9], k=[1, 3])
    array([[ 0.,  1.],
           [nan, nan]])
    """
    ranked, asked, there = (np.asarray(to_numpy(x)) for x in (ids, queries, items))
    if ranked.ndim != 2 or len(ranked) != len(asked):
        raise InputError(f"{len(asked)} queries, but ranked items of shape {ranked.shape}")
    if not k or min(k) < 1 or max(k) > ranked.shape[1]:
        raise InputError(f"k must lie between 1 and {ranked.shape[1]}; got {list(k)}")
    right = there[ranked] == asked[:, None]
    hits = np.stack([right[:, :one].any(axis=1) for one in k], axis=1).astype(float)
    hits[~np.isin(asked, there)] = np.nan
    return hits
