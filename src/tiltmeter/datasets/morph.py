"""Simple morphs within groups: two aligned faces of the same group, blended.

No landmarks are used, so the faces must be aligned, as in the Chicago Face Database. A morph never
joins two groups, nor two images of the same person if `same` identifies persons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.io.image_files import GeneratedImages
from tiltmeter.types import Faces, Groups


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
    size
        Width and height in pixels.
    same
        The person in each image; images of the same person are not joined.
    """
    groups = faces.attribute(attribute)
    if faces.images is None:
        raise InputError(f"{faces.name} has no images to morph", code="no-images", value=faces.name)
    pairs: list[MorphPair] = []
    for code, name in enumerate(groups.names):
        rows = np.flatnonzero(groups.codes == code)
        pairs += _pairs(rows, each, rng, name, same)
    rows = np.array([pair.first for pair in pairs])
    parts = attribute.split("*")
    groups_of = {part: faces.groups[part] for part in parts}
    ids = faces.ids
    return Faces(
        ids=tuple(f"{ids[p.first]}+{ids[p.second]}@{p.share:.2f}" for p in pairs),
        groups={part: Groups(g.codes[rows], g.names, part) for part, g in groups_of.items()},
        images=GeneratedImages(partial(_blend, faces.images, pairs, size), range(len(pairs))),
        name=f"{faces.name}-morphs",
        provenance={"of": faces.name, "attribute": attribute, "each": each, "size": size},
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
    for folder in folders:
        folder.mkdir(parents=True)
    for row, code in enumerate(groups.codes):
        made.images[row].save(folders[code] / f"{row + 1:05d}.png")


def _pairs(
    rows: np.ndarray, each: int, rng: np.random.Generator, name: str, same: Sequence[str] | None
) -> list[MorphPair]:
    """Distinct random pairs of the rows; the weights are between .3 and .7."""
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
    shares = rng.uniform(0.3, 0.7, size=each)
    return [
        MorphPair(int(rows[first[at]]), int(rows[second[at]]), float(share))
        for at, share in zip(chosen, shares, strict=True)
    ]


def _blend(images: Any, pairs: Sequence[MorphPair], size: int, row: int) -> Any:
    from PIL import Image, ImageOps

    pair = pairs[row]
    first, second = (ImageOps.fit(images[at], (size, size)) for at in (pair.first, pair.second))
    return Image.blend(first, second, pair.share)
