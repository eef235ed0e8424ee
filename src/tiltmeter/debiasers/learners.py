"""scikit-learn's learners that some methods use, and samples of low confidence."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from tiltmeter.errors import MissingError
from tiltmeter.types import Floats, Ints

#: Fewer low-confidence samples than this make no mean: then the least confident ones are taken.
FEWEST_SAMPLES = 10


def learner(module: str, name: str, **params: Any) -> Any:
    """Return an estimator of scikit-learn, which is imported only here.

    Parameters
    ----------
    module, name
        Where it is: `sklearn.{module}.{name}`.
    **params
        Its hyperparameters.

    Raises
    ------
    MissingError
        If scikit-learn is not installed.
    """
    try:
        kind = getattr(import_module(f"sklearn.{module}"), name)
    except ModuleNotFoundError:
        raise MissingError("this method", "scikit-learn") from None
    return kind(**params)


def linear_probe(x: Floats, labels: Ints) -> Any:
    """Fit a multinomial logistic regression and return it.

    The penalty is scikit-learn's default. It depends on the scale of `x`: see `scale_of`.
    """
    return learner("linear_model", "LogisticRegression", max_iter=2000).fit(x, labels)


def scale_of(x: Floats) -> float:
    """Return the root mean square of centred `x`, which makes data of any dimension comparable.

    Unit vectors of 512 dimensions have entries near 0.04, which a penalty would keep at zero.
    """
    size = float(np.sqrt(((x - x.mean(axis=0)) ** 2).mean()))
    return size if size > 0 else 1.0


def split_rows(labels: Ints, share: float, seed: int) -> tuple[Ints, Ints]:
    """Split rows into training rows and a random `share` of each group as test rows, both sorted.

    A group of a single row is trained on.
    """
    rng = np.random.default_rng(seed)
    test = [
        rng.permutation(np.flatnonzero(labels == code))[: int(share * (labels == code).sum())]
        for code in np.unique(labels)
    ]
    held_out = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out


def low_confidence(confidence: Floats, below: float) -> tuple[Ints, float]:
    """Return the rows whose largest probability is below a threshold, and the threshold.

    Where the groups are so easy to tell apart that hardly any row is below, the threshold is raised
    to the confidence of the tenth least confident row.
    """
    rows = np.flatnonzero(confidence < below)
    if len(rows) >= min(FEWEST_SAMPLES, len(confidence)):
        return rows, below
    least = np.argsort(confidence, kind="stable")[:FEWEST_SAMPLES]
    return np.sort(least), float(confidence[least].max())
