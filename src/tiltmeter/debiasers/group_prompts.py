"""Texts that name groups: those of a prompts file, or made from the groups' own names.

A prompts file is YAML: each group with a list of texts that name it. Or, where a method asks for
more, a mapping with the groups under `groups` and beside it

    words     the word for each group inside another text ("a photo of a {word} nurse")
    alike     pairs of texts that should have one vector (Orth-Cali)
    harmful   pairs of texts whose difference should go, helpful: ... be strengthened (RoboShot)
    forms     a query -> each group -> the query with the group named in it (BEND-VLM)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from tiltmeter import stimuli
from tiltmeter.debiasers.debiaser import GIVEN_BY, GroupTexts
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.types import Array

#: What a prompts file may hold beside its groups.
SECTIONS = ("groups", "words", "alike", "harmful", "helpful", "forms")
#: How a group is named where nobody says how.
PERSON = "a photo of a {} person"
#: Queries of which the forms for each two groups should have one vector: words of this list.
ALIKE = "occupations"


def group_texts(
    encode: Callable[[Sequence[str]], Array],
    prompts: str | Path | Mapping[str, Any] | None,
    names: Sequence[str] | None,
    *,
    testbed: bool = False,
) -> GroupTexts:
    """What methods learn from: the prompts that were given, else sentences with the groups' names.

    `names` are the groups of the data, where they are known: then prompts must name these. With
    `testbed` its own words stand for its groups, since its vocabulary is closed.
    """
    told = {} if prompts is None else _read(prompts)
    if not told and names is None:
        raise InputError(f"this method learns from texts: {GIVEN_BY['prompts']}")
    naming = {str(name): _listed(name, said) for name, said in told.get("groups", {}).items()}
    if names is not None:
        for name in map(str, (*naming, *told.get("words", {}))):
            if name not in names:
                raise UnknownNameError("group named by the prompts", name, names)
        if naming and (lacking := [name for name in names if name not in naming]):
            raise InputError(
                f"the prompts name {', '.join(map(repr, naming))}, and not {lacking[0]!r}: every "
                "group needs a text that names it"
            )
    known = list(names if names is not None else naming)
    words = {name: _plain(name) for name in known}
    sentence = PERSON
    if testbed and (own := _testbed_words(known)):
        words, sentence = own, "a photo of a {}"
    words |= {str(name): str(word) for name, word in told.get("words", {}).items()}
    made = {name: _sentences(sentence, words[name], testbed) for name in known}
    alike = [
        pair
        for query in stimuli.prompts(stimuli.load(ALIKE))
        for pair in combinations([with_group(query.text, words[name]) for name in known], 2)
    ]
    return GroupTexts(
        encode,
        naming or made,
        _pairs(told, "alike") if "alike" in told else alike,
        words=words,
        harmful=_pairs(told, "harmful") if "harmful" in told else None,
        helpful=_pairs(told, "helpful"),
        forms=_forms(told.get("forms", {}), known),
    )


def with_group(text: str, word: str) -> str:
    """A text with a group named in it, after its last article.

    >>> with_group("a photo of a nurse", "female"), with_group("A photo of an evil person", "old")
    ('a photo of a female nurse', 'A photo of an old evil person')
    >>> with_group("a photo of an engineer", "male"), with_group("people cooking", "male")
    ('a photo of a male engineer', 'a male people cooking')
    """
    articles = list(re.finditer(r"\b(an?|the)\s+", text, re.IGNORECASE))
    if not articles:
        return stimuli.fill("a {}", word) + " " + text
    end = articles[-1].end()
    return stimuli.fill(text[:end] + "{}", word) + " " + text[end:]


def group_words(texts: GroupTexts, names: Sequence[str]) -> list[str]:
    """The word for each group inside another text: as it was told, else the group's name."""
    return [texts.words.get(name) or _plain(name) for name in names]


def _plain(name: str) -> str:
    """A group's name as words; of a crossing, those of its parts.

    >>> _plain("Latino_Hispanic"), _plain("East Asian | Male")
    ('Latino Hispanic', 'East Asian Male')
    """
    return name.replace(" | ", " ").replace("_", " ")


def _testbed_words(names: Sequence[str]) -> dict[str, str]:
    """The testbed's own words for its shapes, hues and their crossings, whichever comes first."""
    from tiltmeter.testbed.language import HUES, SHAPE_NOUNS, SHAPES

    nouns = dict(zip(SHAPES, SHAPE_NOUNS, strict=True))
    order = {word: at for at, word in enumerate((*HUES, *SHAPE_NOUNS))}
    found = {}
    for name in names:
        parts = [nouns.get(part, part) for part in name.split(" | ")]
        if not set(parts) <= set(order):
            return {}
        found[name] = " ".join(sorted(parts, key=order.__getitem__))  # a red ball
    return found


def _sentences(sentence: str, word: str, testbed: bool) -> tuple[str, ...]:
    """Texts that name a group; a hue of the testbed is a hue of either shape."""
    if testbed:
        from tiltmeter.testbed.language import HUES, SHAPE_NOUNS

        if word in HUES:
            return tuple(stimuli.fill(sentence, f"{word} {noun}") for noun in SHAPE_NOUNS)
    return (stimuli.fill(sentence, word),)


def _read(prompts: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """What a file or a mapping tells, its groups under `groups`."""
    told: Any = prompts
    where = "prompts"
    if not isinstance(prompts, Mapping):
        import yaml

        where = str(prompts)
        try:
            told = yaml.safe_load(Path(prompts).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise InputError(f"{where} cannot be read as prompts: {error}") from None
    if not isinstance(told, Mapping) or not told:
        raise InputError(f"{where} must map each group to a list of texts that name it")
    if not isinstance(told.get("groups"), Mapping):
        return {"groups": told}
    for name in ("words", "forms"):
        if not isinstance(told.get(name, {}), Mapping):
            raise InputError(f"{name} of {where} must be a mapping, group by group")
    for name in told:
        if name not in SECTIONS:
            raise UnknownNameError(f"part of {where}", str(name), SECTIONS)
    return told


def _listed(name: Any, said: Any) -> tuple[str, ...]:
    if isinstance(said, str) or not isinstance(said, Sequence) or not said:
        raise InputError(
            f"prompts must map each group to a list of texts that name it; {name!r} has {said!r}"
        )
    return tuple(map(str, said))


def _pairs(told: Mapping[str, Any], name: str) -> list[tuple[str, str]]:
    pairs = told.get(name, ())
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise InputError(f"{name} of the prompts must be a list of pairs of texts")
    return [(str(first), str(second)) for first, second in pairs]


def _forms(table: Any, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """The table of forms, if every query has one for every group."""
    for text, forms in table.items():
        if not isinstance(forms, Mapping) or set(forms) != set(names):
            raise InputError(
                f"forms of {text!r} must be given for each group: {', '.join(map(repr, names))}"
            )
    return {str(text): {n: str(forms[n]) for n in names} for text, forms in table.items()}
