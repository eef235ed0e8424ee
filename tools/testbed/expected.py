"""What a perfect model says of whole batches: labels without the noise of drawing.

The oracle's formulas (see `oracle`) as tensors: the posterior of a masked target, and how probable
it is that an image and a caption belong together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tiltmeter.testbed.captions import KINDS, NAMES
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


class Expected:
    """What a perfect model of a world says of masked targets and of pairs."""

    def __init__(self, world: World, device: torch.device) -> None:
        def move(x: object) -> Tensor:
            return torch.as_tensor(x).to(device, torch.float32)

        self.names = named_groups().to(device)
        self.prior = move(world.prior)
        self.figures = move(world.given_concept.T)  # groups x concepts
        self.words = self.names @ move(world.word_given_concept.T)  # names x concepts
        w = WORD_OF_ITS_OWN
        self.named = (1 - w) * self.names @ self.figures + w * self.words  # names x concepts
        self.icons = Icons(world.codes, device)
        self.targets = torch.as_tensor(world.targets, device=device)
        self.numbers = torch.tensor(
            [vocabulary()[world.concepts[target].name] for target in world.targets], device=device
        )

    def masked(self, scenes: Scenes, name: Tensor) -> MaskTargets:
        """Of captions that name a group by NAMES[name]; -1: no target is masked."""
        hidden, name = (name >= 0)[:, None], name.clamp(min=0)
        at = self.targets
        unseen = (self.named[name] * self.prior)[:, at]
        seen = (self._name_given_scene(scenes, name) * self._concepts(scenes))[:, at]

        def shares(weight: Tensor) -> Tensor:
            return torch.where(hidden, weight / weight.sum(dim=1, keepdim=True), 0.0)

        return MaskTargets(shares(seen), shares(unseen), self.numbers)

    def belongs(self, scenes: Scenes, kind: Tensor, concept: Tensor, name: Tensor) -> Tensor:
        """How probable it is that scene and caption belong together, if half of the pairs do.

        P(caption | scene) / P(caption) to one, for captions that are of one of KINDS and name a
        concept, a group by NAMES[name], or both.
        """
        row = torch.arange(len(concept), device=concept.device)
        about = self._concepts(scenes)  # P(concept | scene), next to P(concept)
        named = self._name_given_scene(scenes, name)  # P(name | concept, scene)
        of_group = kind == KINDS.index("group")
        ratio_of_group = (about * named).sum(dim=1) / (self.named @ self.prior)[name]
        ratio = about[row, concept] / self.prior[concept]
        of_name = named[row, concept] / self.named[name, concept]
        ratio = torch.where(kind == KINDS.index("both"), ratio * of_name, ratio)
        ratio = torch.where(of_group, ratio_of_group, ratio)
        return ratio / (1 + ratio)

    def _concepts(self, scenes: Scenes) -> Tensor:
        """P(concept | scene), scenes x concepts."""
        weight = self.prior * self.figures[_group(scenes)] * self.icons.fit(scenes)
        return weight / weight.sum(dim=1, keepdim=True)

    def _name_given_scene(self, scenes: Scenes, name: Tensor) -> Tensor:
        """P(a caption names NAMES[name] | concept, scene), up to how often that is named."""
        w = WORD_OF_ITS_OWN
        fits = self.names[name].gather(1, _group(scenes)[:, None])
        return (1 - w) * fits + w * self.words[name]


def _group(scenes: Scenes) -> Tensor:
    return torch.as_tensor(scenes.shape * len(HUES) + scenes.hue)
