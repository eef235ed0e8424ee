"""Simple morphs within groups: two aligned faces of the same group, one faded into the other.

No landmarks are looked for, so the faces must lie alike in their pictures, as those of the Chicago
Face Database do. A morph never joins two groups. Pictures of the same person, told by `same`, are
not joined either.
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
    """Two rows and the share of the second in their morph."""

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
    """`each` morphs for every group of `attribute` (`race*gender` crosses), made when looked at."""
    groups = faces.attribute(attribute)
    if faces.images is None:
        raise InputError(f"{faces.name} has no pictures to morph")
    pairs: list[MorphPair] = []
    for code, name in enumerate(groups.names):
        rows = np.flatnonzero(groups.codes == code)
        pairs += _pairs(rows, each, rng, name, same)
    rows = np.array([pair.first for pair in pairs])
    parts = attribute.split("*")
    made = {part: faces.groups[part] for part in parts}
    ids = faces.ids
    return Faces(
        ids=tuple(f"{ids[p.first]}+{ids[p.second]}@{p.share:.2f}" for p in pairs),
        groups={part: Groups(g.codes[rows], g.names, part) for part, g in made.items()},
        images=GeneratedImages(partial(_faded, faces.images, pairs, size), range(len(pairs))),
        name=f"{faces.name}-morphs",
        provenance={"of": faces.name, "attribute": attribute, "each": each, "size": size},
    )


def save(made: Faces, attribute: str, out: Path) -> None:
    """Writes pictures as PNG, a folder for each group: `folder:OUT?parts=race_gender` reads them.

    `attribute` may be crossed; the parts of a group's name are joined by `_`.
    """
    groups = made.attribute(attribute)
    folders = [out / name.replace(" | ", "_") for name in groups.names]
    if odd := [name for name in groups.names if "/" in name or name.startswith(".")]:
        raise InputError(f"groups named {', '.join(odd)} cannot name folders")
    if out.exists():
        raise InputError(f"{out} exists already: name another place")
    for folder in folders:
        folder.mkdir(parents=True)
    for row, code in enumerate(groups.codes):
        made.images[row].save(folders[code] / f"{row + 1:05d}.png")


def _pairs(
    rows: np.ndarray, each: int, rng: np.random.Generator, name: str, same: Sequence[str] | None
) -> list[MorphPair]:
    """Distinct pairs of the rows, drawn at random; neither parent has less than 3 parts in 10."""
    first, second = np.triu_indices(len(rows), k=1)
    if same is not None:
        persons = np.asarray(same)[rows]
        differ = persons[first] != persons[second]
        first, second = first[differ], second[differ]
    if len(first) < each:
        raise InputError(
            f"group {name!r} has {len(rows)} pictures, enough for {len(first)} morphs of two; "
            f"{each} were asked for"
        )
    chosen = np.sort(rng.choice(len(first), size=each, replace=False))
    shares = rng.uniform(0.3, 0.7, size=each)
    return [
        MorphPair(int(rows[first[at]]), int(rows[second[at]]), float(share))
        for at, share in zip(chosen, shares, strict=True)
    ]


def _faded(images: Any, pairs: Sequence[MorphPair], size: int, row: int) -> Any:
    from PIL import Image, ImageOps

    pair = pairs[row]
    first, second = (ImageOps.fit(images[at], (size, size)) for at in (pair.first, pair.second))
    return Image.blend(first, second, pair.share)
