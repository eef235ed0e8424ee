"""Neutral activities, objects and adjectives follow the rules that their files state."""

from __future__ import annotations

import pytest

from tiltmeter.stimuli import STIMULI, load

WORDS = load("neutral-activities").words


@pytest.mark.parametrize(
    ("name", "pos"),
    [("neutral-activities", "activity"), ("placebo-nouns", "noun"),
     ("placebo-adjectives", "adjective")],
)  # fmt: skip
def test_there_are_enough_of_them(name: str, pos: str) -> None:
    words = load(name).words
    assert len({word.text for word in words}) == len(words) >= 300
    assert len({word.category for word in words}) >= 8
    assert {(word.pos, word.role) for word in words} == {(pos, "placebo")}


@pytest.mark.parametrize("other", sorted(set(STIMULI) - {"neutral-activities"}))
def test_no_word_of_another_list(other: str) -> None:
    assert not {word.text.lower() for word in load(other).words} & {word.text for word in WORDS}


def test_form_and_frequency() -> None:
    assert all(word.text.isalpha() and word.text.endswith("ing") for word in WORDS)
    frequency = pytest.importorskip("wordfreq").zipf_frequency
    assert all(1.5 <= frequency(word.text, "en") <= 5.5 for word in WORDS)
