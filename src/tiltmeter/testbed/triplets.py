"""Triplets of the planted world: captions of a group and what it is known for, and the contrary.

A target is a group of figures ("ball", "red block"). Its stereotypical caption names a concept that
comes with the group more often than chance, the other one a concept that comes with it less often,
the irrelevant one a concept in between. The picture shows a figure of that group, beside some cells
of the icon of the first concept or, where it goes against the stereotype, of the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tiltmeter.datasets.roles import Triplets
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.stimuli import fill
from tiltmeter.testbed.captions import NAMES
from tiltmeter.testbed.language import HUES, PHRASES, SHAPE_NOUNS, TARGET_TEMPLATES
from tiltmeter.testbed.oracle import Oracle, membership
from tiltmeter.testbed.render import CELLS, Scenes
from tiltmeter.testbed.world import WORD_OF_ITS_OWN, World
from tiltmeter.types import Floats, Groups, Ints

#: So many concepts on either end of a group's scale are its stereotypes and their contrary.
EXTREME = 12
CATEGORIES = ("shape", "shape*hue")
#: What a perfect model gives a caption that a picture rules out: no model is ever quite sure.
IMPOSSIBLE = -30.0
READINGS = ("caption", "matching")


@dataclass(frozen=True, eq=False)
class PlantedTriplets(Triplets):
    """Triplets with what a perfect matching head would give each caption, cases x 3."""

    best: Floats | None = None
    concepts: Ints | None = None  # cases x 3
    world: World | None = None


def triplets(
    world: World,
    images: int,
    rng: np.random.Generator,
    *,
    cells: int = 1,
    lean: World | None = None,
) -> PlantedTriplets:
    """Triplets about groups of the world, half of them with pictures against the stereotype.

    `cells` of each icon are drawn, 0 to 16. `lean` says what counts as a stereotype: the world
    itself, or for one without any tilt its tilted twin, so that both are asked the same.
    """
    if not 0 <= cells <= CELLS**2:
        raise InputError(f"an icon has 0 to {CELLS**2} cells; got {cells}")
    if lean is None:
        lean = world if world.strength > 0 else World.plant(1.0, seed=world.seed)
    # every other target is a shape; crossed groups share the rest
    target = np.where(
        np.arange(images) % 2 == 0,
        rng.integers(0, len(SHAPE_NOUNS), images),
        len(SHAPE_NOUNS) + rng.integers(0, len(PHRASES), images),
    )
    against = rng.permutation(np.arange(images) // 2 % 2).astype(bool)
    order = world.targets[np.argsort(_lean(lean)[world.targets], axis=0)]  # concepts x targets
    middle = len(order) // 2 - EXTREME // 2

    def drawn(start: int) -> Ints:
        return order[start + rng.integers(0, EXTREME, images), target]

    chosen = np.stack([drawn(len(order) - EXTREME), drawn(0), drawn(middle)], axis=1)
    template = rng.integers(0, len(TARGET_TEMPLATES), images)
    texts = [
        tuple(caption(world.concepts[c].name, NAMES[name], TARGET_TEMPLATES[t]) for c in three)
        for three, name, t in zip(chosen, target, template, strict=True)
    ]
    mask = _masks()[target]
    group = np.array([rng.choice(len(row), p=row / row.sum()) for row in mask])
    shown = np.where(against, chosen[:, 1], chosen[:, 0])
    scenes = world.scenes(images, rng, concept=shown, group=group, cells=cells)
    oracle = Oracle(world)
    best = np.stack(
        [oracle.matching_logit(one, scenes=scenes, text=mask) for one in chosen.T], axis=1
    )
    categories = Groups((target >= len(SHAPE_NOUNS)).astype(int), CATEGORIES, "category")
    return PlantedTriplets(
        ids=tuple(f"scene-{i:05d}" for i in range(images)),
        stereotypical=tuple(three[0] for three in texts),
        anti=tuple(three[1] for three in texts),
        irrelevant=tuple(three[2] for three in texts),
        targets=tuple(NAMES[one] for one in target),
        categories=categories,
        against=against,
        images=scenes,
        name="testbed",
        provenance={"strength": world.strength, "seed": world.seed, "cells": cells},
        best=np.maximum(best, IMPOSSIBLE),
        concepts=chosen,
        world=world,
    )


def caption(concept: str, name: str, template: str) -> str:
    """A caption that names a group and a concept.

    >>> caption("sleeping", "orange ball", "A photo of a {g} who is {}")
    'A photo of an orange ball who is sleeping'
    """
    return fill(template.replace("{}", concept).replace("{g}", "{}"), name)


def _masks() -> Floats:
    """Which crossed groups each of NAMES may stand for: names x groups."""
    return np.concatenate([membership("shape").T, np.eye(len(PHRASES)), np.ones((1, len(PHRASES)))])


def _lean(world: World) -> Floats:
    """ln P(target | concept) / P(target), concepts x targets, wherever it was planted."""
    beta = world.in_images + world.in_words
    e = np.exp(beta - beta.max(axis=1, keepdims=True))
    given = (e / e.sum(axis=1, keepdims=True)) @ _masks()[:-1].T
    return np.asarray(np.log(given / (world.prior @ given)))


@dataclass(frozen=True, eq=False)
class OracleMatcher:
    """A perfect model of a world as a matcher, without any training.

    It scores a caption by ln P(caption | picture) (`caption`: what a model does that has learned
    how probable a caption is), or by what is left of it when ln P(caption) is taken off
    (`matching`: what a perfect matching or contrastive head does). Scenes are seen as they are; any
    other picture, and none, says nothing.
    """

    world: World
    reading: str = "caption"

    def __post_init__(self) -> None:
        if self.reading not in READINGS:
            raise UnknownNameError("reading of the oracle", self.reading, READINGS)

    @property
    def name(self) -> str:
        return f"oracle of {self.reading}"

    def match(self, images: Any, texts: Sequence[str]) -> Floats:
        unknown = next((text for text in texts if text not in self._said), None)
        if unknown is not None:
            raise UnknownNameError("caption of the oracle", unknown, self._said)
        concept, name = np.array([self._said[text] for text in texts]).T
        mask, oracle = _masks()[name], Oracle(self.world)
        found = np.zeros(len(texts))
        if isinstance(images, Scenes):
            found = oracle.matching_logit(concept, scenes=images, text=mask)
        if self.reading == "caption":
            found = found + self._alone[concept, name]
        return np.maximum(found, IMPOSSIBLE)

    @cached_property
    def _said(self) -> dict[str, tuple[int, int]]:
        """Every caption of a target and a group: concept, name."""
        return {
            caption(self.world.concepts[at].name, name, template): (int(at), number)
            for at in self.world.targets
            for number, name in enumerate(NAMES)
            for template in TARGET_TEMPLATES
        }

    @cached_property
    def _alone(self) -> Floats:
        """ln P(caption), concepts x names."""
        w, masks = WORD_OF_ITS_OWN, _masks().T
        read_off, own = self.world.given_concept @ masks, self.world.word_given_concept @ masks
        return np.asarray(np.log(self.world.prior[:, None] * ((1 - w) * read_off + w * own)))


assert len(_masks()) == len(NAMES) == len(SHAPE_NOUNS) + len(PHRASES) + 1
assert len(PHRASES) == len(SHAPE_NOUNS) * len(HUES)
