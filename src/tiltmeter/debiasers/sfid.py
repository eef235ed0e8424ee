"""SFID (Jung, Jang and Wang 2024): dimensions that tell the attribute get a doubtful value.

A random forest learns the attribute from the vectors. Its most important dimensions are replaced,
in every vector, by their mean over the samples of which the forest is not sure.
"""

from __future__ import annotations

import numpy as np

from tiltmeter.debiasers.debiaser import GroupTexts, LabelMap
from tiltmeter.debiasers.learners import doubtful, learner
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import like, namespace, unit
from tiltmeter.types import Array, Floats, Groups, Ints


class Sfid(LabelMap):
    """SFID (Jung et al. 2024): the most telling dimensions take the value of doubtful samples.

    `dims` is how many are replaced: a number, or a share of them below 1. The paper takes 100 of
    512, 100 trees, and samples whose largest probability is below 0.7. It asks a validation set
    how sure the forest is; here each sample is judged by the trees that did not see it (out of
    bag), so that no rows need to be set aside.
    """

    def __init__(
        self,
        dims: float = 0.1953125,
        confidence: float = 0.7,
        trees: int = 100,
        towers: str = "images",
        seed: int = 0,
    ) -> None:
        self.dims = dims  # by default 100 of 512
        self.confidence = confidence
        self.trees = trees
        self.towers = towers
        self.seed = seed

    def learn(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        del texts
        d = x.shape[1]
        count = round(self.dims * d) if self.dims < 1 else int(self.dims)
        if not 0 <= count <= d:
            raise InputError(
                f"dims = {self.dims:g} replaces {count} of {d} dimensions: give a number from 0 "
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
        most = np.argsort(-self.importance_, kind="stable")[:count]
        self.replaced_: Ints = np.sort(most)
        sure = np.asarray(forest.oob_decision_function_).max(axis=1)
        rows, self.bar_ = doubtful(sure, self.confidence)
        self.doubtful_ = len(rows)
        self.value_: Floats = x[rows].mean(axis=0)[self.replaced_]

    def impute(self, vectors: Array) -> Array:
        """Vectors with the values put in, before their length is made one again."""
        self.check_fitted()
        d = len(self.importance_)
        if vectors.shape[1] != d:
            raise InputError(f"fitted on {d} dimensions, asked to map {vectors.shape[1]}")
        kept, value = np.ones(d), np.zeros(d)
        kept[self.replaced_], value[self.replaced_] = 0, self.value_
        dtype = str(vectors.dtype).rpartition(".")[2]
        xp = namespace(vectors)
        return xp.where(like(vectors, kept, dtype) > 0, vectors, like(vectors, value, dtype))

    def map(self, vectors: Array) -> Array:
        self.check_fitted()
        return unit(self.impute(vectors)) if len(self.replaced_) else vectors
