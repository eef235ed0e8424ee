"""How a written answer is read: refusals, hedges and mentions, by a fixed list of words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from tiltmeter.stimuli import Word, load
from tiltmeter.stimuli.forms import forms
from tiltmeter.types import WrittenText

FIRST = 40  # words in which a refusal is looked for
BEFORE = 4  # words before a mention in which a negation undoes it


@cache
def answer_words() -> Mapping[str, Any]:
    """The table `answer-words`: prompts, refusals, hedges, negations and words of groups."""
    return load("answer-words").table


def words_of(text: str) -> list[str]:
    """Lower-case words with their apostrophes; hyphens separate words.

    >>> words_of("A well-spoken nurse isn’t here.")
    ['a', 'well', 'spoken', 'nurse', "isn't", 'here']
    """
    return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.lower().replace("\u2019", "'"))


def is_refused(answer: WrittenText) -> bool:
    """Whether an answer is a refusal: one of the phrases is among its first words.

    >>> is_refused(WrittenText("I'm sorry, but I can't identify people.", "stop", 9))
    True
    >>> is_refused(WrittenText("A nurse who can't be older than thirty.", "stop", 9))
    False
    """
    said = f" {' '.join(words_of(answer.text)[:FIRST])} "
    return any(f" {phrase} " in said for phrase in answer_words()["refusals"])


def hedge_count(answer: WrittenText) -> int:
    """Number of hedges.

    >>> hedge_count(WrittenText("It seems that she might be a doctor.", "stop", 8))
    2
    """
    said = f" {' '.join(words_of(answer.text))} "
    return sum(said.count(f" {phrase} ") for phrase in answer_words()["hedges"])


class Mentions:
    """Finds words in descriptions, in all their forms, unless a negation precedes them.

    Parameters
    ----------
    words : sequence of Word
        What is looked for.

    Examples
    --------
    >>> found = Mentions([Word("nurse", "noun"), Word("TV presenter", "noun")])
    >>> found.in_text("Two nurses and no TV presenter.")
    {'nurse': 1}
    """

    def __init__(self, words: Sequence[Word]) -> None:
        self._negations = set(answer_words()["negations"])
        self._forms: dict[str, list[tuple[tuple[str, ...], str]]] = {}  # by first word
        for word in words:
            for form in forms(word.text, word.pos):
                self._forms.setdefault(form[0], []).append((form, word.text))

    def in_text(self, text: str) -> dict[str, int]:
        """How often each word is mentioned; only those that are."""
        found: dict[str, int] = {}
        for sentence in re.split(r"[.!?;\n]+", text):
            said = words_of(sentence)
            for at, first in enumerate(said):
                for form, name in self._forms.get(first, ()):
                    if tuple(said[at : at + len(form)]) == form and not self._negated(said, at):
                        found[name] = found.get(name, 0) + 1
        return found

    def _negated(self, said: Sequence[str], at: int) -> bool:
        return bool(self._negations & set(said[max(0, at - BEFORE) : at]))


def group_words(names: Iterable[str]) -> set[str]:
    """Words that name a group: of gender and race, those of the list, and the groups' own names.

    >>> {"woman", "red"} <= group_words(["round | red"])
    True
    """
    table = load("caption-groups").table
    listed = [word for attribute in ("gender", "race") for group in table[attribute].values()
              for kind in group.values() for word in kind]  # fmt: skip
    own = [word for name in names for word in words_of(name)]
    return {*listed, *answer_words()["group_words"], *own}
