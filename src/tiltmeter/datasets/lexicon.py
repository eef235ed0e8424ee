"""`lexicon:FILE`: words with how pleasant people found them.

NRC-VAD (with or without a row of names, 0 to 1 or -1 to 1), Warriner et al. (1 to 9), or any table
with a column of words and one of valence.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np

from tiltmeter.datasets.found_images import record
from tiltmeter.datasets.options import file
from tiltmeter.datasets.roles import Lexicon, to_unit
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.results import file_hash

WORDS = ("word", "term")
#: Columns of valence, and the scale that their name tells.
VALENCES: dict[str, tuple[float, float] | None] = {"valence": None, "v.mean.sum": (1, 9)}


def load(spec: Spec, columns: Columns) -> Lexicon:
    """Lexicon: words with a valence (saifmohammad.com, NRC-VAD; free for research, not to share).

    Also Warriner et al. 2013 (CC BY-NC-ND 3.0). `?word=COLUMN&valence=COLUMN` name the columns of
    other tables, `?scale=1,9` the ends of their scale.
    """
    del columns  # no groups
    spec.only("word", "valence", "scale", "strict")
    path = file(spec)
    rows = _rows(path)
    word, valence, scale = _columns(spec, path, rows)
    first = 1 if _names(rows[0]) else 0
    values: dict[str, float] = {}
    malformed = []
    for line, row in enumerate(rows[first:], start=first + 1):
        text = row[word].strip() if word < len(row) else ""
        number = _number(row[valence]) if valence < len(row) else math.nan
        if not text or math.isnan(number) or text in values:
            malformed.append(f"line {line}: {text!r}" + (" again" if text in values else ""))
        else:
            values[text] = number
    found = record(spec, len(values), malformed=malformed)
    if not values:
        raise InputError(f"lexicon: {path} has no word with a valence")
    rated = np.array(list(values.values()))
    low, high = scale or _scale(path, rated)
    if rated.min() < low or rated.max() > high:
        raise InputError(
            f"{path} has valences from {rated.min()} to {rated.max()}, off the scale of {low:g} to "
            f"{high:g}: pass ?scale=LOW,HIGH"
        )
    return Lexicon(
        words=tuple(values),
        valence=to_unit(rated, low, high),
        name=path.stem,
        provenance={"words": file_hash(path), "scale": [low, high], "found": found},
    )


def _rows(path: Path) -> list[list[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as opened:
            lines = opened.read().splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}); save it again as UTF-8") from None
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise InputError(f"{path} is empty")
    if "\t" in lines[0]:  # where a quotation mark is a letter
        return list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    return list(csv.reader(lines, delimiter=";" if lines[0].count(";") else ","))


def _names(row: list[str]) -> bool:
    """Whether a row holds names of columns: no number among them."""
    return all(math.isnan(_number(cell)) for cell in row)


def _columns(
    spec: Spec, path: Path, rows: list[list[str]]
) -> tuple[int, int, tuple[float, float] | None]:
    """Where words and valences stand, and the scale if it is known."""
    header = [cell.strip() for cell in rows[0]]
    asked = {name: spec.options[name] for name in ("word", "valence") if name in spec.options}
    scale = _given_scale(spec)
    if not _names(rows[0]):
        if asked:
            raise InputError(f"{path} has no row of column names, so ?word and ?valence name none")
        return 0, 1, scale
    at = {}
    for name, known in (("word", WORDS), ("valence", tuple(VALENCES))):
        lower = [cell.lower() for cell in header]
        found = [lower.index(one) for one in known if one in lower]
        if name in asked:
            if asked[name] not in header:
                raise UnknownNameError(f"column of {path}:", asked[name], header)
            found = [header.index(asked[name])]
        if not found:
            raise InputError(
                f"{path} has no column {' or '.join(known)}, but {', '.join(header)}: name it, "
                f"?{name}=COLUMN"
            )
        at[name] = found[0]
    return at["word"], at["valence"], scale or VALENCES.get(header[at["valence"]].lower())


def _given_scale(spec: Spec) -> tuple[float, float] | None:
    if "scale" not in spec.options:
        return None
    ends = [_number(part) for part in spec.options["scale"].split(",")]
    if len(ends) != 2 or not ends[0] < ends[1]:
        raise InputError(
            f"lexicon: scale must be its two ends, such as 1,9; got {spec.options['scale']!r}"
        )
    return ends[0], ends[1]


def _scale(path: Path, rated: np.ndarray) -> tuple[float, float]:
    """0 to 1, or -1 to 1, as the two versions of NRC-VAD have it; else it must be told."""
    if rated.min() < -1 or rated.max() > 1:
        raise InputError(
            f"{path} has valences from {rated.min()} to {rated.max()}: pass ?scale=LOW,HIGH, such "
            "as ?scale=1,9"
        )
    return (-1.0 if rated.min() < 0 else 0.0), 1.0


def _number(text: str) -> float:
    """The number that is written, NaN if none or one without end."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan
