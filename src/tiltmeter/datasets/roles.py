"""Roles of data other than faces: one small class each.

All have `name` and `provenance`, with the record of the loader as `provenance["found"]` (see
found_images.py). `images` is what a model's encode_images takes; None without images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tiltmeter.io.regions import Regions
from tiltmeter.types import Faces, Floats, Groups, Ints


@dataclass(frozen=True, eq=False)
class Scenes(Faces):
    """People in scenes.

    Parameters
    ----------
    scenes
        What each image shows besides the person.
    kinds
        The kind of each scene.
    parallel
        Whether every scene exists for every group. If not, a scene is the concept (an activity,
        an occupation) that the person is shown in.
    """

    scenes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    parallel: bool = True

    def select(self, rows: Sequence[int]) -> Scenes:
        """The given rows."""
        kept = {
            name: tuple(getattr(self, name)[row] for row in rows) for name in ("scenes", "kinds")
        }
        return replace(self, **vars(super().select(rows)) | kept)

    def counterparts(self, attribute: str) -> Iterator[tuple[int, int]]:
        """Pairs of rows of the same scene that differ in one attribute only: true counterfactuals.

        Parameters
        ----------
        attribute
            The attribute.

        Yields
        ------
        tuple
            Two rows, the first one in the group that comes first; each pair once.
        """
        changed = self.attribute(attribute).codes
        same: dict[tuple[Any, ...], list[int]] = {}
        for row, key in enumerate(zip(self.kinds, self.scenes, strict=True)):
            rest = (g.codes[row] for name, g in self.groups.items() if name != attribute)
            same.setdefault((*key, *rest), []).append(row)
        for rows in same.values():
            for first in rows:
                yield from ((first, second) for second in rows if changed[first] < changed[second])


@dataclass(frozen=True, eq=False)
class ValenceImages:
    """Images with their valence, from 0 (unpleasant) to 1 (pleasant)."""

    ids: tuple[str, ...]
    valence: Floats
    images: Any
    categories: tuple[str, ...] = ()
    name: str = "valence"
    provenance: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class Lexicon:
    """Words with their valence, from 0 (unpleasant) to 1 (pleasant)."""

    words: tuple[str, ...]
    valence: Floats
    name: str = "lexicon"
    provenance: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.words)


@dataclass(frozen=True, eq=False)
class Triplets:
    """Triplets of captions: stereotypical, anti-stereotypical and irrelevant.

    `against` is whether the image shows the anti-stereotype; None without images. `regions` are for
    models that take regions instead of pixels.
    """

    ids: tuple[str, ...]
    stereotypical: tuple[str, ...]
    anti: tuple[str, ...]
    irrelevant: tuple[str, ...]
    targets: tuple[str, ...]  # the group of the captions: "Ethiopian", "nurse"
    categories: Groups  # race, profession, gender, religion
    contexts: tuple[str, ...] = ()
    against: Ints | None = None
    images: Any = None
    name: str = "triplets"
    regions: Regions | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class Captions:
    """Captions of images: `texts[i]` describes the image `ids[of[i]]`."""

    ids: tuple[str, ...]  # images, each once
    texts: tuple[str, ...]
    of: Ints
    images: Any = None
    name: str = "captions"
    provenance: dict[str, Any] = field(default_factory=dict)
    vectors: Floats | None = None  # embeddings of the images, where they are known

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, eq=False)
class Utility:
    """Images with classes, to measure the utility of a model."""

    ids: tuple[str, ...]
    classes: Groups
    images: Any
    name: str = "utility"
    provenance: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)


#: The type of each role. Scenes are faces too.
ROLES: dict[str, type] = {
    "faces": Faces,
    "pairs": Scenes,
    "valence": ValenceImages,
    "lexicon": Lexicon,
    "triplets": Triplets,
    "captions": Captions,
    "utility": Utility,
    "stimuli": Utility,  # a class is a set of stimuli
}


def rescale_to_unit_interval(ratings: Floats, low: float, high: float) -> Floats:
    """Ratings on a scale from low to high, rescaled to 0 to 1.

    Examples
    --------
    >>> rescale_to_unit_interval(np.array([1.0, 4.0, 7.0]), 1, 7)
    array([0. , 0.5, 1. ])
    """
    return (np.asarray(ratings, dtype=float) - low) / (high - low)
