"""`lexicon:FILE`: words with their valence, as rated by people.

NRC-VAD (with or without a header, 0 to 1 or -1 to 1), Warriner et al. (1 to 9), or any table with a
column of words and one of valence.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np

from tiltmeter.datasets.found_images import count_rows
from tiltmeter.datasets.options import file
from tiltmeter.datasets.roles import Lexicon, rescale_to_unit_interval
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns, not_utf8
from tiltmeter.results import file_hash

WORDS = ("word", "term")
#: Columns of valence, and the scale that the name implies.
VALENCES: dict[str, tuple[float, float] | None] = {"valence": None, "v.mean.sum": (1, 9)}


def load(spec: Spec, columns: Columns) -> Lexicon:
    """Lexicon: words with a valence (saifmohammad.com, NRC-VAD; free for research, not to share).

    Also Warriner et al. 2013 (CC BY-NC-ND 3.0). For other tables, `?word=COLUMN&valence=COLUMN`
    are the columns and `?scale=1,9` the ends of the scale.
    """
    del columns  # no groups
    spec.check_options("word", "valence", "scale", "strict")
    path = file(spec)
    rows = _rows(path)
    word, valence, scale = _columns(spec, path, rows)
    first = 1 if _is_header(rows[0]) else 0
    values: dict[str, float] = {}
    malformed = []
    for line, row in enumerate(rows[first:], start=first + 1):
        text = row[word].strip() if word < len(row) else ""
        number = _number(row[valence]) if valence < len(row) else math.nan
        if not text or math.isnan(number) or text in values:
            malformed.append(f"line {line}: {text!r}" + (" again" if text in values else ""))
        else:
            values[text] = number
    found = count_rows(spec, len(values), malformed=malformed)
    if not values:
        raise _bad_file(path, "has no word with a valence")
    rated = np.array(list(values.values()))
    low, high = scale or _scale(path, rated)
    if rated.min() < low or rated.max() > high:
        raise _bad_file(
            path,
            f"has valences from {rated.min()} to {rated.max()}, outside the scale of {low:g} to "
            f"{high:g}: pass ?scale=LOW,HIGH",
        )
    return Lexicon(
        words=tuple(values),
        valence=rescale_to_unit_interval(rated, low, high),
        name=path.stem,
        provenance={"words": file_hash(path), "scale": [low, high], "found": found},
    )


def _bad_file(path: Path, problem: str) -> InputError:
    return InputError(f"{path} {problem}", code="bad-file", value=str(path))


def _rows(path: Path) -> list[list[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as opened:
            lines = opened.read().splitlines()
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from None
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise _bad_file(path, "is empty")
    if "\t" in lines[0]:  # a quotation mark is part of the word
        return list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    return list(csv.reader(lines, delimiter=";" if lines[0].count(";") else ","))


def _is_header(row: list[str]) -> bool:
    """Whether a row has column names: no numbers."""
    return all(math.isnan(_number(cell)) for cell in row)


def _columns(
    spec: Spec, path: Path, rows: list[list[str]]
) -> tuple[int, int, tuple[float, float] | None]:
    """The positions of words and valences, and the scale if it is known."""
    header = [cell.strip() for cell in rows[0]]
    requested = {name: spec.options[name] for name in ("word", "valence") if name in spec.options}
    scale = _given_scale(spec)
    if not _is_header(rows[0]):
        if requested:
            raise _bad_file(path, "has no header for ?word and ?valence")
        return 0, 1, scale
    at = {}
    for name, known in (("word", WORDS), ("valence", tuple(VALENCES))):
        lower = [cell.lower() for cell in header]
        positions = [lower.index(column) for column in known if column in lower]
        if name in requested:
            if requested[name] not in header:
                raise UnknownNameError(f"column of {path}:", requested[name], header)
            positions = [header.index(requested[name])]
        if not positions:
            raise _bad_file(
                path,
                f"has no column {' or '.join(known)}, only {', '.join(header)}: pass "
                f"?{name}=COLUMN",
            )
        at[name] = positions[0]
    return at["word"], at["valence"], scale or VALENCES.get(header[at["valence"]].lower())


def _given_scale(spec: Spec) -> tuple[float, float] | None:
    if "scale" not in spec.options:
        return None
    ends = [_number(part) for part in spec.options["scale"].split(",")]
    if len(ends) != 2 or not ends[0] < ends[1]:
        raise InputError(
            f"lexicon: scale must be LOW,HIGH, such as 1,9; got {spec.options['scale']!r}",
            code="bad-option",
            value=spec.options["scale"],
        )
    return ends[0], ends[1]


def _scale(path: Path, rated: np.ndarray) -> tuple[float, float]:
    """0 to 1, or -1 to 1, as in the two versions of NRC-VAD; others must be given."""
    if rated.min() < -1 or rated.max() > 1:
        raise _bad_file(
            path,
            f"has valences from {rated.min()} to {rated.max()}: pass ?scale=LOW,HIGH, such as "
            "?scale=1,9",
        )
    return (-1.0 if rated.min() < 0 else 0.0), 1.0


def _number(text: str) -> float:
    """The number, NaN if there is none or it is infinite."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan
