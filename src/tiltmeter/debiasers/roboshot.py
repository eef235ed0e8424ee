"""RoboShot (Adila et al. 2024): harmful components are rejected, helpful ones are strengthened.

For each harmful difference v of two texts, in order: x - <x, v> v / <v, v>. Then for each helpful
one u: x + <x, u> u / <u, u>. Every step is linear, so making x unit after each changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from tiltmeter.debiasers.debiaser import GroupTexts
from tiltmeter.debiasers.subspace import (
    ROUNDING,
    TextMap,
    encoded,
    matched,
    prompt_vectors,
    renewed,
)
from tiltmeter.errors import InputError
from tiltmeter.types import Array, Floats


class RoboShot(TextMap):
    """RoboShot (Adila et al. 2024): rejects harmful differences one by one, adds helpful ones.

    Pairs of texts come with the prompts (`harmful`, `helpful`); harmful ones that nobody named are
    those of each two groups. Later rejections may bring back a little of earlier ones: this is no
    projection, unless the pairs are at right angles.
    """

    def __init__(self, towers: str = "images") -> None:
        self.towers = towers

    def learn(self, texts: GroupTexts) -> None:
        harmful = texts.harmful
        if harmful is None:
            prompt_vectors(texts)  # which asks for two groups
            groups = texts.naming.values()
            harmful = [
                pair
                for one, other in combinations(groups, 2)
                for pair in zip(one, other, strict=False)
            ]
        self.harmful_: Floats = _between(texts, harmful, "harmful")
        self.helpful_: Floats = _between(texts, texts.helpful, "helpful")

    def map(self, vectors: Array) -> Array:
        self.check_fitted()
        if len(self.harmful_) + len(self.helpful_) == 0:
            return vectors
        x = vectors
        for sign, directions in ((-1, self.harmful_), (1, self.helpful_)):
            for v in matched(directions, vectors) if len(directions) else ():
                x = x + sign * (x @ v)[:, None] * v
        return renewed(x, vectors)


def _between(texts: GroupTexts, pairs: Sequence[tuple[str, str]], what: str) -> Floats:
    """Directions from the second to the first text of each pair, unit, pairs x dimensions."""
    if not pairs:
        return np.zeros((0, 0))
    first, second = (encoded(texts, side) for side in zip(*pairs, strict=True))
    apart = first - second
    length = np.linalg.norm(apart, axis=1)
    if (length < ROUNDING).any():
        one, other = pairs[int(length.argmin())]
        raise InputError(
            f"the {what} pair {one!r}, {other!r} has one vector: its difference has no direction. "
            "Leave it out, or say it in other words"
        )
    return np.asarray(apart / length[:, None])
