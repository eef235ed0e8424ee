"""What a list of stimuli holds, once it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Captions by part of speech, as in So-B-IT (Hamidieh et al. 2024, section "Caption generation").
TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "adjective": ("a photo of a {} person",),
    "noun": ("a photo of a {}",),
    "activity": ("a photo of a person who is {}",),
}


@dataclass(frozen=True, slots=True)
class Word:
    """A word with what is needed to put it into a caption.

    >>> Word("nurse", "noun", "Occupation")
    Word(text='nurse', pos='noun', category='Occupation', template=None, role='')
    """

    text: str
    pos: str = ""  # a key of TEMPLATES, or "" where the list does not say
    category: str = ""
    template: str | None = None  # for words that the template of their kind does not fit
    role: str = ""  # "placebo" for neutral words; "" leaves it to `prompts`


@dataclass(frozen=True, slots=True)
class WordSet:
    """A named set of words."""

    name: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WeatTest:
    """Targets X and Y, attributes A and B."""

    name: str
    X: WordSet
    Y: WordSet
    A: WordSet
    B: WordSet


@dataclass(frozen=True)
class Stimuli:
    """A list of stimuli. Which of the fields are filled depends on its kind:

        words      words, by category; templates where the list has its own
        classes    words as well: classes to choose from, by what they count as
        pairs      pairs, and their members as words
        weat       tests
        templates  templates by their use, and what they are filled with in `pairs` or `data`
        table      table

    `data` is the payload as it stands in the file.
    """

    name: str
    title: str
    kind: str
    source: str
    licence: str = ""
    words: tuple[Word, ...] = ()
    templates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...] = ()
    tests: tuple[WeatTest, ...] = ()
    table: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories of the words, in the order of the list."""
        return tuple(dict.fromkeys(word.category for word in self.words))
