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
from tools.testbed.losses import MaskTargets


def named_groups() -> Tensor:
    """Which of GROUPS each of NAMES may stand for: ones and zeros, names x groups."""
    shapes = torch.as_tensor(membership("shape").T)
    each, all_of_them = torch.eye(len(GROUPS)), torch.ones(1, len(GROUPS))
    table = torch.cat([shapes, each, all_of_them])
    assert len(table) == len(NAMES) == len(SHAPE_NOUNS) + len(PHRASES) + 1
    return table.float()


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
        cells = torch.nn.functional.one_hot(torch.as_tensor(world.codes[at]), len(COLOURS))
        self.icons = cells.flatten(1).to(device, torch.float32)
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
        drawn = torch.nn.functional.one_hot(scenes.code, len(COLOURS)) * scenes.drawn[..., None]
        agree = drawn.flatten(1).float() @ self.icons.T
        matches = agree > scenes.drawn.sum(dim=1, keepdim=True) - 0.5
        seen = ((1 - w) * fits + w * words) * figure * self.prior * matches

        def shares(weight: Tensor) -> Tensor:
            return torch.where(masked, weight / weight.sum(dim=1, keepdim=True), 0.0)

        return MaskTargets(shares(seen), shares(unseen), self.numbers)
