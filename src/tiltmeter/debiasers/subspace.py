"""Directions that texts span, and what is left of vectors without them.

Rows of a basis are orthonormal, so a projection needs no inverse, and prompts that say the same
thing twice are harmless.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from tiltmeter.debiasers.debiaser import (
    GIVEN_BY,
    TOWERS,
    GroupTexts,
    VectorMap,
    check_at_least,
    check_choice,
    like_input,
)
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import namespace, to_numpy, unit
from tiltmeter.types import Array, Floats, Groups

#: Rows are made of unit vectors in single precision: what is shorter than this is rounding.
ROUNDING = 1e-5
#: A vector of which no more than this share is left has no direction of its own.
NOTHING = 1e-4


class TextMap(VectorMap):
    """A map that is learned from texts; subclasses implement `_fit` and `_transform`."""

    needs = ("prompts",)

    def fit(
        self,
        X: Array | None = None,
        groups: Groups | Array | None = None,
        *,
        texts: GroupTexts | None = None,
    ) -> Self:
        check_choice("towers", self.towers, TOWERS)
        if texts is None:
            raise InputError(f"this method learns from texts: {GIVEN_BY['prompts']}")
        self._fit(texts)
        return self

    def _fit(self, texts: GroupTexts) -> None:
        raise NotImplementedError


def encode_unit(texts: GroupTexts, prompts: list[str]) -> Floats:
    """Return unit vectors of some prompts, in double precision."""
    return np.asarray(unit(np.asarray(to_numpy(texts.encode(prompts)), np.float64), "texts"))


def prompt_vectors(texts: GroupTexts) -> list[Floats]:
    """Return the vectors of each group's prompts (prompts x dimensions), for two groups or more."""
    empty = [name for name, prompts in texts.group_prompts.items() if not prompts]
    if len(texts.group_prompts) < 2 or empty:
        problem = f"{empty[0]!r} has none" if empty else f"got {list(texts.group_prompts)}"
        raise InputError(f"expected two groups or more, each named by a text; {problem}")
    return [encode_unit(texts, list(prompts)) for prompts in texts.group_prompts.values()]


def group_vectors(texts: GroupTexts) -> Floats:
    """Return one unit vector per group: the normalised mean of its prompts."""
    return np.asarray(unit(np.stack([rows.mean(axis=0) for rows in prompt_vectors(texts)])))


def group_differences(texts: GroupTexts) -> Floats:
    """Return the differences of the groups' vectors from the first, groups - 1 x dimensions."""
    vectors = group_vectors(texts)
    differences = vectors[1:] - vectors[0]
    if np.linalg.norm(differences, axis=1).max() < ROUNDING:
        raise InputError(
            f"the texts that name {', '.join(map(repr, texts.group_prompts))} have the same "
            "vectors: this model does not tell them apart. Name the groups in other words"
        )
    return np.asarray(differences)


def basis(rows: Floats, rank: int | None = None) -> Floats:
    """Return orthonormal directions that span the rows, the largest first, rank x dimensions.

    Parameters
    ----------
    rows : array of shape (n, n_dimensions)
        Vectors to span.
    rank
        Maximum number of directions; None: all.

    Examples
    --------
    >>> basis(np.array([[2.0, 0, 0], [1, 0, 0], [0, 1e-9, 0]])).shape
    (1, 3)
    """
    check_at_least(0, rank=0 if rank is None else rank)
    _, sizes, directions = np.linalg.svd(rows, full_matrices=False)
    return np.asarray(directions[sizes > ROUNDING][:rank])


def project_out(X: Array, directions: Floats) -> Array:
    """Return the vectors minus their components along the directions."""
    b = like_vectors(directions, X)
    return X - (X @ b.T) @ b


def like_vectors(rows: Floats, X: Array) -> Array:
    """Return learned rows with the array type of `X`, if they have its dimensions."""
    if rows.shape[1] != X.shape[-1]:
        raise InputError(f"fitted on {rows.shape[1]} dimensions; X has {X.shape[-1]}")
    return like_input(X, rows)[0]


def normalise_rest(rest: Array, before: Array) -> Array:
    """Normalise the rest of vectors; one of which nothing is left stays as it was before.

    So a text that does nothing but name a group still names it, instead of becoming noise.
    """
    xp = namespace(before)
    length = xp.sqrt((rest * rest).sum(-1))
    gone = length <= NOTHING * xp.sqrt((before * before).sum(-1))
    return unit(xp.where(gone[:, None], before, rest))


def remove_directions(X: Array, directions: Floats) -> Array:
    """Return unit vectors without the directions; `X` itself where there are none."""
    return normalise_rest(project_out(X, directions), X) if len(directions) else X
