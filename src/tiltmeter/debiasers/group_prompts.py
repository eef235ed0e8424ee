"""Texts that name groups: from a prompts file, or made from the groups' own names.

A prompts file is YAML: each group with a list of texts that name it. Or, where a method needs
more, a mapping with the groups under `groups`, and

    words       the word for each group inside another text ("a photo of a {word} nurse")
    equivalent  pairs of texts that should have the same vector (Orth-Cali)
    harmful     pairs of texts whose difference is removed; helpful: ... strengthened (RoboShot)
    forms       a query -> each group -> the query with the group named in it (BEND-VLM)
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
from tiltmeter.io.yaml_files import parse_yaml
from tiltmeter.types import Array

#: The sections of a prompts file.
SECTIONS = ("groups", "words", "equivalent", "harmful", "helpful", "forms")
#: How a group is named by default.
PERSON = "a photo of a {} person"
#: Queries whose forms for every two groups should have the same vector: words of this list.
ALIKE = "occupations"


def group_texts(
    encode: Callable[[Sequence[str]], Array],
    prompts: str | Path | Mapping[str, Any] | None,
    names: Sequence[str] | None,
    *,
    testbed: bool = False,
) -> GroupTexts:
    """Return the texts to learn from: the prompts, or sentences with the groups' names.

    Parameters
    ----------
    encode
        Text encoder of the uncorrected model.
    prompts
        A prompts file or its contents.
    names
        The groups of the data, if known: then prompts must name these.
    testbed
        Whether to use the testbed's own words for its groups: its vocabulary is closed.

    Raises
    ------
    InputError
        Without prompts and names, or for prompts that do not name every group.
    """
    sections = {} if prompts is None else _read(prompts)
    if not sections and names is None:
        raise InputError(f"this method learns from texts: {GIVEN_BY['prompts']}")
    naming = {
        str(name): _check_list(name, texts) for name, texts in sections.get("groups", {}).items()
    }
    if names is not None:
        for name in map(str, (*naming, *sections.get("words", {}))):
            if name not in names:
                raise UnknownNameError("group named by the prompts", name, names)
        if naming and (missing := [name for name in names if name not in naming]):
            raise InputError(
                f"the prompts name {', '.join(map(repr, naming))}, and not {missing[0]!r}: every "
                "group needs a text that names it"
            )
    known = list(names if names is not None else naming)
    words = {name: _as_words(name) for name in known}
    sentence = PERSON
    if testbed and (testbed_words := _testbed_words(known)):
        words, sentence = testbed_words, "a photo of a {}"
    words |= {str(name): str(word) for name, word in sections.get("words", {}).items()}
    default = {name: _sentences(sentence, words[name], testbed) for name in known}
    equivalent = [
        pair
        for query in stimuli.prompts(stimuli.load(ALIKE))
        for pair in combinations([with_group(query.text, words[name]) for name in known], 2)
    ]
    return GroupTexts(
        encode,
        naming or default,
        _pairs(sections, "equivalent") if "equivalent" in sections else equivalent,
        words=words,
        harmful=_pairs(sections, "harmful") if "harmful" in sections else None,
        helpful=_pairs(sections, "helpful"),
        forms=_forms(sections.get("forms", {}), known),
    )


def with_group(text: str, word: str) -> str:
    """Return a text with a group named in it, after its last article.

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
    """Return the word for each group inside another text; defaults to the group's name."""
    return [texts.words.get(name) or _as_words(name) for name in names]


def _as_words(name: str) -> str:
    """A group's name as words; of an intersection, those of its parts.

    >>> _as_words("Latino_Hispanic"), _as_words("East Asian | Male")
    ('Latino Hispanic', 'East Asian Male')
    """
    return name.replace(" | ", " ").replace("_", " ")


def _testbed_words(names: Sequence[str]) -> dict[str, str]:
    """The testbed's own words for its shapes, hues and their intersections, in any order."""
    from tiltmeter.testbed.language import HUES, SHAPE_NOUNS, SHAPES

    nouns = dict(zip(SHAPES, SHAPE_NOUNS, strict=True))
    order = {word: at for at, word in enumerate((*HUES, *SHAPE_NOUNS))}
    words = {}
    for name in names:
        parts = [nouns.get(part, part) for part in name.split(" | ")]
        if not set(parts) <= set(order):
            return {}
        words[name] = " ".join(sorted(parts, key=order.__getitem__))  # a red ball
    return words


def _sentences(sentence: str, word: str, testbed: bool) -> tuple[str, ...]:
    """Texts that name a group; a hue of the testbed is named with either shape."""
    if testbed:
        from tiltmeter.testbed.language import HUES, SHAPE_NOUNS

        if word in HUES:
            return tuple(stimuli.fill(sentence, f"{word} {noun}") for noun in SHAPE_NOUNS)
    return (stimuli.fill(sentence, word),)


def _read(prompts: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """The sections of a file or a mapping, its groups under `groups`."""
    sections: Any = prompts
    where = "prompts"
    if not isinstance(prompts, Mapping):
        where = str(prompts)
        try:
            sections = parse_yaml(Path(prompts).read_text(encoding="utf-8"), where)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{where} cannot be read as prompts: {error}") from None
    if not isinstance(sections, Mapping) or not sections:
        raise InputError(f"{where} must map each group to a list of texts that name it")
    if not isinstance(sections.get("groups"), Mapping):
        return {"groups": sections}
    for name in ("words", "forms"):
        if not isinstance(sections.get(name, {}), Mapping):
            raise InputError(f"{name} of {where} must be a mapping, group by group")
    for name in sections:
        if name not in SECTIONS:
            raise UnknownNameError(f"part of {where}", str(name), SECTIONS)
    return sections


def _check_list(name: Any, texts: Any) -> tuple[str, ...]:
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
        raise InputError(
            f"prompts must map each group to a list of texts that name it; {name!r} has {texts!r}"
        )
    return tuple(map(str, texts))


def _pairs(sections: Mapping[str, Any], name: str) -> list[tuple[str, str]]:
    pairs = sections.get(name, ())
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
