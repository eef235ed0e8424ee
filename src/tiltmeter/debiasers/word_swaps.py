"""Captions word by word: which words name a side of the bias concept, their swap, and masks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tiltmeter import stimuli
from tiltmeter.errors import InputError, TiltmeterError
from tiltmeter.types import Ints

#: Pronouns whose other form depends on the sentence are given their commoner one.
PRONOUNS = (("he", "she"), ("his", "her"), ("himself", "herself"))


@cache
def gender_pairs() -> tuple[tuple[str, str], ...]:
    """Man and woman first, then further nouns and pronouns: the first of each is B0, male."""
    nouns = stimuli.load("group-nouns").table["gender"]
    pairs = list(stimuli.load("counterbias").pairs)
    for number in ("singular", "plural"):
        pairs += zip(nouns["male"][number], nouns["female"][number], strict=True)
    return tuple(dict.fromkeys((*pairs, *PRONOUNS)))


@dataclass(frozen=True, eq=False)
class Pairs:
    """Words of the two sides of a bias concept, each with the one that takes its place."""

    other: Mapping[str, str]
    side: Mapping[str, int]

    @classmethod
    def of(cls, pairs: Sequence[Sequence[str]]) -> Pairs:
        other: dict[str, str] = {}
        side: dict[str, int] = {}
        for pair in pairs:
            if len(pair) != 2 or len({word.lower() for word in pair}) < 2:
                raise InputError(f"a pair is two different words; got {list(pair)}")
            for at in (0, 1):
                word = pair[at].lower()
                if side.get(word, at) != at:
                    raise InputError(f"{word!r} stands on both sides of the pairs: leave one out")
                other.setdefault(word, pair[1 - at].lower())
                side[word] = at
        if not other:
            raise InputError("no pair of bias words is given, such as [man, woman]")
        return cls(other, side)

    def names(self, word: str) -> int | None:
        """The side that a word names, if it does."""
        return self.side.get(_bare(word))

    def swapped(self, word: str) -> str:
        """The word of the other side, with the same capitals and marks around it."""
        bare = _bare(word)
        if bare not in self.other:
            return word
        found = self.other[bare]
        at = word.lower().index(bare)
        inner = word[at : at + len(bare)]
        if inner.isupper() and len(inner) > 1:
            found = found.upper()
        elif inner[0].isupper():
            found = found.capitalize()
        return word[:at] + found + word[at + len(bare) :]


def _bare(word: str) -> str:
    """A word without the marks around it and a possessive's ending."""
    plain = word.lower().strip(".,;:!?\"'()[]")
    return re.sub(r"['\u2019]s$", "", plain)


@dataclass(frozen=True, eq=False)
class Caption:
    """A caption as words, each with its pieces, and the side that it speaks of."""

    words: tuple[str, ...]
    pieces: tuple[tuple[int, ...], ...]  # none for what cannot be hidden
    sides: tuple[int | None, ...]

    @property
    def side(self) -> int | None:
        """0 or 1 where the caption speaks of one side only; else None: it has no opposite."""
        named = {side for side in self.sides if side is not None}
        return named.pop() if len(named) == 1 else None

    def masks(self, rate: float, rng: np.random.Generator, *, hide_bias: bool = True) -> Ints:
        """Words to hide: each with probability `rate`, and one at least, where any can be.

        Without `hide_bias`, a bias word is hidden only where there is nothing else to hide.
        """
        can = np.array([len(some) > 0 for some in self.pieces])
        neutral = can & np.array([side is None for side in self.sides])
        if not hide_bias and neutral.any():
            can = neutral
        if not can.any():
            return np.empty(0, dtype=np.int64)
        dice = np.where(can, rng.random(len(can)), 2.0)  # never, where it cannot
        chosen = np.flatnonzero(dice < rate)
        return chosen if len(chosen) else np.array([dice.argmin()])

    def text(self, hidden: Ints | Sequence[int], mask: str, swap: Pairs | None = None) -> str:
        """The caption with words hidden, and if asked for with its bias words swapped."""
        here = set(np.asarray(hidden).tolist())
        said = [
            " ".join([mask] * len(self.pieces[at]))
            if at in here
            else (word if swap is None else swap.swapped(word))
            for at, word in enumerate(self.words)
        ]
        return " ".join(said)

    def answer(self, hidden: Ints) -> list[int]:
        """The pieces behind the masks, in order."""
        return [piece for at in hidden.tolist() for piece in self.pieces[at]]


def read_caption(
    text: str, model: Any, pairs: Pairs, longest: int, known: dict[str, Any]
) -> Caption:
    """A caption cut to `longest` pieces; `known` remembers the pieces of words."""
    words, pieces = [], []
    room = longest
    for word in text.split():
        if word not in known:
            try:
                known[word] = tuple(model.pieces(word))
            except TiltmeterError:  # a word that the model cannot spell cannot be guessed either
                known[word] = ()
        room -= max(1, len(known[word]))
        if room < 0:
            break
        words.append(word)
        pieces.append(known[word])
    return Caption(tuple(words), tuple(pieces), tuple(pairs.names(word) for word in words))
