"""Orth-Proj (Chuang et al. 2023): vectors lose all that the groups' prompts span.

P0 = I - V (V'V)^-1 V', V the vectors of texts that name the groups.
"""

from __future__ import annotations

import numpy as np

from tiltmeter.debiasers.debiaser import GroupTexts
from tiltmeter.debiasers.subspace import TextMap, basis, prompt_vectors, removed
from tiltmeter.types import Array, Floats


class OrthProj(TextMap):
    """Orth-Proj (Chuang et al. 2023): projects texts off the prompts that name the groups.

    Prompts share most of what they say ("a photo of a person"), and that goes too: see
    `difference`, which leaves it. `rank` removes only so many directions, the largest first.
    """

    def __init__(self, towers: str = "texts", rank: int | None = None) -> None:
        self.towers = towers
        self.rank = rank

    def learn(self, texts: GroupTexts) -> None:
        self.basis_: Floats = basis(np.concatenate(prompt_vectors(texts)), self.rank)

    def map(self, vectors: Array) -> Array:
        self.check_fitted()
        return removed(vectors, self.basis_)
