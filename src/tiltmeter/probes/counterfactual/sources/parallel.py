"""True counterfactuals: the same scene with another group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiltmeter.datasets.roles import Scenes
from tiltmeter.errors import InputError
from tiltmeter.probes.counterfactual.sources import ImagePairBlock, Swap, images_of, pixels_of
from tiltmeter.testbed.render import Scenes as Drawn
from tiltmeter.types import Faces, Ints


@dataclass(frozen=True)
class ParallelImages:
    """Pairs of images of the same scene that differ only in the group."""

    batch: int = 32
    name: str = "parallel"

    def blocks(self, model: Any, data: Faces, swap: Swap) -> Iterator[ImagePairBlock]:
        """Every image that has a counterpart, with it."""
        rows, counterparts = self.pairs(data, swap)
        images = images_of(data)
        for start in range(0, len(rows), self.batch):
            part = slice(start, start + self.batch)
            pixels = (pixels_of(model, images[selected[part]]) for selected in (rows, counterparts))
            yield ImagePairBlock(rows[part], *pixels)

    def pairs(self, data: Faces, swap: Swap) -> tuple[Ints, Ints]:
        """Rows, and for each the row of its counterfactual; each pair is listed in both orders."""
        if not isinstance(data, Scenes):
            raise InputError(
                f"{data.name} does not say which images show the same scene: parallel "
                "counterfactuals need data such as pairs:DIR. The source adversarial takes any "
                "images with groups"
            )
        if not data.parallel:
            raise InputError(
                f"images of {data.name} share a concept, not a scene, so they are not "
                "counterfactuals of each other. Use the source adversarial"
            )
        groups, codes = data.attribute(swap.attribute).codes, set(swap.codes(data))
        pairs = [
            pair for pair in data.counterparts(swap.attribute) if {*groups[list(pair)]} == codes
        ]
        if not pairs:
            raise InputError(
                f"no scene of {data.name} has an image of {swap.groups[0]} and one of "
                f"{swap.groups[1]} that differ in nothing else. The source adversarial with "
                "truth=no needs no such images"
            )
        both = np.array([*pairs, *(pair[::-1] for pair in pairs)])
        rows, counterparts = both[np.lexsort((both[:, 1], both[:, 0]))].T
        return rows, counterparts


@dataclass(frozen=True)
class RedrawnScenes:
    """Scenes of the testbed, rendered again with the other group."""

    batch: int = 256
    name: str = "redrawn"

    def blocks(self, model: Any, data: Faces, swap: Swap) -> Iterator[ImagePairBlock]:
        """Every scene of the two groups, with its redrawn version."""
        images = images_of(data)
        if not isinstance(images, Drawn) or swap.attribute not in ("shape", "hue"):
            raise InputError(
                f"only scenes of the testbed can be redrawn, by shape or hue; got {data.name} by "
                f"{swap.attribute}. Use the source adversarial, parallel or folder"
            )
        chosen, (first, second) = swap.rows(data), swap.codes(data)
        for start in range(0, len(chosen), self.batch):
            rows = chosen[start : start + self.batch]
            scenes = images[rows]
            current = getattr(scenes, swap.attribute)
            other = scenes.redrawn(**{swap.attribute: np.where(current == first, second, first)})
            yield ImagePairBlock(rows, pixels_of(model, scenes), pixels_of(model, other))
