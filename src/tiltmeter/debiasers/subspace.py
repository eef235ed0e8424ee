"""Directions that texts span, and what is left of vectors without them.

Rows of a basis are of length one and at right angles, so a projection needs no inverse, and prompts
that say the same thing twice are harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from tiltmeter.debiasers.debiaser import GIVEN_BY, GroupTexts, VectorMap, one_of
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import like, namespace, to_numpy, unit
from tiltmeter.types import Array, Floats, Groups

TOWERS = ("texts", "images", "both")
#: Rows are made of unit vectors in single precision: what is shorter than this is rounding.
ROUNDING = 1e-5
#: A vector of which no more than this share is left has no direction of its own any more.
NOTHING = 1e-4


class TextMap(VectorMap):
    """A map that is learned from texts, for the vectors of texts, of images, or of both."""

    needs = ("prompts",)
    towers: str

    def fit(
        self,
        vectors: Array | None,
        groups: Groups | Array | None,
        *,
        texts: GroupTexts | None = None,
    ) -> Self:
        one_of("towers", self.towers, TOWERS)
        if texts is None:
            raise InputError(f"this method learns from texts: {GIVEN_BY['prompts']}")
        self.learn(texts)
        return self

    def learn(self, texts: GroupTexts) -> None:
        raise NotImplementedError

    def map_images(self, vectors: Array) -> Array:
        self.check_fitted()
        return vectors if self.towers == "texts" else self.map(vectors)

    def map_texts(
        self, vectors: Array, texts: Sequence[str], encode: Callable[[Sequence[str]], Array]
    ) -> Array:
        del texts, encode
        self.check_fitted()
        return vectors if self.towers == "images" else self.map(vectors)


def encoded(texts: GroupTexts, said: Sequence[str]) -> Floats:
    """Unit vectors of some texts, in double precision."""
    return np.asarray(unit(np.asarray(to_numpy(texts.encode(list(said))), np.float64), "texts"))


def prompt_vectors(texts: GroupTexts) -> list[Floats]:
    """The vectors of each group's prompts, prompts x dimensions: two groups or more."""
    empty = [name for name, said in texts.naming.items() if not said]
    if len(texts.naming) < 2 or empty:
        what = f"{empty[0]!r} has none" if empty else f"got {list(texts.naming)}"
        raise InputError(
            f"texts that name two groups or more are needed, each by one text at least; {what}"
        )
    return [encoded(texts, said) for said in texts.naming.values()]


def group_vectors(texts: GroupTexts) -> Floats:
    """One unit vector a group: the mean of its prompts, made unit."""
    return np.asarray(unit(np.stack([some.mean(axis=0) for some in prompt_vectors(texts)])))


def differences(texts: GroupTexts) -> Floats:
    """How the groups' vectors differ from the first group's, groups - 1 x dimensions."""
    named = group_vectors(texts)
    apart = named[1:] - named[0]
    if np.linalg.norm(apart, axis=1).max() < ROUNDING:
        raise InputError(
            f"the texts that name {', '.join(map(repr, texts.naming))} have the same vectors: this "
            "model does not tell them apart. Name the groups in other words"
        )
    return np.asarray(apart)


def basis(rows: Floats, rank: int | None = None) -> Floats:
    """Directions that span the rows, the largest first, rank x dimensions; `rank` of them at most.

    >>> basis(np.array([[2.0, 0, 0], [1, 0, 0], [0, 1e-9, 0]])).shape
    (1, 3)
    """
    if rank is not None and rank < 0:
        raise InputError(f"rank is how many directions are removed, 0 or more; got {rank}")
    _, sizes, directions = np.linalg.svd(rows, full_matrices=False)
    return np.asarray(directions[sizes > ROUNDING][:rank])


def without(vectors: Array, directions: Floats) -> Array:
    """Vectors less what they have of the directions."""
    b = matched(directions, vectors)
    return vectors - (vectors @ b.T) @ b


def matched(rows: Floats, vectors: Array) -> Array:
    """What was learned, as the kind of array that the vectors are, if they have its dimensions."""
    if rows.shape[1] != vectors.shape[-1]:
        raise InputError(f"fitted on {rows.shape[1]} dimensions, asked to map {vectors.shape[-1]}")
    return like(vectors, rows, str(vectors.dtype).rpartition(".")[2])


def renewed(left: Array, before: Array) -> Array:
    """What is `left` of vectors, made unit; one of which nothing is left stays as it was before.

    So a text that does nothing but name a group goes on naming it, and is no noise.
    """
    xp = namespace(before)
    length = xp.sqrt((left * left).sum(-1))
    gone = length <= NOTHING * xp.sqrt((before * before).sum(-1))
    return unit(xp.where(gone[:, None], before, left))


def removed(vectors: Array, directions: Floats) -> Array:
    """Unit vectors without the directions; where there are none, the vectors as they are."""
    return renewed(without(vectors, directions), vectors) if len(directions) else vectors
