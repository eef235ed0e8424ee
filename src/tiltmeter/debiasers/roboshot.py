"""RoboShot (Adila et al. 2024): harmful components are rejected, helpful ones are strengthened.

For each harmful difference v of two texts, in order: x - <x, v> v / <v, v>. Then for each helpful
one u: x + <x, u> u / <u, u>. Every step is linear, so normalising x after each changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from tiltmeter.debiasers.debiaser import GroupTexts
from tiltmeter.debiasers.subspace import (
    ROUNDING,
    TextMap,
    encode_unit,
    like_vectors,
    normalise_rest,
    prompt_vectors,
)
from tiltmeter.errors import InputError
from tiltmeter.types import Array, Floats


@dataclass(eq=False)
class RoboShot(TextMap):
    """RoboShot (Adila et al. 2024): rejects harmful differences one by one, adds helpful ones.

    Pairs of texts come with the prompts (`harmful`, `helpful`); harmful pairs default to those of
    every two groups. Later rejections may restore a little of earlier ones: this is no projection,
    unless the pairs are orthogonal.

    Parameters
    ----------
    towers
        Embeddings to change: `texts`, `images` or `both`.

    Attributes
    ----------
    harmful_, helpful_ : array of shape (n_pairs, n_dimensions)
        Unit directions of the pairs; empty where there are none.
    """

    towers: str = "images"

    def _fit(self, texts: GroupTexts) -> None:
        harmful = texts.harmful
        if harmful is None:
            prompt_vectors(texts)  # checks that there are two groups
            groups = texts.group_prompts.values()
            harmful = [
                pair
                for first, second in combinations(groups, 2)
                for pair in zip(first, second, strict=False)
            ]
        self.harmful_: Floats = _pair_directions(texts, harmful, "harmful")
        self.helpful_: Floats = _pair_directions(texts, texts.helpful, "helpful")

    def _transform(self, X: Array) -> Array:
        if len(self.harmful_) + len(self.helpful_) == 0:
            return X
        x = X
        for sign, directions in ((-1, self.harmful_), (1, self.helpful_)):
            for v in like_vectors(directions, X) if len(directions) else ():
                x = x + sign * (x @ v)[:, None] * v
        return normalise_rest(x, X)


def _pair_directions(texts: GroupTexts, pairs: Sequence[tuple[str, str]], what: str) -> Floats:
    """Directions from the second to the first text of each pair, unit, pairs x dimensions."""
    if not pairs:
        return np.zeros((0, 0))
    first, second = (encode_unit(texts, list(side)) for side in zip(*pairs, strict=True))
    differences = first - second
    length = np.linalg.norm(differences, axis=1)
    if (length < ROUNDING).any():
        one, other = pairs[int(length.argmin())]
        raise InputError(
            f"the texts of the {what} pair {one!r}, {other!r} have the same vector: leave the pair "
            "out, or use other words"
        )
    return np.asarray(differences / length[:, None])
