"""Prompts from words and templates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.stimuli.articles import fill, fill_as_written
from tiltmeter.stimuli.loader import similar_word
from tiltmeter.stimuli.words import TEMPLATES, Stimuli, Word
from tiltmeter.types import Prompt

#: One template, several, or several by part of speech.
Templates: TypeAlias = str | Sequence[str] | Mapping[str, Sequence[str]]
#: What becomes of `a` before a word.
ARTICLES = {"adjusted": fill, "written": fill_as_written}


def prompts(
    words: Stimuli | Iterable[Word | str],
    *,
    templates: Templates | None = None,
    role: str = "word",
    articles: str | None = None,
) -> list[Prompt]:
    """Put words into templates, with `a` or `an` by sound.

    Parameters
    ----------
    words : Stimuli or iterable of Word or str
        A word list, or words. A word in two categories gives a prompt in each.
    templates : str, sequence of str, or mapping of str to sequence of str, optional
        One template or several for all words, or templates by part of speech. By default a word's
        own template is used, otherwise those of its part of speech: the list's, or the usual ones
        (`TEMPLATES`).
    role : {"word", "placebo"}
        The role of words whose list does not give one.
    articles : {"adjusted", "written"}, optional
        Whether `a` before a word becomes `an` by its sound, or templates stay as they are written.
        By default what the list says (`articles:`), otherwise adjusted.

    Returns
    -------
    list of Prompt
        Each word in each of its templates.

    Raises
    ------
    InputError
        There are no words or no templates, a template has no `{}`, or no template is known for a
        word.
    UnknownNameError
        `articles` is neither of the two.

    Examples
    --------
    >>> from tiltmeter.stimuli import load
    >>> [p.text for p in prompts(load("sobit"))][:2]
    ['a photo of an attractive person', 'a photo of a beautiful person']
    >>> prompts(["honest"], templates="A {} face")[0].text
    'An honest face'
    >>> prompts(["honest"], templates="A {} face", articles="written")[0].text
    'A honest face'
    """
    articles = articles or articles_of(words)
    if articles not in ARTICLES:
        raise UnknownNameError("choice of articles", articles, ARTICLES)
    put = ARTICLES[articles]
    entries = words.words if isinstance(words, Stimuli) else words
    by_pos = dict(TEMPLATES)
    if isinstance(words, Stimuli):
        by_pos.update(words.templates)
    for_all: tuple[str, ...] | None = None
    if isinstance(templates, str):
        for_all = (templates,)
    elif isinstance(templates, Mapping):
        by_pos.update({pos: tuple(own) for pos, own in templates.items()})
    elif templates is not None:
        for_all = tuple(templates)
    if for_all == ():
        raise InputError("templates is empty; give at least one, or None for the usual ones")

    filled = []
    for entry in entries:
        word = Word(entry) if isinstance(entry, str) else entry
        for template in for_all if for_all is not None else _own_templates(word, by_pos):
            filled.append(
                Prompt(
                    text=put(template, word.text),
                    concept=word.text,
                    template=template,
                    category=word.category,
                    role=word.role or role,
                    pos=word.pos,
                )
            )
    if not filled:
        raise InputError("there are no words; give at least one")
    return filled


def articles_of(words: Stimuli | Iterable[Word | str]) -> str:
    """What a list says about articles: `adjusted` unless it has a header `articles`."""
    written = words.data.get("articles") if isinstance(words, Stimuli) else None
    return str(written or "adjusted")


def _own_templates(word: Word, by_pos: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if word.template is not None:
        return (word.template,)
    if word.pos in by_pos:
        return by_pos[word.pos]
    # A guess would put adjectives into templates for nouns, and change the result.
    close = similar_word(word.text)
    hint = f"did you mean {close}? If not, " if close not in (None, word.text) else ""
    raise InputError(
        f"no template is known for {word.text!r}, whose part of speech is "
        f"{word.pos or 'not given'}: {hint}give it a part of speech ({', '.join(by_pos)}) or a "
        "template of its own, or pass one for all words (--template 'a photo of a {}'; "
        "templates=... in Python)",
        value=word.text,
    )
