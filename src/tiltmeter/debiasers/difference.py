"""The difference subspace: the control for Orth-Proj and Orth-Cali.

The same maps with V the differences of the groups' prompts instead of the prompts themselves: what
the prompts share ("a photo of a person") stays where it is.
"""

from __future__ import annotations

from tiltmeter.debiasers.debiaser import GroupTexts
from tiltmeter.debiasers.orth_cali import calibrated, calibration
from tiltmeter.debiasers.subspace import TextMap, basis, differences
from tiltmeter.types import Array, Floats


class Difference(TextMap):
    """Difference subspace: projects texts off how the groups' prompts differ, and no more.

    A group with several prompts stands for their mean. `weight` above 0 calibrates as Orth-Cali.
    """

    def __init__(self, towers: str = "texts", rank: int | None = None, weight: float = 0.0) -> None:
        self.towers = towers
        self.rank = rank
        self.weight = weight

    def learn(self, texts: GroupTexts) -> None:
        self.basis_: Floats = basis(differences(texts), self.rank)
        self.calibration_: Floats = calibration(texts, self.weight)

    def map(self, vectors: Array) -> Array:
        self.check_fitted()
        return calibrated(vectors, self.basis_, self.calibration_)
