"""Orth-Cali (Chuang et al. 2023): a projection that also draws texts together that should agree.

P0 (I + lambda M)^-1, P0 as in Orth-Proj and M the mean of (zi - zj)(zi - zj)' over pairs of texts
that differ in the group alone ("a male doctor", "a female doctor").
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array

from tiltmeter.debiasers.debiaser import GroupTexts
from tiltmeter.debiasers.subspace import (
    TextMap,
    basis,
    encoded,
    matched,
    prompt_vectors,
    renewed,
    without,
)
from tiltmeter.errors import InputError
from tiltmeter.types import Array, Floats


class OrthCali(TextMap):
    """Orth-Cali (Chuang et al. 2023): Orth-Proj, calibrated on pairs of texts that should agree.

    `weight` is the paper's lambda; with 0 it is Orth-Proj.
    """

    def __init__(
        self, weight: float = 1000.0, towers: str = "texts", rank: int | None = None
    ) -> None:
        self.weight = weight
        self.towers = towers
        self.rank = rank

    def learn(self, texts: GroupTexts) -> None:
        self.basis_: Floats = basis(np.concatenate(prompt_vectors(texts)), self.rank)
        self.calibration_: Floats = calibration(texts, self.weight)

    def map(self, vectors: Array) -> Array:
        self.check_fitted()
        return calibrated(vectors, self.basis_, self.calibration_)


def calibration(texts: GroupTexts, weight: float) -> Floats:
    """(I + lambda M)^-1 over the pairs that should agree; 0 x 0 where lambda is 0."""
    if not weight >= 0:
        raise InputError(f"weight is 0 or more; got {weight:g}")
    if weight == 0:
        return np.zeros((0, 0))
    if not texts.alike:
        raise InputError(
            "there are no pairs of texts that should agree: name them under `alike` in --prompts, "
            "or take weight=0"
        )
    said = {one: at for at, one in enumerate(dict.fromkeys(t for p in texts.alike for t in p))}
    z = encoded(texts, list(said))
    spread = z.T @ (_pairs_as_graph([(said[a], said[b]) for a, b in texts.alike]) @ z)
    d = z.shape[1]
    return np.asarray(np.linalg.inv(np.eye(d) + weight * spread / len(texts.alike)))


def calibrated(vectors: Array, directions: Floats, calibration: Floats) -> Array:
    """Unit vectors, first calibrated (where there is a calibration), then off the directions."""
    if len(directions) == 0 and len(calibration) == 0:
        return vectors
    drawn = vectors @ matched(calibration, vectors).T if len(calibration) else vectors
    return renewed(without(drawn, directions), vectors)


def _pairs_as_graph(pairs: list[tuple[int, int]]) -> coo_array:
    """The sum of (ei - ej)(ei - ej)' over pairs: many pairs of few texts need no row each."""
    i, j = np.array(pairs).T
    ones = np.ones(len(pairs))
    rows, columns = np.concatenate([i, j, i, j]), np.concatenate([i, j, j, i])
    values = np.concatenate([ones, ones, -ones, -ones])
    n = int(rows.max()) + 1
    return coo_array((values, (rows, columns)), shape=(n, n)).tocsr()
