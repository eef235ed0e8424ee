"""Texts that name groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.debiasers.speaking import said
from tiltmeter.debiasers.group_prompts import group_texts, with_group
from tiltmeter.errors import InputError, UnknownNameError


def test_names_of_groups_make_sentences() -> None:
    made = group_texts(said, None, ("Male", "East Asian", "Latino_Hispanic"))
    assert made.group_prompts == {
        "Male": ("a photo of a Male person",),
        "East Asian": ("a photo of an East Asian person",),
        "Latino_Hispanic": ("a photo of a Latino Hispanic person",),
    }
    assert made.harmful is None
    assert made.helpful == []
    assert ("a photo of a Male nurse", "a photo of an East Asian nurse") in made.equivalent
    assert len(made.equivalent) == 13 * 3


def test_a_crossing_has_the_words_of_its_parts() -> None:
    made = group_texts(said, None, ("East Asian | Male", "White | Male"))
    assert made.group_prompts["East Asian | Male"] == ("a photo of an East Asian Male person",)


def test_the_testbed_has_words_of_its_own() -> None:
    shape = group_texts(said, None, ("round", "square"), testbed=True)
    assert shape.group_prompts == {
        "round": ("a photo of a ball",),
        "square": ("a photo of a block",),
    }
    assert shape.words == {"round": "ball", "square": "block"}
    assert ("a photo of a ball nurse", "a photo of a block nurse") in shape.equivalent
    hue = group_texts(said, None, ("red", "orange"), testbed=True)
    assert hue.group_prompts["orange"] == (
        "a photo of an orange ball",
        "a photo of an orange block",
    )
    for name in ("round | red", "red | round"):
        both = group_texts(said, None, (name, "square | grey"), testbed=True)
        assert both.group_prompts[name] == ("a photo of a red ball",)


FILE = """
groups:
  round: [a photo of a ball, the ball]
  square: [a photo of a block]
words: {round: ball}
equivalent: [[a ball nurse, a block nurse]]
harmful: [[a ball, a block]]
helpful: [[a nurse, a clerk]]
forms:
  a nurse: {round: a ball nurse, square: a block nurse}
"""


def test_a_file_may_say_more_than_names(tmp_path: Path) -> None:
    file = tmp_path / "prompts.yaml"
    file.write_text(FILE)
    made = group_texts(said, file, ("round", "square"))
    assert made.group_prompts["round"] == ("a photo of a ball", "the ball")
    assert made.words == {"round": "ball", "square": "square"}
    assert made.equivalent == [("a ball nurse", "a block nurse")]
    assert made.harmful == [("a ball", "a block")]
    assert made.helpful == [("a nurse", "a clerk")]
    assert made.forms["a nurse"]["square"] == "a block nurse"
    file.write_text("round: [a ball]\nsquare: [a block]\n")
    assert group_texts(said, file, None).group_prompts == {
        "round": ("a ball",),
        "square": ("a block",),
    }


@pytest.mark.parametrize(
    ("prompts", "says"),
    [
        ({"round": ["a ball"]}, "name 'round', and not 'square'"),
        ({"round": ["a ball"], "squar": ["a block"]}, "did you mean 'square'"),
        ({"round": "a ball", "square": ["a block"]}, "list of texts that name it; 'round' has"),
        ({"round": [], "square": ["a block"]}, "list of texts"),
        ({}, "must map each group"),
        ({"groups": {"round": ["a"], "square": ["b"]}, "helpfull": []}, "did you mean 'helpful'"),
        ({"groups": {"round": ["a"], "square": ["b"]}, "equivalent": ["ab"]}, "list of pairs"),
        ({"groups": {"round": ["a"], "square": ["b"]}, "words": ["a"]}, "words of prompts must be"),
        ({"groups": {"round": ["a"], "square": ["b"]}, "words": {"blue": "a"}}, "group named by"),
        ({"groups": {"round": ["a"], "square": ["b"]}, "forms": {"x": {"round": "y"}}},
         "forms of 'x' must be given for each group"),
        (Path("nowhere.yaml"), "cannot be read as prompts"),
    ],
)  # fmt: skip
def test_what_is_refused(prompts, says: str) -> None:
    with pytest.raises((InputError, UnknownNameError), match=says):
        group_texts(said, prompts, ("round", "square"))


def test_without_prompts_and_groups_there_is_nothing_to_learn_from() -> None:
    with pytest.raises(InputError, match="--prompts FILE"):
        group_texts(said, None, None)


def test_a_group_is_named_after_the_last_article() -> None:
    assert with_group("The person in the photo", "male") == "The person in the male photo"
    assert with_group("A nurse", "old") == "An old nurse"
