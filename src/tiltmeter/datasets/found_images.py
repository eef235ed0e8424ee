"""Which of the pictures that a data set lists are there, and what there is to say about them.

One record says it, for every data set: `provenance["found"]`. `describe` puts it in words.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tiltmeter.datasets.options import flag
from tiltmeter.errors import InputError
from tiltmeter.io.image_files import (
    SUFFIXES,
    GeneratedImages,
    ImageFiles,
    Unreadable,
    all_within,
    decode,
    within,
)
from tiltmeter.io.specs import Spec
from tiltmeter.types import Groups

T = TypeVar("T")
#: Options of every loader of pictures: refuse what is not whole; decode every picture to see.
OPTIONS = ("strict", "check")
#: So many names stand for all that are missing.
FIRST = 5


@dataclass(frozen=True, eq=False)
class FoundImages:
    """The pictures that are there, which rows of the list they are, and the record."""

    pictures: ImageFiles | GeneratedImages
    rows: list[int]
    found: dict[str, Any]

    def of(self, values: Sequence[T]) -> tuple[T, ...]:
        """The values of the rows that have a picture."""
        return tuple(values[row] for row in self.rows)


def listed(root: Path) -> list[str]:
    """Names of the picture files under `root`, in order; no link leads out."""
    names = []
    for place, folders, files in os.walk(root):
        # some programs leave folders such as .cache, and files such as ._face.jpg
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink():
                within(root, path.relative_to(root).as_posix())
        files = [name for name in files if not name.startswith(".")]
        names += [
            Path(place, name).relative_to(root).as_posix()
            for name in files
            if Path(name).suffix.lower() in SUFFIXES
        ]
    return sorted(names, key=_by_number)


def _by_number(name: str) -> tuple[tuple[int, str], ...]:
    """Sorts 2.jpg before 10.jpg."""
    parts = re.split(r"([0-9]+)", name)  # what is between numbers, a number, and so on
    return tuple((int(part), "") if at % 2 else (-1, part) for at, part in enumerate(parts))


def look(
    spec: Spec, root: Path, names: Sequence[str], *, malformed: Sequence[str] = ()
) -> FoundImages:
    """Those of the files `names` under `root` that are there, and with `?check=yes` can be read.

    `malformed` are rows or files that could not be understood; they are counted and named.
    With `?strict=yes` anything that is left out is an error.
    """
    check = flag(spec, "check")
    paths, rows = [], []
    missing: list[str] = []
    unreadable: list[str] = []
    for row, (name, path) in enumerate(zip(names, all_within(root, names), strict=True)):
        if not path.is_file():
            missing.append(name)
        elif check and not readable(path):
            unreadable.append(name)
        else:
            paths.append(path)
            rows.append(row)
    faults = {"missing": missing, "unreadable": unreadable if check else None}
    found = record(spec, len(paths), **faults, malformed=malformed)
    if not paths:
        place = f", such as {root / names[0]}" if names else f" under {root}"
        raise InputError("; ".join([f"{spec.scheme}: found no picture{place}", *_faults(found)]))
    return FoundImages(ImageFiles(tuple(paths), root), rows, {**found, "images": len(paths)})


def no_picture(spec: Spec, broken: Sequence[str]) -> InputError:
    """What is said where files that should hold pictures hold none."""
    cannot = f"; {len(broken):,} cannot be read, first {broken[0]}" if broken else ""
    return InputError(f"{spec.scheme}: found no picture in the files of {spec.rest}{cannot}")


def record(spec: Spec, kept: int, **faults: Sequence[str] | None) -> dict[str, Any]:
    """What was found: rows that are `kept`, and the names of those left out, by what is wrong.

    None says that nobody looked. With `?strict=yes` nothing may be left out.
    """
    found: dict[str, Any] = {"rows": kept + sum(len(names or ()) for names in faults.values())}
    for fault, names in faults.items():
        some = None if names is None else {"count": len(names), "first": list(names[:FIRST])}
        found[fault] = some
    if flag(spec, "strict") and (wrong := _faults(found)):
        raise InputError(f"{spec.scheme}: {'; '.join(wrong)} (?strict=yes refuses that)")
    return found


def counts(groups: Iterable[Groups]) -> dict[str, dict[str, int]]:
    """How many there are of each group, by attribute."""
    return {one.attribute: dict(zip(one.names, one.counts.tolist(), strict=True)) for one in groups}


def describe(data: Any) -> list[str]:
    """What a loader found, a few lines to print: rows, pictures, what was left out, groups.

    >>> from tiltmeter.datasets import load_data
    >>> describe(load_data("testbed:?images=28"))
    ['28 rows', 'shape: round 14, square 14', 'hue: red 4, ...']
    """
    found = data.provenance.get("found", {"rows": len(data)})
    first = f"{found['rows']:,} rows"
    first += "".join(f", {found[what]:,} {what}" for what in ("images", "texts") if what in found)
    if found.get("unreadable") is not None:
        first += ", decoded to see"
    groups = found.get("groups") or counts(getattr(data, "groups", {}).values())
    return [first, *_faults(found)] + [
        f"{attribute}: " + ", ".join(f"{name} {count:,}" for name, count in by.items())
        for attribute, by in groups.items()
    ]


def readable(picture: Path | bytes) -> bool:
    """Whether a file gives a picture."""
    try:
        decode(picture)
    except Unreadable:
        return False
    return True


def _faults(found: dict[str, Any]) -> list[str]:
    """What was left out, in words."""
    lines = []
    for fault in ("missing", "unreadable", "malformed"):
        some = found.get(fault)
        if some and some["count"]:
            names = ", ".join(name or "(no name)" for name in some["first"])
            names += ", ..." if some["count"] > FIRST else ""
            lines.append(f"{some['count']:,} {fault}: {names}")
    return lines
