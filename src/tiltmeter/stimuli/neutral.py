"""Captions without their target term (VLStereoSet, section 3)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache

from tiltmeter.errors import InputError
from tiltmeter.stimuli.articles import article
from tiltmeter.stimuli.loader import load
from tiltmeter.stimuli.words import Stimuli


def neutralise(
    caption: str,
    target: str,
    *,
    extra: Mapping[str, str | None] | None = None,
    keep: Collection[str] = (),
) -> str:
    """Replace a target term and its forms by a neutral word, or remove it where no word is needed.

    Parameters
    ----------
    caption : str
        The caption.
    target : str
        The term. Its forms are the entries of the list `neutral-terms` that contain it: males for
        male. If it is a word of gender, pronouns and other words of gender are replaced too.
    extra : mapping of str to str or None, optional
        Further terms and their neutral words, before those of the list; None removes a term.
    keep : collection of str, optional
        Words of gender to leave as they are: the attribute that a caption is about.

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
    >>> neutralise("She sees herself as kind", "herself")
    'The person sees themself as kind'
    >>> neutralise("Ethiopian men are tall", "Ethiopian")
    'Men are tall'
    >>> neutralise("An ethiopian was there", "Ethiopian")
    'A person was there'
    >>> neutralise("The violinist slept", "violinist", extra={"violinist": "person"})
    'The person slept'
    """
    own = {term.lower(): word for term, word in (extra or {}).items()}
    table, gendered = {**_neutral_terms().table, **own}, _neutral_terms().data["gendered"]
    terms = {term for term in table if target.lower() in term}
    if not target or not terms:
        raise InputError(
            f"no neutral form is known for the target {target!r}; "
            f"pass extra={{{target.lower()!r}: 'person'}}, or None for 'person' to remove it"
        )
    if target.lower() in gendered:
        terms |= set(gendered) - {word.lower() for word in keep}
    # Longest first, so that "saudi arabian" is not found as "arabian".
    pattern = "|".join(map(re.escape, sorted(terms, key=len, reverse=True)))

    def replace(match: re.Match[str]) -> str:
        term, space, follower = match["term"].lower(), match["space"], match["follower"]
        word = table[term]
        if term not in own:
            word = _by_place(term, word, before=caption[: match.start("term")], follower=follower)
        text = word + space if word else ""
        return f"{article(word or follower)} {text}" if match["article"] else text

    neutral = re.sub(
        rf"(?:\b(?P<article>an?)\s+)?\b(?P<term>{pattern})\b(?P<space>\s*)(?=(?P<follower>[\w']*))",
        replace,
        caption,
        flags=re.IGNORECASE,
    )
    return neutral[:1].upper() + neutral[1:] if caption[:1].isupper() else neutral


def _by_place(term: str, word: str | None, *, before: str, follower: str) -> str | None:
    """The neutral word for a term between what is before and behind it."""
    rules = _neutral_terms().data
    follower = follower.lower()
    is_plural = follower in rules["plural_verbs"]
    ends = not follower or is_plural or follower in rules["noun_before"]
    if term in rules["objects"] and ends and before.strip():  # first of all it is possessive
        return str(rules["objects"][term])
    if term not in rules["nouns"] or not ends:
        return word
    last = before.lower().split()[-1:]
    key = "plural" if is_plural else "singular"
    if last and last[0] in rules["forms_of_be"]:
        key = "predicate"
    return str(rules[key])


@cache
def _neutral_terms() -> Stimuli:
    return load("neutral-terms")
