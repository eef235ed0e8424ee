"""Orth-Proj (Chuang et al. 2023): removes from vectors all that the groups' prompts span.

P0 = I - V (V'V)^-1 V', V the vectors of texts that name the groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiltmeter.debiasers.debiaser import GroupTexts
from tiltmeter.debiasers.subspace import TextMap, basis, prompt_vectors, remove_directions
from tiltmeter.types import Array, Floats


@dataclass(eq=False)
class OrthProj(TextMap):
    """Orth-Proj (Chuang et al. 2023): projects texts off the prompts that name the groups.

    Prompts share most of what they say ("a photo of a person"), and that is removed too;
    `difference` keeps it.

    Parameters
    ----------
    towers
        Embeddings to change: `texts`, `images` or `both`.
    rank
        Number of directions to remove, the largest first; None: all.

    Attributes
    ----------
    basis_ : array of shape (rank, n_dimensions)
        The removed directions.
    """

    towers: str = "texts"
    rank: int | None = None

    def _fit(self, texts: GroupTexts) -> None:
        self.basis_: Floats = basis(np.concatenate(prompt_vectors(texts)), self.rank)

    def _transform(self, X: Array) -> Array:
        return remove_directions(X, self.basis_)
