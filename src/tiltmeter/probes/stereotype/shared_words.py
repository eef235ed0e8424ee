"""How much sets of captions that share words say less than as many independent ones.

A model may like a word more than others whatever the image. The word then moves all sets that have
it: in VLStereoSet `poor` is the stereotype of 58 sets. Errors are those of clusters that overlap
(Cameron and Miller 2015): the products of the residuals of all pairs of sets with a word in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from tiltmeter.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class SharedWords:
    """Which sets of captions share words.

    Attributes
    ----------
    words
        One code per set and caption: the words that no other caption of the set has.
    shared
        For one, two and three captions: a code for each choice of that many captions of a set,
        sets x choices. Two sets have the same code where they share the words of all of these.
    """

    words: Ints
    shared: tuple[Ints, ...]

    @classmethod
    def of(cls, sets: Sequence[Sequence[str]]) -> SharedWords:
        """From the captions of each set."""
        codes: dict[object, int] = {}
        keys = [own_words(captions) for captions in sets]
        shared = tuple(
            np.array([
                [codes.setdefault(frozenset(chosen), len(codes))
                 for chosen in combinations(of_set, size)]
                for of_set in keys
            ])
            for size in range(1, len(keys[0]) + 1)
        )  # fmt: skip
        return cls(shared[0], shared)

    def count(self, sets: Ints) -> int:
        """Number of units that the given sets (a mask) amount to: sets, or words if fewer."""
        return min(int(sets.sum()), len(np.unique(self.words[sets])))

    def widening(self, residuals: Floats) -> float:
        """Factor from the error of a sum over independent sets to its error with shared words.

        Pairs of sets that share words are counted once, however many they share (inclusion and
        exclusion). The factor is at least 1: an estimate below it is noise.
        """
        alone = float(np.square(residuals).sum())
        if not alone > 0:
            return 1.0
        together = 0.0
        for number, codes in enumerate(self.shared):
            sums = np.bincount(codes.ravel(), np.repeat(residuals, codes.shape[1]))
            together += (-1.0) ** number * float(np.square(sums).sum())
        return float(np.sqrt(max(1.0, together / alone)))


def own_words(captions: Sequence[str]) -> list[str]:
    """The words of each caption that no other one has; all of it where there are none.

    >>> own_words(["A photo of a poor man", "A photo of a rich man", "A photo of a blue man"])
    ['poor', 'rich', 'blue']
    """
    words = [set(caption.lower().rstrip(".").split()) for caption in captions]
    own = [
        " ".join(sorted(mine.difference(*(one for one in words if one is not mine))))
        for mine in words
    ]
    return [key or caption for key, caption in zip(own, captions, strict=True)]
