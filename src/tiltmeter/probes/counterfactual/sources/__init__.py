"""Sources of counterfactual images, which show the other group; one file per source.

A source takes a model, data and a `Swap`, and yields `ImagePairBlock`s: images with their
counterfactuals. They come in blocks, so that attacked images need not all fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.registry import Registry
from tiltmeter.types import Faces, Ints

#: Each entry is a class whose fields are its settings.
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
    """The bias concept: two groups of an attribute, a word for each, and a prompt for the word.

    `groups` and `words` are in the same order; positive bias is association with the first.
    """

    attribute: str
    groups: tuple[str, str]
    words: tuple[str, str]
    prompt: str = "a [MASK] is in the picture"

    def codes(self, data: Faces) -> tuple[int, int]:
        """Codes of the two groups in the data."""
        groups = data.attribute(self.attribute)
        for name in self.groups:
            if name not in groups.names:
                raise UnknownNameError(f"group of {self.attribute!r}", name, groups.names)
        return groups.names.index(self.groups[0]), groups.names.index(self.groups[1])

    def rows(self, data: Faces) -> Ints:
        """Rows of the data that show one of the two groups."""
        return np.flatnonzero(np.isin(data.attribute(self.attribute).codes, self.codes(data)))

    def has_first(self, data: Faces, rows: Ints) -> Ints:
        """Whether each of the rows shows the first group."""
        return np.asarray(data.attribute(self.attribute).codes[rows] == self.codes(data)[0])


@dataclass(frozen=True, eq=False)
class ImagePairBlock:
    """A block of images and their counterfactuals, both as model input."""

    rows: Ints  # of the images in the data
    factual: Any
    counterfactual: Any
    details: dict[str, Any] = field(
        default_factory=dict
    )  # one value per image, such as steps taken


class Source(Protocol):
    """Yields images with their counterfactuals."""

    @property
    def name(self) -> str: ...

    def blocks(self, model: Any, data: Faces, swap: Swap) -> Iterator[ImagePairBlock]: ...


def pixels_of(model: Any, images: Any) -> Any:
    """Images as a tensor of pixels if the model can make one, otherwise unchanged."""
    if hasattr(images, "detach") or not hasattr(model, "pixels"):
        return images
    return model.pixels(images)


def images_of(data: Faces) -> Any:
    """The images of the data; raises `InputError` if there are none."""
    if data.images is None:
        raise InputError(
            f"{data.name} has embeddings and no images: a counterfactual needs images to change"
        )
    return data.images
