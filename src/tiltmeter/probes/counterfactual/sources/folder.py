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
    """Whatever an editor made of the images; those without an edited one are left out."""

    path: Path
    batch: int = 32
    name: str = "folder"

    def blocks(self, model: Any, data: Faces, swap: Swap) -> Iterator[ImagePairBlock]:
        """Every image of the two groups that has an edited one, and that."""
        rows, edited = self.pairs(data, swap)
        images = images_of(data)
        for start in range(0, len(rows), self.batch):
            here = slice(start, start + self.batch)
            yield ImagePairBlock(
                rows[here], pixels_of(model, images[rows[here]]), pixels_of(model, edited[here])
            )

    def pairs(self, data: Faces, swap: Swap) -> tuple[Ints, ImageFiles]:
        """Rows that have an edited image, and these."""
        root = Path(self.path)
        if not root.is_dir():
            raise InputError(f"{root} is no folder: expected edited pictures named by id, ID.png")
        found: dict[str, Path] = {}
        for path in sorted(root.rglob("*")):
            if path.suffix.lower() in SUFFIXES and path.is_file():
                name = path.relative_to(root).as_posix()
                # an id may be the name of a file, ending and all
                found.setdefault(name, path)
                found.setdefault(name[: -len(path.suffix)], path)
        places = [found.get(one) or found.get(_plain(one)) for one in data.ids]
        rows = np.array([row for row in swap.rows(data) if places[row] is not None], dtype=int)
        if not len(rows):
            known = ", ".join(list(found)[:3]) or "no picture"
            raise InputError(
                f"{root} holds no picture named by an id of {data.name}: it has {known}, where "
                f"ids are such as {data.ids[0]!r}, so expected {data.ids[0]}.png"
            )
        return rows, ImageFiles(tuple(place for row in rows if (place := places[row])), root)


def _plain(name: str) -> str:
    """A name without the ending of an image file."""
    path = Path(name)
    return name[: -len(path.suffix)] if path.suffix.lower() in SUFFIXES else name
