"""Simple morphs within groups: two aligned faces of the same group, blended.

No landmarks are used, so the faces must be aligned, as in the Chicago Face Database. A morph never
joins two groups, nor two images of the same person if `same` identifies persons. A morph is named
after its parents, `FIRST+SECOND@SHARE`: morphs that share a parent are not independent, and
`parents_of` reads this from their names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.io.image_files import GeneratedImages
from tiltmeter.types import Faces, Groups

#: Weights of the second face are drawn between these, if none is given.
SHARES = (0.3, 0.7)
_SUFFIX = re.compile(r"\.(png|jpe?g|webp|bmp|tiff?)$", re.IGNORECASE)
_NAME = re.compile(r"(.+)\+(.+)@[01]\.\d+")


@dataclass(frozen=True)
class MorphPair:
    """Two rows and the weight of the second in their morph."""

    first: int
    second: int
    share: float


def morphs(
    faces: Faces,
    attribute: str,
    *,
    each: int,
    rng: np.random.Generator,
    share: float | None = None,
    size: int = 224,
    same: Sequence[str] | None = None,
) -> Faces:
    """Morphs of pairs of images within each group, made on access.

    Parameters
    ----------
    faces
        Images with groups.
    attribute
        The attribute, or an intersection such as `race*gender`.
    each
        Morphs per group.
    rng
        Draws the pairs and weights.
    share
        The weight of the second face; random between .3 and .7 by default. The study of
        propagation has .5.
    size
        Width and height in pixels.
    same
        The person in each image; images of the same person are not joined.
    """
    groups = faces.attribute(attribute)
    if share is not None and not 0 < share < 1:
        raise InputError(
            f"share must be between 0 and 1; got {share}", code="bad-option", value=share
        )
    if faces.images is None:
        raise InputError(f"{faces.name} has no images to morph", code="no-images", value=faces.name)
    pairs: list[MorphPair] = []
    for code, name in enumerate(groups.names):
        rows = np.flatnonzero(groups.codes == code)
        pairs += _pairs(rows, each, rng, name, same, share)
    rows = np.array([pair.first for pair in pairs])
    parts = attribute.split("*")
    groups_of = {part: faces.groups[part] for part in parts}
    ids = faces.ids
    return Faces(
        ids=tuple(f"{ids[p.first]}+{ids[p.second]}@{p.share:.2f}" for p in pairs),
        groups={part: Groups(g.codes[rows], g.names, part) for part, g in groups_of.items()},
        images=GeneratedImages(partial(_blend, faces.images, pairs, size), range(len(pairs))),
        name=f"{faces.name}-morphs",
        provenance={
            "of": faces.name,
            "attribute": attribute,
            "each": each,
            "size": size,
            "share": share,
        },
    )


def save(made: Faces, attribute: str, out: Path) -> None:
    """Save images as PNG files, for `folder:OUT?parts=race_gender`.

    Parameters
    ----------
    made
        The morphs.
    attribute
        The attribute or intersection that names the directories; its parts are joined by `_`.
    out
        The directory, which must not exist.
    """
    groups = made.attribute(attribute)
    folders = [out / name.replace(" | ", "_") for name in groups.names]
    if odd := [name for name in groups.names if "/" in name or name.startswith(".")]:
        raise InputError(
            f"groups named {', '.join(odd)} cannot be names of directories",
            code="bad-labels",
            value=odd[0],
        )
    if out.exists():
        raise InputError(
            f"{out} exists already: choose another directory", code="exists", value=str(out)
        )
    names = [(folders[code], _file_name(made.ids[row])) for row, code in enumerate(groups.codes)]
    if len(set(names)) < len(names):
        raise InputError(
            "two images of a group have the same file name: rename them, for a morph is named "
            "after its parents",
            code="bad-file",
        )
    for folder in folders:
        folder.mkdir(parents=True)
    for row, (folder, name) in enumerate(names):
        made.images[row].save(folder / name)


def parents_of(ids: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The parents of morphs by their names `FIRST+SECOND@SHARE`; empty if no image is a morph.

    Parameters
    ----------
    ids
        Names of images, with their directory and suffix or without.

    Returns
    -------
    tuple of tuple of str
        Both parents of a morph; an image that is no morph is its own.

    Examples
    --------
    >>> parents_of(["black_man/001+002@0.50.png", "black_man/003.png"])
    (('black_man/001', 'black_man/002'), ('black_man/003',))
    >>> parents_of(["001.png"])
    ()
    """
    found: list[tuple[str, ...]] = []
    for name in map(_bare, ids):
        if (pair := _NAME.fullmatch(name)) is None:
            found.append((name,))
            continue
        first, second = map(_bare, pair.groups())
        if "/" not in second:  # a file's name has the directory once
            second = str(PurePosixPath(first).with_name(second))
        found.append((first, second))
    return tuple(found) if any(len(names) > 1 for names in found) else ()


def _bare(name: str) -> str:
    """A name without the suffix of an image file."""
    return _SUFFIX.sub("", name)


def _file_name(name: str) -> str:
    """The name of a morph's file: its parents without directories and suffixes."""
    first, second = (PurePosixPath(parent).name for parent in parents_of([name])[0])
    return f"{first}+{second}@{name.rpartition('@')[2]}.png"


def _pairs(
    rows: np.ndarray,
    each: int,
    rng: np.random.Generator,
    name: str,
    same: Sequence[str] | None,
    share: float | None,
) -> list[MorphPair]:
    """Distinct random pairs of the rows, with their weights."""
    first, second = np.triu_indices(len(rows), k=1)
    if same is not None:
        persons = np.asarray(same)[rows]
        differ = persons[first] != persons[second]
        first, second = first[differ], second[differ]
    if len(first) < each:
        raise InputError(
            f"group {name!r} has {len(rows)} images, enough for {len(first)} morphs; "
            f"{each} were requested",
            value=name,
        )
    chosen = np.sort(rng.choice(len(first), size=each, replace=False))
    shares = rng.uniform(*SHARES, size=each) if share is None else np.full(each, share)
    return [
        MorphPair(int(rows[first[at]]), int(rows[second[at]]), float(weight))
        for at, weight in zip(chosen, shares, strict=True)
    ]


def _blend(images: Any, pairs: Sequence[MorphPair], size: int, row: int) -> Any:
    from PIL import Image, ImageOps

    pair = pairs[row]
    first, second = (ImageOps.fit(images[at], (size, size)) for at in (pair.first, pair.second))
    return Image.blend(first, second, pair.share)
