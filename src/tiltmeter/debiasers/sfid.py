"""SFID (Jung, Jang and Wang 2024): dimensions that reveal the attribute get a neutral value.

A random forest learns the attribute from the vectors. Its most important dimensions are replaced,
in every vector, by their mean over the samples that the forest classifies with low confidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiltmeter.debiasers.debiaser import GroupTexts, LabelMap, like_input
from tiltmeter.debiasers.learners import learner, low_confidence
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import namespace, unit
from tiltmeter.types import Array, Floats, Groups, Ints


@dataclass(eq=False)
class Sfid(LabelMap):
    """SFID (Jung et al. 2024): replaces the most revealing dimensions by low-confidence means.

    The paper uses a validation set for the forest's confidence; here each sample is classified by
    the trees that did not see it (out of bag), so that no rows need to be set aside.

    Parameters
    ----------
    dims
        Dimensions to replace: a number, or a share below 1. By default the paper's 100 of 512.
    confidence
        Samples whose largest probability is below this are of low confidence.
    trees
        Size of the forest.
    towers
        Embeddings to change: `images`, `texts` or `both`.
    seed
        Seed of the forest.

    Attributes
    ----------
    importance_ : array of shape (n_dimensions,)
        Importance of each dimension in the forest.
    replaced_ : array of int
        The replaced dimensions, sorted.
    value_ : array
        Their values.
    threshold_ : float
        The confidence that was used: raised where hardly any sample is below `confidence`.
    n_low_confidence_ : int
        Number of low-confidence samples.
    """

    dims: float = 0.1953125
    confidence: float = 0.7
    trees: int = 100
    towers: str = "images"
    seed: int = 0

    def _fit(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        d = x.shape[1]
        count = round(self.dims * d) if self.dims < 1 else int(self.dims)
        if not 0 <= count <= d:
            raise InputError(
                f"dims = {self.dims:g} replaces {count} of {d} dimensions: use a number from 0 "
                f"to {d}, or a share below 1"
            )
        forest = learner(
            "ensemble",
            "RandomForestClassifier",
            n_estimators=self.trees,
            oob_score=True,
            random_state=self.seed,
        ).fit(x, labels.codes)
        self.importance_: Floats = np.asarray(forest.feature_importances_)
        self.replaced_: Ints = np.sort(np.argsort(-self.importance_, kind="stable")[:count])
        confidence = np.asarray(forest.oob_decision_function_).max(axis=1)
        rows, self.threshold_ = low_confidence(confidence, self.confidence)
        self.n_low_confidence_ = len(rows)
        self.value_: Floats = x[rows].mean(axis=0)[self.replaced_]

    def impute(self, X: Array) -> Array:
        """Return vectors with the values filled in, before they are normalised again."""
        self.check_fitted()
        kept, value = np.ones(self.n_features_in_), np.zeros(self.n_features_in_)
        kept[self.replaced_], value[self.replaced_] = 0, self.value_
        keep, filled = like_input(X, kept, value)
        return namespace(X).where(keep > 0, X, filled)

    def _transform(self, X: Array) -> Array:
        return unit(self.impute(X)) if len(self.replaced_) else X
