"""The posterior of a masked target, for whole batches: labels without the noise of drawing.

The oracle's formula (see `oracle`), for captions that name a target and perhaps a group.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiltmeter.testbed.captions import NAMES
from tiltmeter.testbed.language import GROUPS, HUES, PHRASES, SHAPE_NOUNS, vocabulary
from tiltmeter.testbed.oracle import membership
from tiltmeter.testbed.render import COLOURS, Scenes
from tiltmeter.testbed.world import WORD_OF_ITS_OWN, World
from tiltmeter.types import Ints
from tools.testbed.losses import MaskTargets


def named_groups() -> Tensor:
    """Which of GROUPS each of NAMES may stand for: ones and zeros, names x groups."""
    shapes = torch.as_tensor(membership("shape").T)
    each, all_of_them = torch.eye(len(GROUPS)), torch.ones(1, len(GROUPS))
    table = torch.cat([shapes, each, all_of_them])
    assert len(table) == len(NAMES) == len(SHAPE_NOUNS) + len(PHRASES) + 1
    return table.float()


class Icons:
    """Which concepts an icon may stand for, by the cells that are drawn."""

    def __init__(self, codes: Ints, device: torch.device) -> None:
        self.cells = _by_colour(torch.as_tensor(codes, device=device)).flatten(1).float()

    def fit(self, scenes: Scenes) -> Tensor:
        """True where all drawn cells agree, scenes x concepts."""
        drawn = _by_colour(scenes.code) * scenes.drawn[..., None]
        agree = drawn.flatten(1).float() @ self.cells.T
        return agree > scenes.drawn.sum(dim=1, keepdim=True) - 0.5


def _by_colour(codes: Tensor) -> Tensor:
    return codes[..., None] == torch.arange(len(COLOURS), device=codes.device)


class TargetPosterior:
    """How probable each target is at a mask, with the image and without."""

    def __init__(self, world: World, device: torch.device) -> None:
        at = world.targets

        def move(x: object) -> Tensor:
            return torch.as_tensor(x).to(device, torch.float32)

        self.names = named_groups().to(device)
        self.prior = move(world.prior[at])
        self.figures = move(world.given_concept[at].T)  # groups x targets
        self.words = self.names @ move(world.word_given_concept[at].T)  # names x targets
        self.icons = Icons(world.codes[at], device)
        self.numbers = torch.tensor(
            [vocabulary()[world.concepts[target].name] for target in at], device=device
        )

    def __call__(self, scenes: Scenes, name: Tensor) -> MaskTargets:
        """For captions that name a group by NAMES[name]; -1: no target is masked."""
        masked, name = (name >= 0)[:, None], name.clamp(min=0)
        group = scenes.shape * len(HUES) + scenes.hue
        figure, words = self.figures[group], self.words[name]
        w = WORD_OF_ITS_OWN
        fits = self.names[name].gather(1, group[:, None])
        unseen = ((1 - w) * self.names[name] @ self.figures + w * words) * self.prior
        seen = ((1 - w) * fits + w * words) * figure * self.prior * self.icons.fit(scenes)

        def shares(weight: Tensor) -> Tensor:
            return torch.where(masked, weight / weight.sum(dim=1, keepdim=True), 0.0)

        return MaskTargets(shares(seen), shares(unseen), self.numbers)
