"""Triplets of the planted world: stereotypical, anti-stereotypical and irrelevant captions.

A target is a group of figures ("ball", "red block"). Its stereotypical caption names a concept that
comes with the group more often than by chance, the anti-stereotypical one a concept that comes with
it less often, the irrelevant one a concept in between. The image shows a figure of that group, with
cells of the icon of the first concept or, where it contradicts the stereotype, of the second.
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

#: Number of concepts at either end of a group's scale that count as stereotypes and opposites.
EXTREME = 12
CATEGORIES = ("shape", "shape*hue")
#: Logit of a perfect model for a caption that the image rules out: no model is ever certain.
IMPOSSIBLE = -30.0
READINGS = ("caption", "matching")


@dataclass(frozen=True, eq=False)
class PlantedTriplets(Triplets):
    """Triplets with the logits of a perfect matching head.

    Parameters
    ----------
    best : array of shape (cases, 3)
        What a perfect matching head would give each caption.
    concepts : array of int of shape (cases, 3)
        The concept of each caption.
    world : World
        The planted world.
    """

    best: Floats | None = None
    concepts: Ints | None = None  # cases x 3
    world: World | None = None


def triplets(
    world: World,
    images: int,
    rng: np.random.Generator,
    *,
    cells: int = 1,
    stereotypes: World | None = None,
) -> PlantedTriplets:
    """Triplets about groups of the world, half of them with images that contradict the stereotype.

    Parameters
    ----------
    world : World
        The planted world.
    images : int
        Number of triplets.
    rng : numpy.random.Generator
        Source of randomness.
    cells : int
        Cells of each icon that are drawn, 0 to 16.
    stereotypes : World, optional
        The world whose associations count as stereotypes: by default the same, or for one without
        bias its biased twin, so that both get the same questions.

    Returns
    -------
    PlantedTriplets
        One image and three captions each.

    Raises
    ------
    InputError
        `cells` is out of range.

    Examples
    --------
    >>> data = triplets(World.plant(), 8, np.random.default_rng(0))
    >>> len(data), data.best.shape
    (8, (8, 3))
    """
    if not 0 <= cells <= CELLS**2:
        raise InputError(f"cells must be from 0 to {CELLS**2}; got {cells}")
    if stereotypes is None:
        stereotypes = world if world.strength > 0 else World.plant(1.0, seed=world.seed)
    # every other target is a shape; groups of shape and hue share the rest
    target = np.where(
        np.arange(images) % 2 == 0,
        rng.integers(0, len(SHAPE_NOUNS), images),
        len(SHAPE_NOUNS) + rng.integers(0, len(PHRASES), images),
    )
    against = rng.permutation(np.arange(images) // 2 % 2).astype(bool)
    order = world.planted_targets[
        np.argsort(_associations(stereotypes)[world.planted_targets], axis=0)
    ]  # concepts x targets
    middle = len(order) // 2 - EXTREME // 2

    def draw_near(start: int) -> Ints:
        return order[start + rng.integers(0, EXTREME, images), target]

    chosen = np.stack([draw_near(len(order) - EXTREME), draw_near(0), draw_near(middle)], axis=1)
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
        [oracle.matching_logit(column, scenes=scenes, text=mask) for column in chosen.T], axis=1
    )
    categories = Groups((target >= len(SHAPE_NOUNS)).astype(int), CATEGORIES, "category")
    return PlantedTriplets(
        ids=tuple(f"scene-{i:05d}" for i in range(images)),
        stereotypical=tuple(three[0] for three in texts),
        anti=tuple(three[1] for three in texts),
        irrelevant=tuple(three[2] for three in texts),
        targets=tuple(NAMES[name] for name in target),
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
    """Which groups each of NAMES may stand for: names x groups."""
    return np.concatenate([membership("shape").T, np.eye(len(PHRASES)), np.ones((1, len(PHRASES)))])


def _associations(world: World) -> Floats:
    """ln P(target | concept) / P(target), concepts x targets, wherever it was planted."""
    beta = world.in_images + world.in_words
    e = np.exp(beta - beta.max(axis=1, keepdims=True))
    p = (e / e.sum(axis=1, keepdims=True)) @ _masks()[:-1].T  # concepts x targets
    return np.asarray(np.log(p / (world.prior @ p)))


@dataclass(frozen=True, eq=False)
class OracleMatcher:
    """A perfect model of a world as a matcher, without any training.

    Scenes are seen as they are; any other image, or none, carries no information.

    Parameters
    ----------
    world : World
        The planted world.
    reading : {"caption", "matching"}
        Score a caption by ln P(caption | image), as a model that has learned how probable captions
        are, or by ln P(caption | image) / P(caption), as a perfect matching or contrastive head.

    Raises
    ------
    UnknownNameError
        `reading` is neither.
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
        unknown = next((text for text in texts if text not in self._captions), None)
        if unknown is not None:
            raise UnknownNameError("caption of the oracle", unknown, self._captions)
        concept, name = np.array([self._captions[text] for text in texts]).T
        mask, oracle = _masks()[name], Oracle(self.world)
        logits = np.zeros(len(texts))
        if isinstance(images, Scenes):
            logits = oracle.matching_logit(concept, scenes=images, text=mask)
        if self.reading == "caption":
            logits = logits + self._alone[concept, name]
        return np.maximum(logits, IMPOSSIBLE)

    @cached_property
    def _captions(self) -> dict[str, tuple[int, int]]:
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
        of_figure, own = self.world.given_concept @ masks, self.world.word_given_concept @ masks
        return np.asarray(np.log(self.world.prior[:, None] * ((1 - w) * of_figure + w * own)))


assert len(_masks()) == len(NAMES) == len(SHAPE_NOUNS) + len(PHRASES) + 1
assert len(PHRASES) == len(SHAPE_NOUNS) * len(HUES)
