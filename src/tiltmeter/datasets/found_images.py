"""The images of a dataset that exist, and a record of those that do not.

The record is `provenance["found"]` of every dataset; `describe` prints it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, TypeVar

from tiltmeter.datasets.options import flag
from tiltmeter.errors import InputError
from tiltmeter.io.image_files import (
    SUFFIXES,
    GeneratedImages,
    ImageFiles,
    UnreadableImageError,
    decode,
    link_out_of_root,
    resolve_all_within,
    resolve_within,
)
from tiltmeter.io.specs import Spec
from tiltmeter.types import Groups

T = TypeVar("T")
#: Options of every loader of images: refuse incomplete data; decode every image to check it.
OPTIONS = ("strict", "check")
#: How many names of missing files are recorded.
MAX_NAMES = 5
#: How many of them a message names.
NAMED = 3


@dataclass(frozen=True, eq=False)
class FoundImages:
    """The images of a list that exist.

    Parameters
    ----------
    images
        The images.
    rows
        Their rows in the list.
    found
        The record: counts, and what is missing.
    """

    images: ImageFiles | GeneratedImages
    rows: list[int]
    found: dict[str, Any]

    def select(self, values: Sequence[T]) -> tuple[T, ...]:
        """The values of the rows that have an image.

        Parameters
        ----------
        values
            One per row of the list.
        """
        return tuple(values[row] for row in self.rows)


def list_images(root: Path) -> list[str]:
    """Names of the image files under a directory, sorted; links that lead out are refused.

    Parameters
    ----------
    root
        The directory.
    """
    names = []
    for place, folders, files in os.walk(root):
        # some programs leave directories such as .cache, and files such as ._face.jpg
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink():
                _check_link(root, path.relative_to(root).as_posix())
        files = [name for name in files if not name.startswith(".")]
        names += [
            Path(place, name).relative_to(root).as_posix()
            for name in files
            if Path(name).suffix.lower() in SUFFIXES
        ]
    return sorted(names, key=_by_number)


def _check_link(root: Path, link: str) -> None:
    """Refuse a link that leads out of the root, and name the directory to pass instead."""
    try:
        resolve_within(root, link)
    except InputError as error:
        instead = _directory_without_link(root, str(error.value))
        raise link_out_of_root(str(error.value), root, instead) from None


def _by_number(name: str) -> tuple[tuple[int, str], ...]:
    """Sorts 2.jpg before 10.jpg."""
    parts = re.split(r"([0-9]+)", name)  # text and numbers in turn
    return tuple((int(part), "") if at % 2 else (-1, part) for at, part in enumerate(parts))


def find_images(
    spec: Spec, root: Path, names: Sequence[str], *, malformed: Sequence[str] = ()
) -> FoundImages:
    """Finds the images of a list; with `?check=yes` only those that can be decoded.

    Parameters
    ----------
    spec
        The spec of the dataset. With `?strict=yes` anything left out is an error.
    root
        The directory of the images.
    names
        Their paths, relative to the root.
    malformed
        Rows or files that could not be parsed, for the record.

    Raises
    ------
    InputError
        `no-images` if there are none, `unsafe-path` if a path leads out of the root.
    """
    check = flag(spec, "check")
    paths, rows = [], []
    missing: list[str] = []
    unreadable: list[str] = []
    for row, (name, path) in enumerate(zip(names, _resolved(spec, root, names), strict=True)):
        if not path.is_file():
            missing.append(name)
        elif check and not readable(path):
            unreadable.append(name)
        else:
            paths.append(path)
            rows.append(row)
    faults = {"missing": missing, "unreadable": unreadable if check else None}
    found = count_rows(spec, len(paths), **faults, malformed=malformed)
    if not paths:
        raise InputError(
            f"{spec.scheme}: {_none_found(spec, root, names, found)}",
            code="no-images",
            value=spec.rest,
        )
    return FoundImages(ImageFiles(tuple(paths), root), rows, {**found, "images": len(paths)})


def _resolved(spec: Spec, root: Path, names: Sequence[str]) -> Iterator[Path]:
    """The paths of the images; an error about a link says what to type, if that can be known."""
    try:
        yield from resolve_all_within(root, names)
    except InputError as error:
        link = str(error.value)
        if ".." in PurePath(link).parts or not (root / link).is_symlink():
            raise
        raise link_out_of_root(link, root, _spec_without_link(spec, root, link, names)) from None


def _spec_without_link(spec: Spec, root: Path, link: str, names: Sequence[str]) -> str:
    """The spec with the directory that a link leads to, if all images are there too."""
    new = _linked_root(root, link)
    if new is None or any((root / n).is_file() and not (new / n).is_file() for n in names):
        return ""
    if spec.scheme == "table":
        spec = replace(spec, options={**spec.options, "root": str(new)})
    elif "images" in spec.options:
        spec = replace(spec, options={**spec.options, "images": str(new)})
    elif root == Path(spec.rest) and {*_visible(root)} <= {*_visible(new)}:
        spec = replace(spec, rest=str(new))
    else:
        return ""
    return shlex.quote(str(spec))


def _linked_root(root: Path, link: str) -> Path | None:
    """The directory in which a path is what a link leads to; None if the link has another name."""
    parts, target = PurePath(link).parts, (root / link).resolve()
    if target.parts[-len(parts) :] != parts:
        return None
    return Path(*target.parts[: -len(parts)])


def _directory_without_link(root: Path, link: str) -> str:
    """The directory that has the same content as the root without a link, if there is one."""
    content, new = _visible(root), _linked_root(root, link)
    if new is not None and content == _visible(new):
        return str(new)
    target = (root / link).resolve()
    return str(target) if content == [link] and target.is_dir() else ""


def _visible(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


def _none_found(spec: Spec, root: Path, names: Sequence[str], found: dict[str, Any]) -> str:
    """Where no image was found, and what to type."""
    root = root.absolute()
    missing = (found.get("missing") or {}).get("count", 0)
    if not names or missing < len(names):  # not the paths alone are wrong
        return "; ".join([f"found no image that can be used under {root}", *_faults(found)])
    looked = f"none of the {len(names):,} images is at its path, such as {root / names[0]}"
    if spec.scheme != "table":
        return looked
    option = f"{'&' if spec.options else '?'}root=DIR"
    return f"{looked}: correct the paths, or add the folder they start from to the spec, {option}"


def no_images_error(spec: Spec, broken: Sequence[str]) -> InputError:
    """The error for files that should contain images and do not.

    Parameters
    ----------
    spec
        The spec of the dataset.
    broken
        Files that cannot be read.
    """
    cannot = f"; {len(broken):,} cannot be read, first {broken[0]}" if broken else ""
    return InputError(
        f"{spec.scheme}: found no image in the files of {spec.rest}{cannot}",
        code="no-images",
        value=spec.rest,
    )


def count_rows(spec: Spec, kept: int, **faults: Sequence[str] | None) -> dict[str, Any]:
    """The record of a dataset: how many rows there are, and which were left out.

    Parameters
    ----------
    spec
        The spec of the dataset. With `?strict=yes` rows left out are an error.
    kept
        The number of rows that are used.
    **faults
        Names of the rows left out, by what is wrong with them; None: not checked.
    """
    found: dict[str, Any] = {"rows": kept + sum(len(names or ()) for names in faults.values())}
    for fault, names in faults.items():
        found[fault] = None
        if names is not None:
            found[fault] = {"count": len(names), "first": list(names[:MAX_NAMES])}
    if flag(spec, "strict") and (wrong := _faults(found)):
        raise InputError(
            f"{spec.scheme}: {'; '.join(wrong)} (?strict=yes refuses that)",
            code="incomplete",
            value=spec.rest,
        )
    return found


def group_counts(groups: Iterable[Groups]) -> dict[str, dict[str, int]]:
    """The size of each group, by attribute."""
    return {g.attribute: dict(zip(g.names, g.counts.tolist(), strict=True)) for g in groups}


def describe(data: Any) -> list[str]:
    """A summary of a dataset to print: rows, images, what was left out, groups.

    Parameters
    ----------
    data
        What `load_data` returned.

    Returns
    -------
    list
        Lines of text.

    Examples
    --------
    >>> from tiltmeter.datasets import load_data
    >>> describe(load_data("testbed:?images=28"))
    ['28 rows', 'shape: round 14, square 14', 'hue: red 4, ...']
    """
    found = data.provenance.get("found", {"rows": len(data)})
    first = f"{found['rows']:,} rows"
    first += "".join(f", {found[what]:,} {what}" for what in ("images", "texts") if what in found)
    if found.get("unreadable") is not None:
        first += ", all decoded"
    groups = found.get("groups") or group_counts(getattr(data, "groups", {}).values())
    return [first, *_faults(found)] + [
        f"{attribute}: " + ", ".join(f"{name} {count:,}" for name, count in by.items())
        for attribute, by in groups.items()
    ]


def describe_missing(found: Mapping[str, Any]) -> str:
    """How many listed images are missing, and the first of them; empty if none is.

    Parameters
    ----------
    found
        The record of a dataset, `provenance["found"]`.

    Examples
    --------
    >>> describe_missing({"missing": {"count": 1, "first": ["val/1.jpg"]}})
    '1 listed image is missing (val/1.jpg)'
    """
    missing = found.get("missing") or {"count": 0}
    if not missing["count"]:
        return ""
    many = "image is" if missing["count"] == 1 else "images are"
    return f"{missing['count']:,} listed {many} missing ({_first_names(missing, NAMED)})"


def describe_size(name: str, images: int, found: Mapping[str, Any]) -> str:
    """How many images a dataset has, and how many more its list has.

    Parameters
    ----------
    name
        Its name.
    images
        The number of images that are used.
    found
        The record of the dataset, `provenance["found"]`.

    Examples
    --------
    >>> describe_size("mine", 42, {"rows": 100, "missing": {"count": 58, "first": ["1.jpg"]}})
    'mine has 42 images, since 58 of its 100 listed images are missing'
    """
    size, missing = f"{name} has {images:,} images", (found.get("missing") or {}).get("count")
    if not missing:
        return size
    are = "is" if missing == 1 else "are"
    return f"{size}, since {missing:,} of its {found['rows']:,} listed images {are} missing"


def check_complete(data: Any, *, strict: bool) -> None:
    """Refuse a dataset with missing image files, if `strict`.

    Parameters
    ----------
    data
        What `load_data` returned.
    strict
        Whether missing files are an error.

    Raises
    ------
    InputError
        With the code `incomplete`.
    """
    provenance = getattr(data, "provenance", {})
    if strict and (missing := describe_missing(provenance.get("found") or {})):
        raise InputError(
            f"{data.name}: {missing}: add the files, or leave out --strict to continue without "
            "them",
            code="incomplete",
            value=data.name,
        )


def readable(image: Path | bytes) -> bool:
    """Whether a file can be decoded as an image."""
    try:
        decode(image)
    except UnreadableImageError:
        return False
    return True


def _faults(found: dict[str, Any]) -> list[str]:
    """What was left out, to print."""
    lines = []
    for fault in ("missing", "unreadable", "malformed", "without_regions"):
        left_out = found.get(fault)
        if left_out and left_out["count"]:
            names = _first_names(left_out, MAX_NAMES)
            lines.append(f"{left_out['count']:,} {fault.replace('_', ' ')}: {names}")
    return lines


def _first_names(left_out: Mapping[str, Any], most: int) -> str:
    names = ", ".join(name or "(no name)" for name in left_out["first"][:most])
    return names + (", ..." if left_out["count"] > most else "")
