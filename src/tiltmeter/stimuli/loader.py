"""Load a word list by name or from a file."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.yaml_files import parse_yaml
from tiltmeter.stimuli.catalogue import STIMULI
from tiltmeter.stimuli.words import TEMPLATES, Stimuli, WeatTest, Word, WordSet

_HEADER = ("name", "title", "kind", "source", "licence", "version")
_KINDS = ("words", "classes", "pairs", "weat", "templates", "table")
_COLUMNS = ("word", "category", "pos", "template", "role")
#: Words that are less similar are other words: flibber is no misspelt liberal.
_SIMILAR = 0.8


def load(name_or_path: str | os.PathLike[str]) -> Stimuli:
    """Load a word list.

    Parameters
    ----------
    name_or_path : str or path
        The name of a built-in list (`STIMULI`), words with commas between, such as `doctor,nurse`,
        or a file of your own: a `.csv` with a column `word` (and optionally `category`, `pos`,
        `template`, `role`), or a `.yaml` that maps categories to words::

            Instruments: [cello, oboe]
            Weather: {pos: adjective, words: [rainy, {text: under the weather, template: "{}"}]}

        The built-in files have the same format with a header, and can serve as examples. A typed
        word has the part of speech that it has in a built-in list, or the one behind its colon:
        `doctor,zookeeper:noun`.

    Returns
    -------
    Stimuli
        Words, templates, pairs or tests, by the kind of the list.

    Raises
    ------
    UnknownNameError
        No built-in list has this name.
    InputError
        The file does not exist or is not a valid list.

    Examples
    --------
    >>> sobit = load("sobit")
    >>> len(sobit.words), len(sobit.categories)
    (405, 9)
    >>> load("harm")
    Traceback (most recent call last):
    ...
    tiltmeter.errors.UnknownNameError: unknown list of stimuli 'harm'; did you mean 'harms'?
    """
    path = Path(name_or_path)
    if isinstance(name_or_path, str) and not path.exists() and _is_typed(name_or_path):
        return _typed(name_or_path)
    suffix = path.suffix.lower()
    if suffix in (".yaml", ".yml"):
        return _from_yaml(_read(path), str(path), path.stem)
    if suffix == ".csv":
        return _from_csv(_read(path), str(path), path.stem)
    if isinstance(name_or_path, str) and len(path.parts) == 1 and not suffix:
        similar = get_close_matches(name_or_path, STIMULI, cutoff=0.5)
        if name_or_path.isalpha() and not similar:  # a word that no list has
            typed = [f"{name_or_path}:noun"]
            raise UnknownNameError("list of stimuli", name_or_path, STIMULI, suggestions=typed)
        return _built_in(name_or_path)
    raise InputError(
        f"cannot read a list of stimuli from {str(path)!r}: expected a file that ends in .yaml, "
        f".yml or .csv, words with commas between, or one of the names {', '.join(STIMULI)}"
    )


def _is_typed(text: str) -> bool:
    """Whether it is words: with commas, with a part of speech, or one word of a built-in list."""
    one_word = text not in STIMULI and text in _known_words()
    return "," in text or text.partition(":")[2] in TEMPLATES or one_word


def _typed(text: str) -> Stimuli:
    """Words that were typed with commas between."""
    known = _known_words()
    words = []
    for typed in filter(None, map(str.strip, text.split(","))):
        name, _, pos = map(str.strip, typed.partition(":"))
        word = Word(name, pos, "Typed") if pos else known.get(name)
        if word is None:
            hint = f"did you mean {close}? If not, " if (close := similar_word(name)) else ""
            raise InputError(
                f"no built-in list has the word {name!r}, so its part of speech is unknown: "
                f"{hint}write {name}:noun, {name}:adjective or {name}:activity",
                code="bad-option",
                value=name,
            )
        words.append(word)
    return Stimuli("typed", text, "words", text, words=_checked(words, "the list of words"))


def similar_word(word: str) -> str | None:
    """The most similar word of the built-in lists, if one is similar enough.

    >>> similar_word("docter"), similar_word("flibber")
    ('doctor', None)
    """
    return next(iter(get_close_matches(word, _known_words(), 1, _SIMILAR)), None)


def _known_words() -> dict[str, Word]:
    """Words of the built-in lists that are not neutral, each as its first list has it."""
    listed = (load(name) for name in STIMULI)
    return {
        word.text: word
        for found in reversed([one.words for one in listed if one.kind == "words"])
        for word in reversed(found)
        if word.role != "placebo"
    }


@cache  # lists do not change, and reading YAML is slow
def _built_in(name: str) -> Stimuli:
    file = STIMULI[name]
    return _from_yaml(file.read_text(encoding="utf-8"), file.name, name)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # spreadsheets write a byte-order mark
    except FileNotFoundError:
        raise InputError(
            f"there is no file {str(path)!r}; check the path, "
            f"or name one of the lists {', '.join(STIMULI)}"
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{str(path)!r} is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from None
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror}") from None


def _from_csv(text: str, where: str, name: str) -> Stimuli:
    reader = csv.DictReader(io.StringIO(text, newline=""), restkey="", skipinitialspace=True)
    try:
        reader.fieldnames = [column.strip().lower() for column in reader.fieldnames or ()]
    except csv.Error as error:
        raise InputError(f"{where} is not CSV: {error}", code="bad-file") from None
    if "word" not in reader.fieldnames:
        raise InputError(
            f"{where} has the columns {', '.join(reader.fieldnames) or '(none)'}; expected a first "
            f"row with the column 'word' and any of {', '.join(_COLUMNS[1:])}"
        )
    words = []
    for row in _rows(reader, where):
        if "" in row and "" not in reader.fieldnames:
            raise InputError(
                f"line {reader.line_num} of {where} has more cells than the first row has columns; "
                "put quotes around words that contain a comma"
            )
        cells = {column: (row.get(column) or "").strip() for column in _COLUMNS}
        if not any(cells.values()):
            continue
        words.append(
            Word(
                text=cells["word"],
                pos=cells["pos"],
                category=cells["category"],
                template=cells["template"] or None,
                role=cells["role"],
            )
        )
    return Stimuli(name, name, "words", where, words=_checked(words, where))


def _rows(reader: csv.DictReader[str], where: str) -> Iterator[dict[str, Any]]:
    try:
        yield from reader
    except csv.Error as error:
        raise InputError(
            f"line {reader.line_num} of {where} is not CSV: {error}", code="bad-file"
        ) from None


def _from_yaml(text: str, where: str, name: str) -> Stimuli:
    content = parse_yaml(text, where)
    if not content:
        raise InputError(f"{where} is empty; expected categories with their words")
    if not isinstance(content, dict):
        raise InputError(
            f"{where} contains a {type(content).__name__}; expected a mapping of categories to "
            "words, as in 'Occupation: [nurse, pilot]'"
        )
    if "kind" not in content and "categories" not in content:
        content = {"categories": content}
    try:
        return _build(content, where, name)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{where} is not a valid list of stimuli ({error}); see the built-in files for examples"
        ) from error


def _build(content: Mapping[str, Any], where: str, name: str) -> Stimuli:
    kind = content.get("kind", "words")
    if kind not in _KINDS:
        raise InputError(f"{where} is of kind {kind!r}; expected one of {', '.join(_KINDS)}")
    head = {key: str(content[key]) for key in _HEADER if key in content}
    head = {"name": name, "title": name, "kind": kind, "source": where, **head}
    payload = {key: value for key, value in content.items() if key not in _HEADER}

    words: Sequence[Word] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    if kind in ("words", "classes"):
        words = _words(_need(payload, "categories", where), str(payload.get("role", "")), where)
    if kind == "pairs" or "pairs" in payload:
        pairs = tuple(_pair(pair, where) for pair in _need(payload, "pairs", where))
    if kind == "pairs":
        pos = str(payload.get("pos", ""))
        words = [Word(w, pos, "/".join(pair)) for pair in pairs for w in pair]
    return Stimuli(
        **head,
        words=_checked(words, where) if kind in ("words", "classes", "pairs") else (),
        templates={
            use: tuple([texts] if isinstance(texts, str) else texts)
            for use, texts in payload.get("templates", {}).items()
        },
        pairs=pairs,
        tests=_tests(payload, where) if kind == "weat" else (),
        table=_need(payload, "table", where) if kind == "table" else {},
        data=payload,
    )


def _need(payload: Mapping[str, Any], key: str, where: str) -> Any:
    if not payload.get(key):
        raise InputError(f"{where} has nothing under {key!r}, which a list of its kind needs")
    return payload[key]


def _words(categories: Any, role: str, where: str) -> list[Word]:
    if not isinstance(categories, dict):
        raise InputError(
            f"{where} gives its categories as a {type(categories).__name__}; "
            "expected a mapping, as in 'Occupation: [nurse, pilot]'"
        )
    words = []
    for category, entry in categories.items():
        entry = entry if isinstance(entry, dict) else {"words": entry}
        if not isinstance(entry.get("words"), list):
            raise InputError(
                f"category {category!r} of {where} must be a list of words, or a mapping with "
                "'words' and 'pos'; remove an empty one"
            )
        for item in entry["words"]:
            own = item if isinstance(item, dict) else {"text": item}
            merged = {"pos": "", "template": None, "role": role, **entry, **own}
            words.append(
                Word(
                    text=_text(merged.get("text"), category, where),
                    pos=str(merged["pos"]),
                    category=str(category),
                    template=None if merged["template"] is None else str(merged["template"]),
                    role=str(merged["role"]),
                )
            )
    return words


def _text(value: Any, category: Any, where: str) -> str:
    # YAML reads no, on and 8 as booleans and numbers.
    if not isinstance(value, str):
        raise InputError(
            f"{value!r} in category {category!r} of {where} is not text; put it in quotes"
        )
    return value.strip()


def _checked(words: Sequence[Word], where: str) -> tuple[Word, ...]:
    """The words; InputError if one cannot be used or occurs twice."""
    seen: set[tuple[str, str, str | None]] = set()
    for number, word in enumerate(words, start=1):
        if not word.text:
            raise InputError(f"entry {number} of {where} has no word; fill it in or remove it")
        if word.pos and word.pos not in TEMPLATES:
            raise InputError(
                f"{word.text!r} in {where} has the part of speech {word.pos!r}; "
                f"expected one of {', '.join(TEMPLATES)}, or none"
            )
        if word.role not in ("", "word", "placebo"):
            raise InputError(
                f"{word.text!r} in {where} has the role {word.role!r}; "
                "expected 'word' or 'placebo' (a neutral word)"
            )
        if word.template is not None and "{}" not in word.template:
            raise InputError(
                f"{word.text!r} in {where} has the template {word.template!r}; "
                "write {} where the word goes"
            )
        key = (word.text, word.category, word.template)
        if key in seen:
            raise InputError(
                f"{word.text!r} occurs twice in category {word.category!r} of {where}; "
                "remove one, or give them different categories or templates"
            )
        seen.add(key)
    if not seen:
        raise InputError(f"{where} contains no words; add at least one")
    return tuple(words)


def _pair(pair: Any, where: str) -> tuple[str, str]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise InputError(
            f"{pair!r} in {where} is not a pair; expected two words, as in [good, evil]"
        )
    return _text(pair[0], "pairs", where), _text(pair[1], "pairs", where)


def _tests(payload: Mapping[str, Any], where: str) -> tuple[WeatTest, ...]:
    sets = {
        name: WordSet(name, tuple(_text(word, name, where) for word in words))
        for name, words in _need(payload, "sets", where).items()
    }
    tests = []
    for test in _need(payload, "tests", where):
        missing = [letter for letter in "XYAB" if test.get(letter) not in sets]
        if missing:
            raise InputError(
                f"test {test.get('name')!r} of {where} names no known set for "
                f"{', '.join(missing)}; known: {', '.join(sets)}"
            )
        tests.append(WeatTest(test["name"], *(sets[test[letter]] for letter in "XYAB")))
    return tuple(tests)
