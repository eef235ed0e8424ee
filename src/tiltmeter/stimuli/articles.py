"""The indefinite article, `a` or `an`, by the sound that a word begins with."""

from __future__ import annotations

import re
import unicodedata

from tiltmeter.errors import InputError

# Letters whose names begin with a vowel sound: an F ("eff"), but a U ("you").
_VOWEL_NAMES = frozenset("aefhilmnorsx")

# Capitals that are read as a word, not letter by letter.
_ACRONYMS = frozenset(
    ["FIFA", "LAN", "LIDAR", "NASA", "NATO", "RADAR", "RAM", "ROM", "SCUBA", "SIM", "SWAT"]
)

# Initialisms that also occur in lower case and could be taken for words.
_INITIALISMS = frozenset(["fbi", "mri", "nba", "nfl", "sos"])

# Without a vowel, but read as words: mister, missus, saint, senior, lieutenant, sergeant.
_TITLES = frozenset(["mr", "mrs", "ms", "st", "sr", "lt", "sgt"])

_SILENT_H = re.compile(r"honest|honou?r|hour(?!i)|heir")

# A vowel letter, a consonant sound: "you" or "won".
_GLIDE = re.compile(
    r"""
      one(s|self|ness)?\b | once\b | ouija
    | eu | ew
    | ubiq | ufo | ugand | uk(\b|ul|rain|ase) | ulyss
    | unanim | unary | unesco
    | uni(?!              # the Latin uni-, "one", unless it is un- before an i:
        n(?![ou])         #   uninsured, uninformed; but uninominal
        | m[apm]          #   unimaginative, unimportant; but unimodal
        | de | dio        #   unidentified, unidiomatic; but unidirectional
        | ll | r[or] | ss | tem | sol
      )
    | ura[ln] | ure | uri | uro | urug
    | us[aeu] | using
    | ut[aeio] | uv | u[iy]ghur
    """,
    re.VERBOSE,
)


def article(word: str) -> str:
    """The indefinite article of a word.

    Parameters
    ----------
    word : str
        A word or phrase; digits and abbreviations are read aloud.

    Returns
    -------
    str
        `a` or `an`.

    Examples
    --------
    >>> [article(w) for w in ("nurse", "honest", "uninsured", "unique", "MRI", "UFO", "11", "100")]
    ['a', 'an', 'an', 'a', 'an', 'a', 'an', 'a']
    """
    plain = "".join(c for c in unicodedata.normalize("NFKD", word) if not unicodedata.combining(c))
    first = re.search(r"[A-Za-z0-9][A-Za-z0-9,']*(-[A-Za-z]+)?", plain)
    if first is None:
        return "a"
    return "an" if _opens_with_vowel(first.group()) else "a"


def _opens_with_vowel(first: str) -> bool:
    if first[0].isdigit():
        return _number_opens_with_vowel(first)
    head = first.partition("-")[0]
    if _is_spelt_out(head):
        return head[0].lower() in _VOWEL_NAMES
    lower = first.lower()
    if _SILENT_H.match(lower):
        return True
    if _GLIDE.match(lower):
        return False
    if lower[0] == "y":  # a yard, but an yttrium lamp
        return lower[1:2] not in tuple("aeiou'") and len(lower) > 1
    return lower[0] in "aeiou"


def _is_spelt_out(head: str) -> bool:
    """Whether a word is read letter by letter: FBI, TV, the X of X-ray."""
    if len(head) == 1 or head.lower() in _INITIALISMS:
        return True
    capitals = re.match(r"[A-Z]*", head)
    run = capitals.group() if capitals else ""
    if len(run) >= 2:
        # Six capitals and more are a word in upper case.
        return run not in _ACRONYMS and len(run) < 6
    return head.lower() not in _TITLES and not re.search(r"[aeiouy]", head.lower())


def _number_opens_with_vowel(number: str) -> bool:
    """8, 80 and 800; 11 and 18 where they are read as such: 11, 18,000, the year 1850."""
    digits = re.match(r"\d+", number.replace(",", ""))
    text = digits.group() if digits else number
    read_as_pair = len(text) % 3 == 2 or (len(text) == 4 and "," not in number)
    return text[0] == "8" or (text[:2] in ("11", "18") and read_as_pair)


_SLOT = re.compile(r"(?:(?<![\w'/])(a/an|an|a)(\s+))?\{\}", re.IGNORECASE)


def fill(template: str, word: str) -> str:
    """Put a word into a template, with the article before it adjusted.

    Parameters
    ----------
    template : str
        A text with `{}` where the word goes.
    word : str
        The word.

    Returns
    -------
    str
        The text.

    Raises
    ------
    InputError
        The template has no `{}`.

    Examples
    --------
    >>> fill("a photo of a {} person", "honest")
    'a photo of an honest person'
    >>> fill("A/an {}", "nurse"), fill("A {} person", "idle"), fill("the {}", "hour")
    ('A nurse', 'An idle person', 'the hour')
    """
    _check(template)

    def fill_slot(slot: re.Match[str]) -> str:
        written, space = slot.group(1), slot.group(2)
        if written is None:
            return word
        fitting = article(word)
        if written.isupper() and len(written) > 1:
            fitting = fitting.upper()
        elif written[0].isupper():
            fitting = fitting.capitalize()
        return fitting + space + word

    return _SLOT.sub(fill_slot, template)


def fill_as_written(template: str, word: str) -> str:
    """Put a word into a template and change nothing else.

    Published code often does so: `a`, or even `a/an`, then stands before every word.

    Parameters
    ----------
    template : str
        A text with `{}` where the word goes.
    word : str
        The word.

    Returns
    -------
    str
        The text.

    Raises
    ------
    InputError
        The template has no `{}`.

    Examples
    --------
    >>> fill_as_written("a photo of a {} person", "honest"), fill_as_written("a/an {}", "nurse")
    ('a photo of a honest person', 'a/an nurse')
    """
    _check(template)
    return template.replace("{}", word)


def _check(template: str) -> None:
    if "{}" not in template:
        raise InputError(
            f"template {template!r} has no place for a word; "
            "write {} where the word goes, as in 'a photo of a {} person'"
        )
