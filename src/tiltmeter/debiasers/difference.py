"""The difference subspace: the control for Orth-Proj and Orth-Cali.

The same maps with V the differences of the groups' prompts instead of the prompts themselves: what
the prompts share ("a photo of a person") is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiltmeter.debiasers.debiaser import GroupTexts
from tiltmeter.debiasers.orth_cali import calibrate, calibration_matrix
from tiltmeter.debiasers.subspace import TextMap, basis, group_differences
from tiltmeter.types import Array, Floats


@dataclass(eq=False)
class Difference(TextMap):
    """Difference subspace: projects texts off the differences of the groups' prompts.

    A group with several prompts is represented by their mean.

    Parameters
    ----------
    towers
        Embeddings to change: `texts`, `images` or `both`.
    rank
        Number of directions to remove, the largest first; None: all.
    weight
        Above 0, calibrates as Orth-Cali does.

    Attributes
    ----------
    basis_ : array of shape (rank, n_dimensions)
        The removed directions.
    calibration_ : array of shape (n_dimensions, n_dimensions)
        As in Orth-Cali; empty if `weight` is 0.
    """

    towers: str = "texts"
    rank: int | None = None
    weight: float = 0.0

    def _fit(self, texts: GroupTexts) -> None:
        self.basis_: Floats = basis(group_differences(texts), self.rank)
        self.calibration_: Floats = calibration_matrix(texts, self.weight)

    def _transform(self, X: Array) -> Array:
        return calibrate(X, self.basis_, self.calibration_)
