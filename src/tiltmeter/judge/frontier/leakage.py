"""Leakage: how well an attribute can be predicted from embeddings.

A method may hide a bias from one metric and leave the attribute in the embeddings. Two classifiers
are trained on some images and tested on others: a linear one (logistic regression) and a nonlinear
one (a small network). Their accuracy is compared with the share of the largest group.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from tiltmeter.debiasers.learners import learner, linear_probe, scale_of
from tiltmeter.errors import InputError
from tiltmeter.stats.intervals import wilson
from tiltmeter.types import Floats, Groups

HIDDEN = 64
EPOCHS = 60
PROBES = ("linear", "nonlinear")


@dataclass(frozen=True)
class LeakageResult:
    """Accuracy of a classifier on unseen images, with Wilson's interval."""

    accuracy: float
    low: float
    high: float
    majority: float  # share of the largest group
    n: int

    @property
    def leaks(self) -> bool:
        """Whether the accuracy is significantly above the share of the largest group."""
        return self.low > self.majority


def leakage(
    train: Floats, train_groups: Groups, test: Floats, test_groups: Groups, *, seed: int = 0
) -> dict[str, LeakageResult]:
    """Test accuracy of each classifier, trained on `train` and tested on `test`.

    Parameters
    ----------
    train, test : array, images x dimensions
        Embeddings of different images.
    train_groups, test_groups : Groups
        Their labels.
    seed : int
        Seed of the network.

    Returns
    -------
    dict
        A `LeakageResult` for each of `PROBES`.

    Raises
    ------
    InputError
        If all training images are of one group.
    """
    if len(np.unique(train_groups.codes)) < 2:
        raise InputError(
            f"all training images are of one group of {train_groups.attribute!r}: "
            "leakage needs at least two groups"
        )
    center, scale = train.mean(axis=0), scale_of(train)
    x, y = (np.asarray((vectors - center) / scale, np.float64) for vectors in (train, test))
    answers = {"linear": linear_probe(x, train_groups.codes).predict(y)}
    network = learner(
        "neural_network", "MLPClassifier", hidden_layer_sizes=(HIDDEN,), alpha=1e-2,
        max_iter=EPOCHS, random_state=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # enough epochs, converged or not
        answers["nonlinear"] = network.fit(x, train_groups.codes).predict(y)
    majority, n = float(test_groups.shares.max()), len(test)
    results = {}
    for name, guess in answers.items():
        correct = np.array((guess == test_groups.codes).sum())
        low, high = wilson(correct, np.array(n))
        results[name] = LeakageResult(float(correct / n), float(low), float(high), majority, n)
    return results
