"""Captions of scenes as rows of token numbers, made by table lookup: fast enough for training.

A caption is one of three kinds: of a concept alone ("a photo of a nurse"), of a group alone
("a photo of a red ball"), or of both ("The ball is sleeping"). The last kind is about activities
and occupations only, as in CounterBias.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from tiltmeter.stimuli import fill
from tiltmeter.testbed.language import (
    GROUP_TEMPLATES,
    HUES,
    NEUTRAL_NOUN,
    PHRASES,
    SHAPE_NOUNS,
    TARGET_TEMPLATES,
    WORDS,
    Concept,
    concepts,
    encode,
    vocabulary,
)
from tiltmeter.testbed.world import World
from tiltmeter.types import Ints

KINDS = ("concept", "group", "both")
#: How often each kind occurs.
SHARES = (0.4, 0.15, 0.45)
#: How groups are named: by shape, by hue and shape, or not at all.
NAMES = (*SHAPE_NOUNS, *PHRASES, NEUTRAL_NOUN)
BY_SHAPE, BY_PHRASE, BY_NONE = 0.5, 0.3, 0.2


def concept_captions() -> dict[str, str]:
    """The caption of each concept: its name in its first template.

    >>> concept_captions()["nurse"]
    'a photo of a nurse'
    """
    return {concept.name: fill(concept.templates[0], concept.name) for concept in concepts()}


@dataclass(frozen=True, eq=False)
class Captions:
    """Captions of a batch of scenes."""

    tokens: Ints  # n x WORDS
    masked: Ints  # the same with the concept's words (of a group caption: the noun) masked
    kind: Ints  # into KINDS
    name: Ints  # into NAMES: how the group is named, where it is
    row: Ints  # into `caption_table`: which of a concept's captions it is or would be


@dataclass(frozen=True, eq=False)
class CaptionWriter:
    """Writes captions for the scenes of a world."""

    world: World

    def say(
        self, concept: Ints, word: Ints, rng: np.random.Generator, *, first: float = 0.0
    ) -> Captions:
        """A caption for each scene.

        Parameters
        ----------
        concept : array of int of shape (n,)
            The concept of each scene.
        word : array of int of shape (n,)
            The group that its caption may name.
        rng : numpy.random.Generator
            Source of randomness.
        first : float
            Share of captions about a concept in its first template; the others are in any.

        Returns
        -------
        Captions
            Token numbers, as they are and with words masked.
        """
        n = len(concept)
        kind = rng.choice(len(KINDS), n, p=SHARES)
        is_target = np.isin(concept, self.world.targets)
        kind = np.where((kind == 2) & ~is_target, 0, kind)
        tokens, masked, begins = caption_table(self.world.concepts)
        u = np.maximum(rng.uniform(size=n) - first, 0) / (1 - first)
        row = begins[concept] + (u * np.diff(begins)[concept]).astype(int)
        written, hidden = tokens[row].copy(), masked[row].copy()
        name = self.names(word, rng)
        of_groups = _of_groups()
        of_both = _of_both(tuple(self.world.concepts[at].name for at in self.world.targets))
        at = np.flatnonzero(kind == 1)
        template = rng.integers(0, len(GROUP_TEMPLATES), len(at))
        written[at], hidden[at] = (table[name[at], template] for table in of_groups)
        at = np.flatnonzero(kind == 2)
        template = rng.integers(0, len(TARGET_TEMPLATES), len(at))
        column = np.searchsorted(self.world.targets, concept[at])
        both = name[at] * len(TARGET_TEMPLATES) + template
        written[at], hidden[at] = (table[both, column] for table in of_both)
        return Captions(written, hidden, kind, name, row)

    def names(self, word: Ints, rng: np.random.Generator) -> Ints:
        """How a caption names its group: numbers of NAMES."""
        u = rng.uniform(size=len(word))
        by_shape, by_phrase = word // len(HUES), len(SHAPE_NOUNS) + word
        return np.where(
            u < BY_SHAPE, by_shape, np.where(u < BY_SHAPE + BY_PHRASE, by_phrase, len(NAMES) - 1)
        )


@cache  # the words are those of every world
def caption_table(concepts: tuple[Concept, ...]) -> tuple[Ints, Ints, Ints]:
    """Captions of each concept in each of its templates; masked; where each concept's begin."""
    texts, begins = [], [0]
    for concept in concepts:
        for template in concept.templates:
            texts.append(fill(template, concept.name))
        begins.append(len(texts))
    tokens = encode(texts, WORDS)
    masked = tokens.copy()
    at = 0
    for row, concept in enumerate(concepts):
        words = encode([concept.name])[0][1:-1]
        for _ in range(begins[row], begins[row + 1]):
            _hide(masked[at], words)
            at += 1
    return tokens, masked, np.array(begins)


@cache
def _of_groups() -> tuple[Ints, Ints]:
    """Captions of each name in each template, names x templates x WORDS; masked."""
    templates = [template.replace("{g}", "{}") for template in GROUP_TEMPLATES]
    rows = [[fill(template, name) for template in templates] for name in NAMES]
    return _table(rows, [name.split()[-1] for name in NAMES])


@cache
def _of_both(targets: tuple[str, ...]) -> tuple[Ints, Ints]:
    """Captions of each name, template and target, names*templates x targets; masked."""
    rows = [
        [fill(t.replace("{}", target).replace("{g}", "{}"), name) for target in targets]
        for name in NAMES
        for t in TARGET_TEMPLATES
    ]
    tokens, masked = _table(rows, None)
    for column, target in enumerate(targets):
        words = encode([target])[0][1:-1]
        for row in range(len(rows)):
            _hide(masked[row, column], words)
    return tokens, masked


def _table(rows: list[list[str]], nouns: list[str] | None) -> tuple[Ints, Ints]:
    flat = encode([text for row in rows for text in row], WORDS)
    tokens = flat.reshape(len(rows), len(rows[0]), WORDS)
    masked = tokens.copy()
    if nouns is not None:
        for row, noun in enumerate(nouns):
            for column in range(len(rows[0])):
                _hide(masked[row, column], encode([noun])[0][1:-1])
    return tokens, masked


def _hide(row: Ints, words: Ints) -> None:
    """Mask the first occurrence of `words` in a row of tokens."""
    for start in range(len(row) - len(words) + 1):
        if (row[start : start + len(words)] == words).all():
            row[start : start + len(words)] = vocabulary()["[MASK]"]
            return
