"""The language of the world: its concepts, the words for its groups, and a closed vocabulary.

Concepts are the words of every built-in list that an audit uses, including neutral words. The
vocabulary is a file with one word per line; a word that is not in it is an error, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from tiltmeter import stimuli
from tiltmeter.errors import UnknownNameError
from tiltmeter.types import Ints

SHAPES = ("round", "square")
SHAPE_NOUNS = ("ball", "block")
HUES = ("red", "orange", "yellow", "green", "blue", "violet", "grey")
NEUTRAL_NOUN = "figure"
#: Groups by shape and hue: group = shape * len(HUES) + hue.
GROUPS = tuple(f"{shape} | {hue}" for shape in SHAPES for hue in HUES)
PHRASES = tuple(f"{hue} {noun}" for noun in SHAPE_NOUNS for hue in HUES)

LISTS = (
    "sobit", "sobit-extra", "berg", "iat", "activities", "occupations", "harms",
    "placebo-nouns", "placebo-adjectives", "neutral-activities",
)  # fmt: skip
#: Sentences that name a group: of the group alone, and of a group and a concept ({g}, {}).
GROUP_TEMPLATES = ("a photo of a {g}", "a {g} is in the picture", "this is a {g}", "the {g}")
TARGET_TEMPLATES = ("The {g} is {}", "The {g} in the photo is {}", "A {g} who is {}",
                    "A photo of a {g} who is {}")  # fmt: skip
#: Most tokens of a text, including [CLS] and [SEP].
WORDS = 16
SPECIAL = ("[PAD]", "[MASK]", "[CLS]", "[SEP]")


@dataclass(frozen=True)
class Concept:
    """A word or phrase that has an icon."""

    name: str
    pos: str
    category: str
    placebo: bool
    templates: tuple[str, ...]


@cache
def concepts() -> tuple[Concept, ...]:
    """Every word of the lists, once, in their order; `placebo` marks neutral words, without bias.

    >>> concepts()[0].name, len(concepts()) > 900
    ('attractive', True)
    """
    by_name: dict[str, Concept] = {}
    for name in LISTS:
        prompts = stimuli.prompts(stimuli.load(name))
        for prompt in prompts:
            if prompt.category == "person":  # phrases for real groups do not belong here
                continue
            known = by_name.get(prompt.concept)
            templates = (*(known.templates if known else ()), prompt.template)
            by_name[prompt.concept] = Concept(
                prompt.concept,
                known.pos if known else prompt.pos,
                known.category if known else prompt.category or name,
                prompt.role == "placebo",
                tuple(dict.fromkeys(templates)),
            )
    return tuple(by_name.values())


def split(text: str) -> list[str]:
    """Lower-case words of a text; `[MASK]` is kept, and hyphens do not separate words.

    >>> split("A photo of a gang-related person, who is [MASK].")
    ['a', 'photo', 'of', 'a', 'gang-related', 'person', 'who', 'is', '[MASK]']
    """
    words = re.findall(r"\[[A-Z]+\]|[^\s.,;:!?\"()]+", text)
    return [word if word in SPECIAL else word.lower() for word in words]


@cache
def vocabulary() -> dict[str, int]:
    """Every word of the world, with its number."""
    text = resources.files(__package__).joinpath("vocabulary.txt").read_text(encoding="utf-8")
    return {word: number for number, word in enumerate(text.split("\n")[:-1])}


def encode(texts: Sequence[str], length: int | None = None) -> Ints:
    """Token numbers of texts.

    Parameters
    ----------
    texts : sequence of str
        Texts of known words.
    length : int, optional
        Pad to at least this many tokens.

    Returns
    -------
    array of int of shape (texts, tokens)
        [CLS], words, [SEP], and padding (0).

    Raises
    ------
    UnknownNameError
        A word is not in the vocabulary.

    Examples
    --------
    >>> encode(["a photo of a nurse"]).shape
    (1, 7)
    >>> encode(["a photo of a zebra"])
    Traceback (most recent call last):
    ...
    tiltmeter.errors.UnknownNameError: unknown word of the testbed's closed vocabulary 'zebra'; ...
    """
    known = vocabulary()
    rows: dict[str, list[int]] = {}
    for text in dict.fromkeys(texts):  # many callers repeat one text for each image
        row = [known["[CLS]"]]
        for word in split(text):
            if word not in known:
                raise UnknownNameError("word of the testbed's closed vocabulary", word, known)
            row.append(known[word])
        rows[text] = [*row, known["[SEP]"]]
    width = max([length or 0, *map(len, rows.values())])
    padded = {text: row + [0] * (width - len(row)) for text, row in rows.items()}
    return np.array([padded[text] for text in texts], np.int64).reshape(len(texts), width)


def word_list() -> list[str]:
    """What the vocabulary file must contain, in its order: special tokens, then words sorted."""
    sentences = [
        template.replace("{}", concept.name)
        for concept in concepts()
        for template in (*concept.templates, "{} an a")
    ]
    sentences += [*GROUP_TEMPLATES, *TARGET_TEMPLATES, *PHRASES, *SHAPES, NEUTRAL_NOUN]
    for name in ("counterbias",):
        sentences += [text for texts in stimuli.load(name).templates.values() for text in texts]
    words = {word for sentence in sentences for word in split(sentence)}
    words -= {"{}", "{g}", *SPECIAL}
    return [*SPECIAL, *sorted(words)]
