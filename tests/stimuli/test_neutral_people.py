"""Neutral words about people follow the rule that their file states."""

from __future__ import annotations

import pytest

from tiltmeter.stimuli import STIMULI, load, prompts

WORDS = load("neutral-people").words
NOUNS = [word for word in WORDS if " " not in word.text]
PHRASES = [word for word in WORDS if " " in word.text]


def test_there_are_enough_of_them() -> None:
    assert len(NOUNS) >= 150
    assert len({word.text for word in WORDS}) == len(WORDS) >= 300
    assert len({word.category for word in NOUNS}) >= 8
    assert {(word.pos, word.role) for word in WORDS} == {("noun", "placebo")}


def test_phrases_are_a_person_with_a_neutral_object() -> None:
    objects = {word.text for word in load("placebo-nouns").words}
    for word in PHRASES:
        person, _, thing = word.text.partition(" with ")
        assert person == "person"
        assert thing.partition(" ")[2] in objects
    shown = {prompt.text for prompt in prompts(PHRASES, templates="a photo of a {}")}
    assert "a photo of a person with an envelope" in shown


@pytest.mark.parametrize("other", sorted(set(STIMULI) - {"neutral-people", "placebo-nouns"}))
def test_no_word_of_another_list(other: str) -> None:
    listed = {word.text.lower() for word in load(other).words}
    assert not listed & {word.text for word in WORDS}


def test_length_and_frequency() -> None:
    assert all(4 <= len(word.text) <= 14 and word.text.isalpha() for word in NOUNS)
    frequency = pytest.importorskip("wordfreq").zipf_frequency
    outside = {word.text: f for word in NOUNS
               if not 1.5 <= (f := frequency(word.text, "en")) <= 5.0}  # fmt: skip
    assert not outside
