"""Captions without their target term (VLStereoSet, section 3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from tiltmeter.errors import InputError
from tiltmeter.stimuli.articles import article
from tiltmeter.stimuli.loader import load
from tiltmeter.stimuli.words import Stimuli


def neutralise(caption: str, target: str, *, extra: Mapping[str, str | None] | None = None) -> str:
    """Replace a target term and its forms by a neutral word, or remove it where no word is needed.

    Parameters
    ----------
    caption : str
        The caption.
    target : str
        The term. Its forms are the entries of the list `neutral-terms` that contain it: males for
        male.
    extra : mapping of str to str or None, optional
        Further terms and their neutral words, before those of the list; None removes a term.

    Returns
    -------
    str
        The neutral caption.

    Raises
    ------
    InputError
        No neutral word is known for the target.

    Examples
    --------
    >>> neutralise("My sister is a strong leader", "sister")
    'My sibling is a strong leader'
    >>> neutralise("Ethiopian men are tall", "Ethiopian")
    'Men are tall'
    >>> neutralise("An ethiopian was there", "Ethiopian")
    'A person was there'
    >>> neutralise("The violinist slept", "violinist", extra={"violinist": "person"})
    'The person slept'
    """
    own = {term.lower(): word for term, word in (extra or {}).items()}
    table = {**_neutral_terms().table, **own}
    # Longest first, so that "saudi arabian" is not found as "arabian".
    terms = sorted((term for term in table if target.lower() in term), key=len, reverse=True)
    if not target or not terms:
        raise InputError(
            f"no neutral form is known for the target {target!r}; "
            f"pass extra={{{target.lower()!r}: 'person'}}, or None for 'person' to remove it"
        )

    def replace(match: re.Match[str]) -> str:
        term, behind = match["term"].lower(), match["behind"] or ""
        word = table[term]
        if word is None and term not in own:
            word = _as_noun(term, before=caption[: match.start("term")], behind=behind)
        text = word + behind if word else behind.lstrip()
        if match["article"]:
            fitting = article(text)
            text = f"{fitting.capitalize() if match['article'][0] == 'A' else fitting} {text}"
        elif match.start() == 0 and match["term"][0].isupper():
            text = text[:1].upper() + text[1:]
        return text

    return re.sub(
        r"(?:\b(?P<article>an?)\s+)?"
        rf"\b(?P<term>{'|'.join(map(re.escape, terms))})\b"
        r"(?P<behind>\s+[\w']+)?",
        replace,
        caption,
        flags=re.IGNORECASE,
    )


def _as_noun(adjective: str, *, before: str, behind: str) -> str | None:
    """The replacement of an adjective that is used without a noun; None where it has one."""
    rules = _neutral_terms().data
    follower = behind.strip().lower()
    if adjective not in rules["nouns"]:
        return None
    is_plural = follower in rules["plural_verbs"]
    if follower and not is_plural and follower not in rules["noun_before"]:
        return None
    last = before.lower().split()[-1:]
    key = "plural" if is_plural else "singular"
    if last and last[0] in rules["forms_of_be"]:
        key = "predicate"
    return str(rules[key])


@cache
def _neutral_terms() -> Stimuli:
    return load("neutral-terms")
