"""Where images come from that show the other group: one file a source, one way to ask for them.

A source takes a model, data, and the `Swap` to be made; it gives `ImagePairBlock`s: some images
as they are, with their counterfactuals. Blocks come one at a time, so that no set of attacked
images must fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.registry import Registry
from tiltmeter.types import Faces, Ints

#: Each entry is a class; its fields are the settings.
SOURCES = Registry(
    "source of counterfactuals",
    {
        "adversarial": "tiltmeter.probes.counterfactual.sources.adversarial:AdversarialAttack",
        "parallel": "tiltmeter.probes.counterfactual.sources.parallel:ParallelImages",
        "redrawn": "tiltmeter.probes.counterfactual.sources.parallel:RedrawnScenes",
        "folder": "tiltmeter.probes.counterfactual.sources.folder:EditedFolder",
    },
)


@dataclass(frozen=True)
class Swap:
    """The bias concept: two groups of an attribute, the word for each, and the text that asks.

    `groups` and `words` are in the same order; the first is the one that positive bias leans to.
    """

    attribute: str
    groups: tuple[str, str]
    words: tuple[str, str]
    prompt: str = "a [MASK] is in the picture"

    def codes(self, data: Faces) -> tuple[int, int]:
        """The numbers of the two groups in the data."""
        groups = data.attribute(self.attribute)
        for name in self.groups:
            if name not in groups.names:
                raise UnknownNameError(f"group of {self.attribute!r}", name, groups.names)
        return groups.names.index(self.groups[0]), groups.names.index(self.groups[1])

    def rows(self, data: Faces) -> Ints:
        """Rows of the data that show one of the two groups."""
        return np.flatnonzero(np.isin(data.attribute(self.attribute).codes, self.codes(data)))

    def has_first(self, data: Faces, rows: Ints) -> Ints:
        """Whether each of some rows shows the first group."""
        return np.asarray(data.attribute(self.attribute).codes[rows] == self.codes(data)[0])


@dataclass(frozen=True, eq=False)
class ImagePairBlock:
    """Some images and their counterfactuals, both as a model takes them."""

    rows: Ints  # of the data: which images these are
    factual: Any
    counterfactual: Any
    told: dict[str, Any] = field(default_factory=dict)  # one value an image, such as steps taken


class Source(Protocol):
    """Gives images with the other group."""

    @property
    def name(self) -> str: ...

    def blocks(self, model: Any, data: Faces, swap: Swap) -> Iterator[ImagePairBlock]: ...


def pixels_of(model: Any, images: Any) -> Any:
    """Images as a tensor of pixels, where the model can make one; else as they are."""
    if hasattr(images, "detach") or not hasattr(model, "pixels"):
        return images
    return model.pixels(images)


def images_of(data: Faces) -> Any:
    """The images of some data."""
    if data.images is None:
        raise InputError(
            f"{data.name} has vectors and no pictures: a counterfactual takes pictures to change"
        )
    return data.images
