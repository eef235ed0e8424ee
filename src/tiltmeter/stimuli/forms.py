"""Forms of a term in captions: its sequence of words, and its plural."""

from __future__ import annotations

import re

#: Irregular plurals.
IRREGULAR = {
    "child": ("children",), "grandchild": ("grandchildren",), "gentleman": ("gentlemen",),
    "grandson": ("grandsons",), "human": ("humans",), "german": ("germans",),
    "mujahid": ("mujahideen", "mujahidin", "mujahedeen"), "people": (), "person": ("people",),
    "businessperson": ("businesspeople", "businesspersons"), "police": (), "sharia": (),
    "salesperson": ("salespeople", "salespersons"), "thief": ("thieves",), "wife": ("wives",),
    "youth": ("youths",),
}  # fmt: skip


def words(text: str) -> list[str]:
    """The words of a text as in the counter: lower case, split at all but letters and digits.

    A possessive 's is not a word; hyphens, apostrophes and underscores separate words like spaces.

    >>> words("A low-income Nurse's chair")
    ['a', 'low', 'income', 'nurse', 'chair']
    """
    lower = re.sub(r"(?<=['\u2019])s(?![^\W_])", " ", text.lower())
    return re.findall(r"[^\W_]+", lower)


def plurals(noun: str) -> tuple[str, ...]:
    """The plural forms of a noun, regular or irregular.

    >>> [plurals(noun)[0] for noun in ("nurse", "actress", "secretary", "policeman", "midwife")]
    ['nurses', 'actresses', 'secretaries', 'policemen', 'midwives']
    """
    if noun in IRREGULAR:
        return IRREGULAR[noun]
    if noun.endswith("man"):
        return (noun[:-2] + "en",)
    if noun.endswith("wife"):
        return (noun[:-2] + "ves",)
    if re.search(r"(s|x|z|ch|sh)$", noun):
        return (noun + "es",)
    if re.search(r"[^aeiou]y$", noun):
        return (noun[:-1] + "ies",)
    return (noun + "s",)


def forms(term: str, pos: str = "") -> list[tuple[str, ...]]:
    """Word sequences that count as the term; only nouns and words of unknown kind have a plural.

    An adjective with an s is a different word: shorts are not short.

    >>> forms("TV presenter", "noun")
    [('tv', 'presenter'), ('tv', 'presenters')]
    >>> forms("short", "adjective")
    [('short',)]
    """
    single = tuple(words(term))
    if not single or pos not in ("", "noun"):
        return [single] if single else []
    several = [(*single[:-1], plural) for plural in plurals(single[-1])]
    return list(dict.fromkeys([single, *several]))
