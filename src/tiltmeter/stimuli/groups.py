"""Phrases that name a race and a gender (Ghate et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass

from tiltmeter.stimuli.loader import load


@dataclass(frozen=True, slots=True)
class GroupPhrase:
    """A race word and a gender word ("jamaican aunt"), and the groups that they name."""

    text: str  # "jamaican aunt"
    race: str  # "Black"
    gender: str  # "female"


def group_phrases() -> list[GroupPhrase]:
    """All 864 phrases of the list `propagation`, 144 for each of six groups.

    Returns
    -------
    list of GroupPhrase
        Text, race and gender.

    Examples
    --------
    >>> phrases = group_phrases()
    >>> len(phrases), phrases[0]
    (864, GroupPhrase(text='asian woman', race='Asian', gender='female'))
    """
    groups = load("propagation").data["groups"]
    return [
        GroupPhrase(f"{race_word} {gender_word}", race, gender)
        for race, race_words in groups["race"].items()
        for gender, gender_words in groups["gender"].items()
        for race_word in race_words
        for gender_word in gender_words
    ]
