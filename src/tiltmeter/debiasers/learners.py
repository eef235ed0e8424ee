"""Learners of scikit-learn that some methods ask, and the samples that leave them in doubt."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.types import Floats, Ints

#: Fewer doubtful samples than this make no mean: then the least confident ones are taken.
FEWEST_DOUBTFUL = 10


def learner(module: str, name: str, **settings: Any) -> Any:
    """A learner of scikit-learn, which is imported only here."""
    try:
        kind = getattr(import_module(f"sklearn.{module}"), name)
    except ModuleNotFoundError:
        raise InputError(
            "this method learns with scikit-learn, which is not installed: "
            "pip install 'tiltmeter[debias]'"
        ) from None
    return kind(**settings)


def linear_probe(x: Floats, labels: Ints) -> Any:
    """A fitted multinomial logistic regression: `predict`, `predict_proba` and `coef_`.

    The penalty is that of scikit-learn. It hangs on the scale of `x`: see `scale_of`.
    """
    return learner("linear_model", "LogisticRegression", max_iter=2000).fit(x, labels)


def scale_of(x: Floats) -> float:
    """The root mean square of centred `x`: divided by it, data of any dimension are alike.

    Unit vectors of 512 dimensions have entries near 0.04, which a penalty would hold at nothing.
    """
    size = float(np.sqrt(((x - x.mean(axis=0)) ** 2).mean()))
    return size if size > 0 else 1.0


def two_parts(labels: Ints, share: float, seed: int) -> tuple[Ints, Ints]:
    """Rows to learn from, and a random `share` of each group to judge by; both in order.

    A group of a single row is learned from.
    """
    rng = np.random.default_rng(seed)
    judge = [
        rng.permutation(np.flatnonzero(labels == one))[: int(share * (labels == one).sum())]
        for one in np.unique(labels)
    ]
    held = np.sort(np.concatenate(judge))
    return np.setdiff1d(np.arange(len(labels)), held), held


def doubtful(confidence: Floats, below: float) -> tuple[Ints, float]:
    """Rows whose largest probability is below a bar, and the bar.

    Where the groups are told apart so well that hardly any row is in doubt, the bar is raised to
    the confidence of the tenth least confident row.
    """
    rows = np.flatnonzero(confidence < below)
    if len(rows) >= min(FEWEST_DOUBTFUL, len(confidence)):
        return rows, below
    least = np.argsort(confidence, kind="stable")[:FEWEST_DOUBTFUL]
    return np.sort(least), float(confidence[least].max())
