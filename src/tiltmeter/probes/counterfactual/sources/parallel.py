"""True counterfactuals: the same scene with somebody else in it."""

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
    """Photographs of the same scene that differ in the group alone, each against the other."""

    batch: int = 32
    name: str = "parallel"

    def blocks(self, model: Any, data: Faces, swap: Swap) -> Iterator[ImagePairBlock]:
        """Every image that has a counterpart, and that one."""
        rows, others = self.pairs(data, swap)
        images = images_of(data)
        for start in range(0, len(rows), self.batch):
            here = slice(start, start + self.batch)
            shown = (pixels_of(model, images[some[here]]) for some in (rows, others))
            yield ImagePairBlock(rows[here], *shown)

    def pairs(self, data: Faces, swap: Swap) -> tuple[Ints, Ints]:
        """Rows, and for each the row that is its counterfactual; each pair stands there twice."""
        if not isinstance(data, Scenes):
            raise InputError(
                f"{data.name} does not tell which pictures show the same scene: parallel "
                "counterfactuals take data such as pairs:DIR. The source adversarial takes any "
                "pictures with groups"
            )
        if not data.parallel:
            raise InputError(
                f"images of {data.name} share a concept, not a scene, and are no counterfactuals "
                "of each other. Use the source adversarial"
            )
        groups, codes = data.attribute(swap.attribute).codes, set(swap.codes(data))
        pairs = [
            pair for pair in data.counterparts(swap.attribute) if {*groups[list(pair)]} == codes
        ]
        if not pairs:
            raise InputError(
                f"no scene of {data.name} has a picture of {swap.groups[0]} and one of "
                f"{swap.groups[1]} that are alike in all else: nothing is parallel there. The "
                "source adversarial with truth=no needs no such pictures"
            )
        both = np.array([*pairs, *(pair[::-1] for pair in pairs)])
        rows, others = both[np.lexsort((both[:, 1], both[:, 0]))].T
        return rows, others


@dataclass(frozen=True)
class RedrawnScenes:
    """Figures of the testbed, the same scenes drawn again with the other figure."""

    batch: int = 256
    name: str = "redrawn"

    def blocks(self, model: Any, data: Faces, swap: Swap) -> Iterator[ImagePairBlock]:
        """Every figure of the two groups, and the one that is drawn in its place."""
        images = images_of(data)
        if not isinstance(images, Drawn) or swap.attribute not in ("shape", "hue"):
            raise InputError(
                f"only scenes of the testbed can be drawn again, by shape or hue; {data.name} by "
                f"{swap.attribute} cannot. Use adversarial, parallel or folder"
            )
        chosen, (first, second) = swap.rows(data), swap.codes(data)
        for start in range(0, len(chosen), self.batch):
            rows = chosen[start : start + self.batch]
            scenes = images[rows]
            now = getattr(scenes, swap.attribute)
            other = scenes.redrawn(**{swap.attribute: np.where(now == first, second, first)})
            yield ImagePairBlock(rows, pixels_of(model, scenes), pixels_of(model, other))
