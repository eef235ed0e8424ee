"""The vocabulary of the counter, as lookup tables.

Every word of every term has a number. Terms form a tree of these numbers, read backwards from their
last word, so that a term is recognised as soon as its last word has been read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.stimuli import Word, load
from tiltmeter.stimuli.forms import forms
from tiltmeter.types import Ints

#: Words that may connect a person and a race adjective: "a man who is black".
WHO, BE = ("who", "that"), ("is", "are", "was", "were")
#: What a file of group words looks like.
EXAMPLE = "expected two groups or more with their words, as in 'age: {young: [kid], old: [elder]}'"
LONGEST = 16  # most words of a term; a power of 2
FNV_START, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


class GroupWordKind(NamedTuple):
    """One kind of group word: the kind of word (axis), and the group that it names."""

    axis: str  # "pronoun", "noun", "race"
    attribute: str  # "gender", "race"
    group: str


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Terms to count, and group words (signs), as tables for the counter.

    >>> vocabulary = Vocabulary.of(["nurse", "TV presenter"])
    >>> vocabulary.terms
    ('nurse', 'TV presenter')
    >>> [sign.group for sign in vocabulary.signs if sign.axis == "pronoun"]
    ['male', 'female']
    """

    terms: tuple[str, ...]
    signs: tuple[GroupWordKind, ...]
    items: tuple[tuple[tuple[str, ...], int], ...]  # a word sequence, and the number of its meaning

    @classmethod
    def of(cls, words: Iterable[Word | str], groups: Mapping[str, Any] | None = None) -> Vocabulary:
        """The vocabulary of words to count; duplicates are counted once.

        `groups` has other group words than those of gender and race: attribute -> group -> words.
        """
        entries = [Word(entry) if isinstance(entry, str) else entry for entry in words]
        terms = tuple(dict.fromkeys(word.text for word in entries))
        if not terms:
            raise InputError("there are no words to count: pass at least one")
        items: dict[tuple[tuple[str, ...], int], None] = {}
        number = {text: row for row, text in enumerate(terms)}
        for word in entries:
            word_forms = forms(word.text, word.pos)
            if not word_forms:
                raise InputError(f"{word.text!r} has no letter or digit, so it cannot be counted")
            if max(map(len, word_forms)) > LONGEST:
                raise InputError(f"{word.text!r} has more than {LONGEST} words, the limit")
            items |= dict.fromkeys((form, number[word.text]) for form in word_forms)
        signs, of_signs = _signs(len(terms)) if groups is None else _own_signs(groups, len(terms))
        return cls(terms, signs, (*items, *of_signs))

    @cached_property
    def axes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(sign.axis for sign in self.signs))

    def signs_of(self, axis: str) -> list[int]:
        """Numbers of the signs of an axis."""
        return [number for number, sign in enumerate(self.signs) if sign.axis == axis]

    @cached_property
    def tables(self) -> tuple[Ints, ...]:
        """Arrays for the counter: hashes, word numbers, edges of the tree, and items at its nodes.

        The first nodes of the tree are the words, by number. Node n's edges are
        `edges[edge_at[n]:edge_at[n + 1]]`, each a word number and a node; likewise its items.
        """
        number: dict[str, int] = {}
        for form, _ in self.items:
            for word in form:
                number.setdefault(word, len(number))
        children: list[dict[int, int]] = [{} for _ in number]
        ends: list[list[int]] = [[] for _ in number]
        for form, item in self.items:
            *before, last = (number[word] for word in form)
            node = last
            for word_number in reversed(before):
                if word_number not in children[node]:
                    children[node][word_number] = len(children)
                    children.append({})
                    ends.append([])
                node = children[node][word_number]
            ends[node].append(item)
        size = 1 << (4 * len(number)).bit_length()
        hashes, ids = np.zeros(size, np.uint64), np.full(size, -1, np.int32)
        for word, word_id in number.items():
            value = fnv(word.encode())
            slot = value & (size - 1)
            while ids[slot] >= 0:
                slot = (slot + 1) & (size - 1)
            hashes[slot], ids[slot] = value, word_id
        edges = [pair for node in children for pair in node.items()]
        return (
            hashes, ids, _starts(children), np.array(edges, np.int32).reshape(-1, 2),
            _starts(ends), np.array([item for node in ends for item in node], np.int32),
        )  # fmt: skip

    @cached_property
    def sign_axes(self) -> Ints:
        """Index of each sign's axis."""
        return np.array([self.axes.index(sign.axis) for sign in self.signs], np.int32)


def fnv(data: bytes) -> int:
    """The 64-bit FNV-1a hash by which the counter recognises a word."""
    value = FNV_START
    for byte in data:
        value = (value ^ byte) * FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return value


def _starts(nodes: Sequence[Any]) -> Ints:
    return np.concatenate([[0], np.cumsum([len(node) for node in nodes])]).astype(np.int32)


def _signs(terms: int) -> tuple[tuple[GroupWordKind, ...], list[tuple[tuple[str, ...], int]]]:
    """Signs of gender and race, and the items of their words.

    Items after the terms: signs that count on their own; then, for each sign, adjectives that count
    only next to a person; then persons, words in between, `who` and `is`.
    """
    table = load("caption-groups").table
    signs = [GroupWordKind("pronoun", "gender", group) for group in table["gender"]]
    signs += [GroupWordKind("noun", "gender", group) for group in table["gender"]]
    signs += [GroupWordKind("race", "race", group) for group in table["race"]]
    alone_start, adjective_start, context_start = terms, terms + len(signs), terms + 2 * len(signs)
    items: list[tuple[tuple[str, ...], int]] = []
    for number, (axis, attribute, group) in enumerate(signs):
        entry = table[attribute][group]
        if axis == "pronoun":
            items += [((word,), alone_start + number) for word in entry["pronouns"]]
        elif axis == "noun":
            items += [
                (form, alone_start + number)
                for word in entry["nouns"]
                for form in forms(word, "noun")
            ]
        else:  # nouns of race are already plural
            items += [
                (form, alone_start + number)
                for word in entry["nouns"]
                for form in forms(word, "race")
            ]
            items += [
                (form, adjective_start + number)
                for word in entry["adjectives"]
                for form in forms(word, "adjective")
            ]
    context = table["beside"]
    items += [(form, context_start) for word in context["persons"] for form in forms(word, "noun")]
    items += [((word,), context_start + 1) for word in context["between"]]
    items += [((word,), context_start + 2) for word in WHO] + [
        ((word,), context_start + 3) for word in BE
    ]
    return tuple(signs), list(dict.fromkeys(items))


def _own_signs(
    groups: Mapping[str, Any], terms: int
) -> tuple[tuple[GroupWordKind, ...], list[tuple[tuple[str, ...], int]]]:
    """Signs of groups that a user names by words of their own."""
    signs: list[GroupWordKind] = []
    items: dict[tuple[tuple[str, ...], int], None] = {}
    for attribute, by_group in groups.items():
        listed = isinstance(by_group, Mapping) and len(by_group) > 1
        if not listed or not all(isinstance(words, list) and words for words in by_group.values()):
            raise InputError(f"group words of {attribute!r} are incomplete; {EXAMPLE}",
                             value=attribute)  # fmt: skip
        for group, words in by_group.items():
            own = [form for word in words for form in forms(str(word), "noun")]
            items |= dict.fromkeys((form, terms + len(signs)) for form in own)
            signs.append(GroupWordKind(str(attribute), str(attribute), str(group)))
    return tuple(signs), list(items)
