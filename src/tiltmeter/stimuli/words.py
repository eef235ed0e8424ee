"""Word lists as data."""

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
    """A word and what is needed to put it into a template.

    Parameters
    ----------
    text : str
        The word or phrase.
    pos : str
        Part of speech: a key of `TEMPLATES`, or "" where the list does not say.
    category : str
        Its category in the list.
    template : str, optional
        Its own template, for words that the usual one does not fit.
    role : str
        "placebo" for neutral words; "" leaves it to `prompts`.

    Examples
    --------
    >>> Word("nurse", "noun", "Occupation")
    Word(text='nurse', pos='noun', category='Occupation', template=None, role='')
    """

    text: str
    pos: str = ""
    category: str = ""
    template: str | None = None
    role: str = ""


@dataclass(frozen=True, slots=True)
class WordSet:
    """A named set of words."""

    name: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WeatTest:
    """A WEAT: target sets X and Y, attribute sets A and B."""

    name: str
    X: WordSet
    Y: WordSet
    A: WordSet
    B: WordSet


@dataclass(frozen=True)
class Stimuli:
    """A list of stimuli. Its kind decides which of the fields are filled.

    - `words`: `words` by category, and `templates` where the list has its own
    - `classes`: `words`, as classes to choose from, by what they count as
    - `pairs`: `pairs`, and their members as `words`
    - `weat`: `tests`
    - `templates`: `templates` by their use, and what fills them in `pairs` or `data`
    - `table`: `table`

    Parameters
    ----------
    name, title, kind, source, licence, version : str
        The header of the list.
    words : tuple of Word
        The words, in the order of the list.
    templates : mapping of str to tuple of str
        Templates by part of speech, or by use.
    pairs : tuple of pairs of str
        Opposite words.
    tests : tuple of WeatTest
        WEATs.
    table : mapping
        A table of terms.
    data : mapping
        The content of the file, without the header.

    Examples
    --------
    >>> from tiltmeter.stimuli import load
    >>> load("sobit").kind, load("sobit").words[0].text
    ('words', 'attractive')
    """

    name: str
    title: str
    kind: str
    source: str
    licence: str = ""
    version: str = ""
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
