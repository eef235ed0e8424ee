"""Words into captions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from tiltmeter.errors import InputError
from tiltmeter.stimuli.articles import fill
from tiltmeter.stimuli.words import TEMPLATES, Stimuli, Word
from tiltmeter.types import Prompt

#: One template, several, or several by part of speech.
Templates: TypeAlias = str | Sequence[str] | Mapping[str, Sequence[str]]


def prompts(
    words: Stimuli | Iterable[Word | str],
    *,
    templates: Templates | None = None,
    role: str = "word",
) -> list[Prompt]:
    """Each word in each of its templates, with a or an by sound.

    A word's templates are `templates` where given; else its own one; else those of its part of
    speech: the list's (when a whole list is passed), or the usual ones. A mapping in `templates`
    takes the place of the last. A word that stands in two categories gives a prompt in each.
    `role` holds for words whose list names none.

    >>> from tiltmeter.stimuli import load
    >>> [p.text for p in prompts(load("sobit"))][:2]
    ['a photo of an attractive person', 'a photo of a beautiful person']
    >>> prompts(["honest"], templates="A {} face")[0].text
    'An honest face'
    """
    entries = words.words if isinstance(words, Stimuli) else words
    by_pos = dict(TEMPLATES)
    if isinstance(words, Stimuli):
        by_pos.update(words.templates)
    given: tuple[str, ...] | None = None
    if isinstance(templates, str):
        given = (templates,)
    elif isinstance(templates, Mapping):
        by_pos.update({pos: tuple(some) for pos, some in templates.items()})
    elif templates is not None:
        given = tuple(templates)
    if given == ():
        raise InputError("templates is empty; give at least one, or None for the usual ones")

    made = []
    for entry in entries:
        word = Word(entry) if isinstance(entry, str) else entry
        for template in given if given is not None else _own_templates(word, by_pos):
            made.append(
                Prompt(
                    text=fill(template, word.text),
                    concept=word.text,
                    template=template,
                    category=word.category,
                    role=word.role or role,
                    pos=word.pos,
                )
            )
    if not made:
        raise InputError("there are no words to make prompts of; give at least one")
    return made


def _own_templates(word: Word, by_pos: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if word.template is not None:
        return (word.template,)
    if word.pos in by_pos:
        return by_pos[word.pos]
    # A guess would put adjectives into the caption of nouns, and decide the result.
    raise InputError(
        f"no template is known for {word.text!r}, whose part of speech is "
        f"{word.pos or 'not given'}; give it one of {', '.join(by_pos)}, "
        "a template of its own, or pass templates=..."
    )
