"""Neutral captions."""

import csv
import os
import re
from pathlib import Path

import pytest

from tiltmeter.errors import InputError
from tiltmeter.stimuli import load, neutralise

DATA = Path(os.environ.get("TILTMETER_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.mark.parametrize(
    ("caption", "target", "expected"),
    [
        ("My sister is caring.", "sister", "My sibling is caring."),
        ("Grandfathers always spoil us.", "grandfather", "Grandparents always spoil us."),
        ("The football player's career", "football player", "The person's career"),
        ("An engineer is here", "engineer", "A person is here"),
        ("Ethiopian men are tall", "Ethiopian", "Men are tall"),
        ("the ETHIOPIAN was tall", "Ethiopian", "the person was tall"),
        ("An arab man spoke", "Arab", "A man spoke"),
        ("A russian engineer spoke", "Russian", "An engineer spoke"),
        ("Ukrainian are not poor.", "Ukrainian", "People are not poor."),
        ("The good food is african", "African", "The good food is from there"),
        ("The new nurse was a male.", "male", "The new nurse was a person."),
        ("Saudi arabians are usually muslim.", "Saudi Arabian", "People are usually muslim."),
        ("Spain's cities are old", "Spain", "That country's cities are old"),
        ("She sees herself as kind.", "herself", "The person sees themself as kind."),
        ("Her looks were made by her herself", "herself", "Their looks were made by them themself"),
        ("The girl's mommy saw her mommy", "mommy", "The child's parent saw their parent"),
        ("He said she'd tell him", "himself", "The person said they'd tell them"),
        ("A male is rude to women", "male", "A person is rude to people"),
        ("The nurse took her bag", "nurse", "The person took her bag"),  # not about gender
        ("The smother of a motherly cat", "mother", "The smother of a motherly cat"),
    ],
)
def test_neutralise(caption: str, target: str, expected: str) -> None:
    assert neutralise(caption, target) == expected


def test_the_attribute_keeps_its_gender() -> None:
    captions = [f"Gary thought of himself as a {word}." for word in ("boy", "girl")]
    neutral = [neutralise(text, "himself", keep=["boy", "girl"]) for text in captions]
    assert neutral == [f"The person thought of themself as a {word}." for word in ("boy", "girl")]


def test_the_user_may_add_and_change_entries() -> None:
    assert neutralise("A cellist slept", "cellist", extra={"Cellist": "person"}) == "A person slept"
    assert neutralise("My sister slept", "sister", extra={"sister": "relative"}) == (
        "My relative slept"
    )
    assert neutralise("My muslim aunt", "Muslim", extra={"muslim": None}) == "My aunt"


@pytest.mark.parametrize("target", ["cellist", ""])
def test_an_unknown_target_is_refused(target: str) -> None:
    with pytest.raises(InputError, match="no neutral form is known"):
        neutralise("A cellist slept", target)


def test_keys_are_lower_case_and_nouns_are_removable() -> None:
    neutral = load("neutral-terms")
    assert all(term == term.lower() for term in neutral.table)
    assert all(neutral.table[noun] is None for noun in neutral.data["nouns"])
    removed = {term for term, word in neutral.table.items() if word is None}
    assert removed == set(neutral.data["nouns"])


def test_all_targets_of_vlstereoset_are_covered() -> None:
    path = DATA / "vlstereoset" / "VLStereoSet.csv"
    if not path.exists():
        pytest.skip(f"needs VLStereoSet.csv at {path}; set TILTMETER_DATA to the data folder")
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1958
    table = load("neutral-terms").table
    assert {row["target"].lower() for row in rows} <= set(table)
    for row in rows:
        for column in ("stereotype", "anti-stereotype", "unrelated"):
            assert neutralise(row[column], row["target"]) != row[column]
    # captions about gender keep none, except in the attribute itself
    gendered = load("neutral-terms").data["gendered"]
    for row in (row for row in rows if row["bias_type"] == "gender"):
        pair = [
            re.findall(r"[\w']+", row[name].lower()) for name in ("stereotype", "anti-stereotype")
        ]
        attributes = {*pair[0]} ^ {*pair[1]}
        for name in ("stereotype", "anti-stereotype"):
            neutral = neutralise(row[name], row["target"], keep=attributes).lower()
            left = {*re.findall(r"[\w']+", neutral)} & {*gendered} - attributes
            assert not left, (neutral, left)
