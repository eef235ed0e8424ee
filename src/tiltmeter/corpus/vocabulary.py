"""What is looked for, laid out so that a caption's words are found by number and not by search.

Every word of every term gets a number. Terms are a tree of such numbers read from their last word
back, so that a term is found at the moment its last word has been read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tiltmeter.corpus.forms import forms
from tiltmeter.errors import InputError
from tiltmeter.stimuli import Word, load
from tiltmeter.types import Ints

#: What may follow a person before a race adjective: "a man who is black".
WHO, BE = ("who", "that"), ("is", "are", "was", "were")
LONGEST = 16  # words of a term at most; a power of 2
FNV_START, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


class GroupWordKind(NamedTuple):
    """One kind of group word: which words (axis) name which group."""

    axis: str  # "pronoun", "noun", "race"
    attribute: str  # "gender", "race"
    group: str


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Terms, and signs of groups, as tables for the counter.

    >>> found = Vocabulary.of(["nurse", "TV presenter"])
    >>> found.terms
    ('nurse', 'TV presenter')
    >>> [sign.group for sign in found.signs if sign.axis == "pronoun"]
    ['male', 'female']
    """

    terms: tuple[str, ...]
    signs: tuple[GroupWordKind, ...]
    items: tuple[tuple[tuple[str, ...], int], ...]  # a word sequence, and what it stands for

    @classmethod
    def of(cls, given: Iterable[Word | str]) -> Vocabulary:
        """Of words to count; one that stands there twice is counted once."""
        listed = [Word(one) if isinstance(one, str) else one for one in given]
        terms = tuple(dict.fromkeys(word.text for word in listed))
        if not terms:
            raise InputError("there are no words to count; give at least one")
        items: dict[tuple[tuple[str, ...], int], None] = {}
        number = {text: at for at, text in enumerate(terms)}
        for word in listed:
            found = forms(word.text, word.pos)
            if not found:
                raise InputError(f"{word.text!r} holds no letter or digit: it cannot be counted")
            if max(map(len, found)) > LONGEST:
                raise InputError(f"{word.text!r} has more than {LONGEST} words: it is too long")
            items |= dict.fromkeys((form, number[word.text]) for form in found)
        signs, of_signs = _signs(len(terms))
        return cls(terms, signs, (*items, *of_signs))

    @cached_property
    def axes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(sign.axis for sign in self.signs))

    @cached_property
    def tables(self) -> tuple[Ints, ...]:
        """Arrays for the counter: hashes, their word numbers, edges of the tree, what ends there.

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
            for one in reversed(before):
                if one not in children[node]:
                    children[node][one] = len(children)
                    children.append({})
                    ends.append([])
                node = children[node][one]
            ends[node].append(item)
        size = 1 << (4 * len(number)).bit_length()
        hashes, ids = np.zeros(size, np.uint64), np.full(size, -1, np.int32)
        for word, at in number.items():
            value = fnv(word.encode())
            slot = value & (size - 1)
            while ids[slot] >= 0:
                slot = (slot + 1) & (size - 1)
            hashes[slot], ids[slot] = value, at
        edges = [pair for node in children for pair in node.items()]
        return (
            hashes, ids, _starts(children), np.array(edges, np.int32).reshape(-1, 2),
            _starts(ends), np.array([item for node in ends for item in node], np.int32),
        )  # fmt: skip

    @cached_property
    def sign_axes(self) -> Ints:
        """The number of each sign's axis."""
        return np.array([self.axes.index(sign.axis) for sign in self.signs], np.int32)


def fnv(data: bytes) -> int:
    """The hash FNV-1a of 64 bits, under which the counter knows a word."""
    value = FNV_START
    for byte in data:
        value = (value ^ byte) * FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return value


def _starts(nodes: Sequence[Any]) -> Ints:
    return np.concatenate([[0], np.cumsum([len(node) for node in nodes])]).astype(np.int32)


def _signs(terms: int) -> tuple[tuple[GroupWordKind, ...], list[tuple[tuple[str, ...], int]]]:
    """Signs of gender and race, and the items of their words.

    Items after the terms: a sign that counts alone; then, for each sign, an adjective that counts
    beside a person; then persons, words between, `who` and `is`.
    """
    table = load("caption-groups").table
    signs = [GroupWordKind("pronoun", "gender", group) for group in table["gender"]]
    signs += [GroupWordKind("noun", "gender", group) for group in table["gender"]]
    signs += [GroupWordKind("race", "race", group) for group in table["race"]]
    alone, beside, rest = terms, terms + len(signs), terms + 2 * len(signs)
    items: list[tuple[tuple[str, ...], int]] = []
    for at, (axis, attribute, group) in enumerate(signs):
        entry = table[attribute][group]
        if axis == "pronoun":
            items += [((word,), alone + at) for word in entry["pronouns"]]
        elif axis == "noun":
            items += [(form, alone + at) for word in entry["nouns"] for form in forms(word, "noun")]
        else:  # nouns of race are plurals already
            items += [(form, alone + at) for word in entry["nouns"] for form in forms(word, "race")]
            items += [
                (form, beside + at)
                for word in entry["adjectives"]
                for form in forms(word, "adjective")
            ]
    near = table["beside"]
    items += [(form, rest) for word in near["persons"] for form in forms(word, "noun")]
    items += [((word,), rest + 1) for word in near["between"]]
    items += [((word,), rest + 2) for word in WHO] + [((word,), rest + 3) for word in BE]
    return tuple(signs), list(dict.fromkeys(items))
