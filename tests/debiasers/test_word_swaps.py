"""Captions word by word: swaps, masks, and what cannot be swapped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltmeter.debiasers.word_swaps import Caption, WordPairs, gender_pairs, read_caption
from tiltmeter.errors import InputError

PAIRS = WordPairs.of(gender_pairs())


class Speller:
    """Spells a word by its letters; knows no digits."""

    def pieces(self, word: str) -> tuple[int, ...]:
        if any(letter.isdigit() for letter in word):
            raise InputError("no digits")
        return tuple(ord(letter) for letter in word[:3])


def caption(text: str, max_length: int = 60) -> Caption:
    return read_caption(text, Speller(), PAIRS, max_length, {})


@pytest.mark.parametrize(
    ("text", "swapped"),
    [
        ("A man rides his horse.", "A woman rides her horse."),
        ("The MAN's dog, and two women", "The WOMAN's dog, and two men"),
        ("Women (and a girl) play", "Men (and a boy) play"),
        ("a mango on a table", "a mango on a table"),
        ("he sees himself", "she sees herself"),
    ],
)
def test_bias_words_are_swapped_and_all_else_stays(text: str, swapped: str) -> None:
    assert " ".join(PAIRS.swap(word) for word in text.split()) == swapped


def test_swapping_nouns_twice_gives_the_caption_back() -> None:
    for first, second in gender_pairs():
        if first in ("his", "him"):  # her is both
            continue
        assert PAIRS.swap(PAIRS.swap(first)) == first, first
        assert PAIRS.swap(PAIRS.swap(second)) == second, second


def test_a_caption_of_both_sides_has_no_opposite() -> None:
    assert caption("a man on a bench").side == 0
    assert caption("two girls on a bench").side == 1
    assert caption("a man and a woman").side is None
    assert caption("a dog on a bench").side is None


@given(st.integers(0, 2**32), st.floats(0, 0.99))
def test_masks(seed: int, rate: float) -> None:
    one = caption("a man in 1990 rides his small horse")
    at = one.masks(rate, np.random.default_rng(seed))
    assert len(at) >= 1
    assert 3 not in at  # what cannot be spelled cannot be hidden
    shown, answer = one.text(at, "[MASK]"), one.answer(at)
    assert shown.count("[MASK]") == len(answer) == sum(len(one.pieces[i]) for i in at)
    other = one.text(at, "[MASK]", PAIRS)
    assert other.count("[MASK]") == shown.count("[MASK]")
    quiet = one.masks(rate, np.random.default_rng(seed), hide_bias=False)
    assert not {1, 5} & set(quiet.tolist())
    assert caption("man woman").masks(rate, np.random.default_rng(seed), hide_bias=False).size


def test_the_mask_rate_is_the_rate() -> None:
    one, rng = caption("one two three four five six seven eight nine ten"), np.random.default_rng(0)
    counts = [len(one.masks(0.4, rng)) for _ in range(2000)]
    assert np.mean(counts) == pytest.approx(4, abs=0.15)


def test_long_captions_are_cut_by_pieces() -> None:
    assert caption("four word long caption", max_length=7).words == ("four", "word")
    assert caption("1 2 3 4", max_length=3).words == ("1", "2", "3")


def test_pairs_that_make_no_sense() -> None:
    for wrong, says in (
        ([("man",)], "two different words"),
        ([("man", "Man")], "two different words"),
        ([("man", "woman"), ("lady", "man")], "both sides"),
        ([], "no pair"),
    ):
        with pytest.raises(InputError, match=says):
            WordPairs.of(wrong)
