"""Neutral words about people follow the rule that their file states."""

from __future__ import annotations

from collections import Counter

import pytest

from tiltmeter.stimuli import STIMULI, load

WORDS = load("neutral-people").words
SINGLE = [word.text for word in WORDS if " " not in word.text]
TWO = [word.text for word in WORDS if " " in word.text]


def test_there_are_enough_of_them() -> None:
    assert len(set(SINGLE)) == len(SINGLE) >= 300
    assert len({word.category for word in WORDS if " " not in word.text}) >= 8
    assert {(word.pos, word.role) for word in WORDS} == {("noun", "placebo")}


def test_two_words_are_as_frequent_as_among_the_words_they_judge() -> None:
    nouns = [word.text for word in load("sobit").words if word.pos == "noun"]
    expected = sum(" " in text for text in nouns) / len(nouns)
    assert len(TWO) / len(WORDS) == pytest.approx(expected, abs=0.02)


def test_the_second_of_two_words_is_a_single_word_of_the_list() -> None:
    last = Counter(text.split()[1] for text in TWO)
    assert {*last} <= {*SINGLE}
    assert max(last.values()) <= 2


@pytest.mark.parametrize("other", sorted(set(STIMULI) - {"neutral-people", "placebo-nouns"}))
def test_no_word_of_another_list(other: str) -> None:
    listed = {word.text.lower() for word in load(other).words}
    assert not listed & {*SINGLE, *TWO}


def test_length_and_frequency() -> None:
    assert all(4 <= len(text) <= 14 and text.isalpha() for text in SINGLE)
    frequency = pytest.importorskip("wordfreq").zipf_frequency
    outside = {text: f for text in SINGLE if not 1.5 <= (f := frequency(text, "en")) <= 5.0}
    assert not outside
