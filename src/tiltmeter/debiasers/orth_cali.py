"""Orth-Cali (Chuang et al. 2023): a projection that also pulls texts together that should agree.

P0 (I + lambda M)^-1, P0 as in Orth-Proj and M the mean of (zi - zj)(zi - zj)' over pairs of texts
that differ in the group alone ("a male doctor", "a female doctor").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array

from tiltmeter.debiasers.debiaser import GroupTexts, check_at_least
from tiltmeter.debiasers.subspace import (
    TextMap,
    basis,
    encode_unit,
    like_vectors,
    normalise_rest,
    project_out,
    prompt_vectors,
)
from tiltmeter.errors import InputError
from tiltmeter.types import Array, Floats


@dataclass(eq=False)
class OrthCali(TextMap):
    """Orth-Cali (Chuang et al. 2023): Orth-Proj, calibrated on pairs of texts that should agree.

    Parameters
    ----------
    weight
        The paper's lambda; 0 is Orth-Proj.
    towers
        Embeddings to change: `texts`, `images` or `both`.
    rank
        Number of directions to remove, the largest first; None: all.

    Attributes
    ----------
    basis_ : array of shape (rank, n_dimensions)
        The removed directions.
    calibration_ : array of shape (n_dimensions, n_dimensions)
        (I + lambda M)^-1; empty if `weight` is 0.
    """

    weight: float = 1000.0
    towers: str = "texts"
    rank: int | None = None

    def _fit(self, texts: GroupTexts) -> None:
        self.basis_: Floats = basis(np.concatenate(prompt_vectors(texts)), self.rank)
        self.calibration_: Floats = calibration_matrix(texts, self.weight)

    def _transform(self, X: Array) -> Array:
        return calibrate(X, self.basis_, self.calibration_)


def calibration_matrix(texts: GroupTexts, weight: float) -> Floats:
    """Return (I + lambda M)^-1 over the pairs that should agree; 0 x 0 if lambda is 0."""
    check_at_least(0, weight=weight)
    if weight == 0:
        return np.zeros((0, 0))
    if not texts.equivalent:
        raise InputError(
            "there are no pairs of texts that should agree: name them under `equivalent` in "
            "--prompts, or use weight=0"
        )
    index = {
        text: i for i, text in enumerate(dict.fromkeys(t for p in texts.equivalent for t in p))
    }
    z = encode_unit(texts, list(index))
    spread = z.T @ (_pair_laplacian([(index[a], index[b]) for a, b in texts.equivalent]) @ z)
    d = z.shape[1]
    return np.asarray(np.linalg.inv(np.eye(d) + weight * spread / len(texts.equivalent)))


def calibrate(X: Array, directions: Floats, calibration: Floats) -> Array:
    """Return unit vectors, calibrated (where there is a calibration), then off the directions."""
    if len(directions) == 0 and len(calibration) == 0:
        return X
    moved = X @ like_vectors(calibration, X).T if len(calibration) else X
    return normalise_rest(project_out(moved, directions), X)


def _pair_laplacian(pairs: list[tuple[int, int]]) -> coo_array:
    """The sum of (ei - ej)(ei - ej)' over pairs: many pairs of few texts need no row each."""
    i, j = np.array(pairs).T
    ones = np.ones(len(pairs))
    rows, columns = np.concatenate([i, j, i, j]), np.concatenate([i, j, j, i])
    values = np.concatenate([ones, ones, -ones, -ones])
    n = int(rows.max()) + 1
    return coo_array((values, (rows, columns)), shape=(n, n)).tocsr()
