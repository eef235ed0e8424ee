"""What the vectors still tell of an attribute, to a probe that looks for it.

A method may hide a tilt from one metric and leave the attribute there for anybody who learns to
read it. So two probes learn from some images and are asked about others: a linear one (logistic
regression), and one that is not (a small network). What a constant answer would score stands beside
them: the share of the largest group.
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
    """How often a probe was right on images it had not seen, with Wilson's interval."""

    accuracy: float
    low: float
    high: float
    majority: float  # the share of the largest group among those images
    n: int

    @property
    def leaks(self) -> bool:
        """Whether the probe surely knows more than which group is the largest."""
        return self.low > self.majority


def leakage(
    seen: Floats, seen_groups: Groups, asked: Floats, asked_groups: Groups, *, seed: int = 0
) -> dict[str, LeakageResult]:
    """Each probe's answers about the `asked` images, after learning from those `seen`."""
    if len(np.unique(seen_groups.codes)) < 2:
        raise InputError(
            f"all images to learn from are of one group of {seen_groups.attribute!r}: "
            "there is nothing to probe for"
        )
    middle, scale = seen.mean(axis=0), scale_of(seen)
    x, y = (np.asarray((one - middle) / scale, np.float64) for one in (seen, asked))
    answers = {"linear": linear_probe(x, seen_groups.codes).predict(y)}
    network = learner(
        "neural_network", "MLPClassifier", hidden_layer_sizes=(HIDDEN,), alpha=1e-2,
        max_iter=EPOCHS, random_state=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so many epochs are enough, converged or not
        answers["nonlinear"] = network.fit(x, seen_groups.codes).predict(y)
    majority, n = float(asked_groups.shares.max()), len(asked)
    found = {}
    for name, guess in answers.items():
        right = np.array((guess == asked_groups.codes).sum())
        low, high = wilson(right, np.array(n))
        found[name] = LeakageResult(float(right / n), float(low), float(high), majority, n)
    return found
