"""Which captions hold a word, and which name a group: the traps, one by one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tiltmeter.corpus import Vocabulary, count
from tiltmeter.corpus.estimates import contained_signs
from tiltmeter.errors import InputError
from tiltmeter.stimuli import Word, load
from tiltmeter.stimuli.forms import forms, plurals

SOBIT = load("sobit").words


def found(text: str, words: tuple[Word | str, ...] = SOBIT) -> set[str]:
    """The terms that one caption holds."""
    vocabulary = Vocabulary.of(words)
    tally = count(pa.array([text]), vocabulary)
    return {term for term, n in zip(vocabulary.terms, tally.captions, strict=False) if n}


def named(text: str, axis: str) -> set[str]:
    """The groups that one caption names."""
    vocabulary = Vocabulary.of(["word"])
    tally = count(pa.array([text]), vocabulary)
    signs = zip(vocabulary.signs, tally.containing[-1], strict=True)
    return {sign.group for sign, n in signs if n and sign.axis == axis}


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("A NURSE at work", {"nurse"}),
        ("two nurses' hats and the nurse's cap", {"nurse"}),
        ("the nurse’s cap", {"nurse"}),
        ("nursery nursing nursed", set()),
        ("our ceo, the CEO and all CEOs", {"CEO"}),
        ("an uninsured and an honest person", {"uninsured"}),
        ("insured", set()),
        ("an actor", {"actor"}),
        ("an actress", {"actress"}),
        ("actresses and actors", {"actress", "actor"}),
        ("a TV presenter", {"TV presenter"}),
        ("tv-presenters", {"TV presenter"}),
        ("presenter on TV", set()),
        ("on TV. Presenter of the year", set()),
        ("a flight attendant", {"flight attendant", "attendant"}),
        ("flight\u00a0attendants", {"flight attendant", "attendant"}),
        ("a low-income home", {"low-income"}),
        ("a low income home", {"low-income"}),
        ("a low\u2010income home", {"low-income"}),
        ("low, income", set()),
        ("young-nurse-photo.jpg", {"young", "nurse"}),
        ("young_nurse", {"young", "nurse"}),
        ("wearing shorts", set()),  # not short
        ("thieves and policemen", {"thief", "policeman"}),
        ("secretaries", {"secretary"}),
        ("nurse👩nurse", {"nurse"}),
        ("«nurse»", {"nurse"}),
        ("prone to disease", {"prone to disease"}),
        ("a sign language interpreter", {"sign language interpreter"}),
        ("", set()),
        ("nurs", set()),
    ],
)
def test_words(text: str, terms: set[str]) -> None:
    assert found(text) == terms


def test_letters_beyond_ascii_belong_to_words() -> None:
    assert found("a naïve nurse", ("naïve", "na", "ve")) == {"naïve"}
    assert found("NAÏVE", ("naïve",)) == {"naïve"}
    assert found("nurseé énurse", ("nurse",)) == set()


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("She saw him", {"male", "female"}),
        ("a man gives her a book", {"female"}),  # object
        ("a man and her dog", {"female"}),  # possessive
        ("the book is hers", {"female"}),
        ("he's here", {"male"}),
        ("she’ll go", {"female"}),
        ("himself, herself", {"male", "female"}),
        ("the hero, this, other, shell, history", set()),
        ("they and their dog", set()),
    ],
)
def test_pronouns(text: str, groups: set[str]) -> None:
    assert named(text, "pronoun") == groups


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("Men's shoes", {"male"}),
        ("two women", {"female"}),
        ("wives and husbands", {"male", "female"}),
        ("a ladybug, a manual, a king size bed", set()),
    ],
)
def test_gender_nouns(text: str, groups: set[str]) -> None:
    assert named(text, "noun") == groups


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("a man in a black jacket", set()),
        ("a black and white photo of a man", set()),
        ("a woman with black hair", set()),
        ("a black cat beside a man", set()),
        ("a white male dog", set()),
        ("black, man", set()),
        ("a Black man", {"Black"}),
        ("a black woman's hat", {"Black"}),
        ("two young Black female doctors", {"Black"}),
        ("a Black young female doctor", {"Black"}),
        ("a white police officer", {"White"}),
        ("a man who is black", {"Black"}),
        ("people who are Middle Eastern", {"Middle Eastern"}),
        ("a man who is in black", set()),
        ("an african-american boy", {"Black"}),
        ("an East Asian girl", {"East Asian"}),  # and not Asian too
        ("a Southeast Asian girl and an Asian boy", {"Southeast Asian", "Asian"}),
        ("east asians", {"East Asian"}),
        ("asian food", set()),
        ("an Indian elephant and a boy", set()),
        ("a Latina nurse", {"Latino_Hispanic"}),
        ("latinos", {"Latino_Hispanic"}),
        ("white young old little man", set()),  # at most two words between
    ],
)
def test_race_counts_only_beside_a_person(text: str, groups: set[str]) -> None:
    assert named(text, "race") == groups


def test_a_word_that_holds_a_group_word_is_known() -> None:
    vocabulary = Vocabulary.of(load("sobit").words)
    own = contained_signs(vocabulary)
    containing = {vocabulary.terms[at] for at in range(len(own)) if own[at].any()}
    assert containing == {"delivery man"}


def test_plurals() -> None:
    several = {"boss": "bosses", "coach": "coaches", "boy": "boys", "housewife": "housewives"}
    assert {one: plurals(one)[0] for one in several} == several
    assert forms("person") == [("person",), ("people",)]
    assert forms("!!") == []


def test_words_that_cannot_be_counted_are_refused() -> None:
    with pytest.raises(InputError, match="no letter or digit"):
        Vocabulary.of(["--"])
    with pytest.raises(InputError, match="more than 16 words"):
        Vocabulary.of(["a " * 20])
    with pytest.raises(InputError, match="at least one"):
        Vocabulary.of([])
