"""Edited images from a folder: ID.png is the counterfactual of the image with that id."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.io.image_files import SUFFIXES, ImageFiles
from tiltmeter.probes.counterfactual.sources import ImagePairBlock, Swap, images_of, pixels_of
from tiltmeter.types import Faces, Ints


@dataclass(frozen=True)
class EditedFolder:
    """Edited versions of the images; images without one are left out."""

    path: Path
    batch: int = 32
    name: str = "folder"

    def blocks(self, model: Any, data: Faces, swap: Swap) -> Iterator[ImagePairBlock]:
        """Every image of the two groups that has an edited version, with it."""
        rows, edited = self.pairs(data, swap)
        images = images_of(data)
        for start in range(0, len(rows), self.batch):
            part = slice(start, start + self.batch)
            yield ImagePairBlock(
                rows[part], pixels_of(model, images[rows[part]]), pixels_of(model, edited[part])
            )

    def pairs(self, data: Faces, swap: Swap) -> tuple[Ints, ImageFiles]:
        """Rows that have an edited image, and the edited images."""
        root = Path(self.path)
        if not root.is_dir():
            raise InputError(f"{root} is not a folder: expected edited images named by id, ID.png")
        path_of: dict[str, Path] = {}
        for path in sorted(root.rglob("*")):
            if path.suffix.lower() in SUFFIXES and path.is_file():
                name = path.relative_to(root).as_posix()
                # an id may be a file name with its suffix
                path_of.setdefault(name, path)
                path_of.setdefault(name[: -len(path.suffix)], path)
        places = [
            path_of.get(image_id) or path_of.get(_without_suffix(image_id)) for image_id in data.ids
        ]
        rows = np.array([row for row in swap.rows(data) if places[row] is not None], dtype=int)
        if not len(rows):
            examples = ", ".join(list(path_of)[:3]) or "no image"
            raise InputError(
                f"{root} has no image named by an id of {data.name}: found {examples}; expected "
                f"names such as {data.ids[0]}.png"
            )
        return rows, ImageFiles(tuple(place for row in rows if (place := places[row])), root)


def _without_suffix(name: str) -> str:
    """A name without the suffix of an image file."""
    path = Path(name)
    return name[: -len(path.suffix)] if path.suffix.lower() in SUFFIXES else name
