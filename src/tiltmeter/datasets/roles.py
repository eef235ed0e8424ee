"""What data are for, beside faces: one small shape a role.

Every role has `name` and `provenance`, whose `found` says what the loader found (see looking.py).
Where there are pictures, `images` is what a model's encode_images takes; else it is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tiltmeter.types import Faces, Floats, Groups, Ints


@dataclass(frozen=True, eq=False)
class Scenes(Faces):
    """People in scenes: what each picture shows beside the person, and of what kind that is.

    In `parallel` images the same scene is there for every group; in others a scene is the concept
    (an activity, an occupation) that the person is seen in.
    """

    scenes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    parallel: bool = True

    def only(self, rows: Sequence[int]) -> Scenes:
        kept = {
            name: tuple(getattr(self, name)[row] for row in rows) for name in ("scenes", "kinds")
        }
        return replace(self, **vars(super().only(rows)) | kept)

    def counterparts(self, attribute: str) -> Iterator[tuple[int, int]]:
        """Rows of the same scene that differ in `attribute` and in no other: true counterfactuals.

        Each pair comes once; its first row is of the group that is named first.
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
class Valence:
    """Pictures, each with how pleasant people found it, from 0 to 1."""

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
    """Words, each with how pleasant people found it, from 0 to 1."""

    words: tuple[str, ...]
    valence: Floats
    name: str = "lexicon"
    provenance: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.words)


@dataclass(frozen=True, eq=False)
class Triplets:
    """Three captions each: one stereotypical, one against the stereotype, one beside the point.

    `against` says whether the picture shows what goes against the stereotype; None without
    pictures.
    """

    ids: tuple[str, ...]
    stereotypical: tuple[str, ...]
    anti: tuple[str, ...]
    irrelevant: tuple[str, ...]
    targets: tuple[str, ...]  # whom the captions are about: "Ethiopian", "nurse"
    categories: Groups  # race, profession, gender, religion
    contexts: tuple[str, ...] = ()
    against: Ints | None = None
    images: Any = None
    name: str = "triplets"
    provenance: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class Captions:
    """Texts that describe pictures: `texts[i]` is of the picture `ids[of[i]]`."""

    ids: tuple[str, ...]  # pictures, each once
    texts: tuple[str, ...]
    of: Ints
    images: Any = None
    name: str = "captions"
    provenance: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, eq=False)
class Utility:
    """Pictures of labelled classes, to see what a model is still good for."""

    ids: tuple[str, ...]
    classes: Groups
    images: Any
    name: str = "utility"
    provenance: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)


#: What a loader gives for each role. Scenes are faces too.
ROLES: dict[str, type] = {
    "faces": Faces,
    "pairs": Scenes,
    "valence": Valence,
    "lexicon": Lexicon,
    "triplets": Triplets,
    "captions": Captions,
    "utility": Utility,
    "stimuli": Utility,  # a class is a set of stimuli
}


def to_unit(ratings: Floats, low: float, high: float) -> Floats:
    """Ratings from a scale of low to high, moved to one of 0 to 1.

    >>> to_unit(np.array([1.0, 4.0, 7.0]), 1, 7)
    array([0. , 0.5, 1. ])
    """
    return (np.asarray(ratings, dtype=float) - low) / (high - low)
