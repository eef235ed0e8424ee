"""Captions word by word: which words name a side of the bias concept, swaps and masks."""

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

#: Pronouns whose counterpart depends on the sentence get the more common one.
PRONOUNS = (("he", "she"), ("his", "her"), ("himself", "herself"))


@cache
def gender_pairs() -> tuple[tuple[str, str], ...]:
    """Return pairs of gendered words, man and woman first; the first of each pair is male."""
    nouns = stimuli.load("group-nouns").table["gender"]
    pairs = list(stimuli.load("counterbias").pairs)
    for number in ("singular", "plural"):
        pairs += zip(nouns["male"][number], nouns["female"][number], strict=True)
    return tuple(dict.fromkeys((*pairs, *PRONOUNS)))


@dataclass(frozen=True, eq=False)
class WordPairs:
    """Words of the two sides of a bias concept, each with its counterpart."""

    other: Mapping[str, str]
    side: Mapping[str, int]

    @classmethod
    def of(cls, pairs: Sequence[Sequence[str]]) -> WordPairs:
        """Return the words of some pairs.

        Raises
        ------
        InputError
            If a pair is not two different words, or a word is on both sides.
        """
        other: dict[str, str] = {}
        side: dict[str, int] = {}
        for pair in pairs:
            if len(pair) != 2 or len({word.lower() for word in pair}) < 2:
                raise InputError(f"a pair is two different words; got {list(pair)}")
            for at in (0, 1):
                word = pair[at].lower()
                if side.get(word, at) != at:
                    raise InputError(f"{word!r} is on both sides of the pairs: leave one out")
                other.setdefault(word, pair[1 - at].lower())
                side[word] = at
        if not other:
            raise InputError("no pair of bias words is given, such as [man, woman]")
        return cls(other, side)

    def side_of(self, word: str) -> int | None:
        """Return the side that a word names, if any."""
        return self.side.get(_bare(word))

    def swap(self, word: str) -> str:
        """Return the counterpart of a word, with the same capitals and punctuation.

        >>> WordPairs.of([("man", "woman")]).swap("Man's,")
        "Woman's,"
        """
        bare = _bare(word)
        if bare not in self.other:
            return word
        counterpart = self.other[bare]
        at = word.lower().index(bare)
        inner = word[at : at + len(bare)]
        if inner.isupper() and len(inner) > 1:
            counterpart = counterpart.upper()
        elif inner[0].isupper():
            counterpart = counterpart.capitalize()
        return word[:at] + counterpart + word[at + len(bare) :]


def _bare(word: str) -> str:
    """A word without the punctuation around it and a possessive's ending."""
    plain = word.lower().strip(".,;:!?\"'()[]")
    return re.sub(r"['\u2019]s$", "", plain)


@dataclass(frozen=True, eq=False)
class Caption:
    """A caption as words, each with its word pieces and the side it names."""

    words: tuple[str, ...]
    pieces: tuple[tuple[int, ...], ...]  # empty for a word that cannot be masked
    sides: tuple[int | None, ...]

    @property
    def side(self) -> int | None:
        """0 or 1 if the caption names one side only; else None: it has no counterfactual."""
        named = {side for side in self.sides if side is not None}
        return named.pop() if len(named) == 1 else None

    def masks(self, rate: float, rng: np.random.Generator, *, hide_bias: bool = True) -> Ints:
        """Draw the words to mask: each with probability `rate`, and at least one, if any can be.

        Without `hide_bias`, a bias word is masked only where nothing else can be.
        """
        can = np.array([len(pieces) > 0 for pieces in self.pieces])
        neutral = can & np.array([side is None for side in self.sides])
        if not hide_bias and neutral.any():
            can = neutral
        if not can.any():
            return np.empty(0, dtype=np.int64)
        draws = np.where(can, rng.random(len(can)), 2.0)  # never, where it cannot be
        chosen = np.flatnonzero(draws < rate)
        return chosen if len(chosen) else np.array([draws.argmin()])

    def text(self, masked: Ints | Sequence[int], mask: str, pairs: WordPairs | None = None) -> str:
        """Return the caption with words masked, and with `pairs` its bias words swapped."""
        at = set(np.asarray(masked).tolist())
        return " ".join(
            " ".join([mask] * len(self.pieces[number]))
            if number in at
            else (word if pairs is None else pairs.swap(word))
            for number, word in enumerate(self.words)
        )

    def answer(self, masked: Ints) -> list[int]:
        """Return the pieces behind the masks, in order."""
        return [piece for at in masked.tolist() for piece in self.pieces[at]]


def read_caption(
    text: str, model: Any, pairs: WordPairs, max_length: int, known: dict[str, Any]
) -> Caption:
    """Split a caption into words, cut to `max_length` pieces.

    Parameters
    ----------
    text
        The caption.
    model
        The model whose word pieces are used.
    pairs
        The bias words.
    max_length
        Maximum number of pieces.
    known
        Pieces of words that were read before; new ones are added.
    """
    words, pieces = [], []
    room = max_length
    for word in text.split():
        if word not in known:
            try:
                known[word] = tuple(model.pieces(word))
            except TiltmeterError:  # a word that the model cannot spell cannot be predicted either
                known[word] = ()
        room -= max(1, len(known[word]))
        if room < 0:
            break
        words.append(word)
        pieces.append(known[word])
    return Caption(tuple(words), tuple(pieces), tuple(pairs.side_of(word) for word in words))
