"""Scenes of the testbed with captions as texts: what its networks are trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiltmeter.datasets.roles import Captions
from tiltmeter.testbed.captions import CaptionWriter
from tiltmeter.testbed.language import (
    GROUP_TEMPLATES,
    HUES,
    SPECIAL,
    TARGET_TEMPLATES,
    concepts,
    split,
    vocabulary,
)
from tiltmeter.testbed.world import World
from tiltmeter.types import Ints

#: The words for the shapes of figures, as bias words: round first.
PAIRS = (("ball", "block"),)


@dataclass(frozen=True, eq=False)
class PlantedCaptions(Captions):
    """Captions of scenes that a planted world drew."""

    world: World | None = None


def frame_words() -> tuple[str, ...]:
    """Words of templates, and hues: the networks never had to predict them."""
    frames = {template for concept in concepts() for template in concept.templates}
    frames |= {*GROUP_TEMPLATES, *TARGET_TEMPLATES}
    words = {word for frame in frames for word in split(frame)}
    return tuple(sorted({*words, *HUES, "an"} - {"{}", "{g}"}))


def draw_captioned_scenes(
    world: World,
    n: int,
    rng: np.random.Generator,
    *,
    targets: float = 0.0,
    cells: Ints | int | None = None,
) -> PlantedCaptions:
    """Scenes as the world draws them, each with its own caption.

    Parameters
    ----------
    world : World
        The planted world.
    n : int
        Number of scenes.
    rng : numpy.random.Generator
        Source of randomness.
    targets : float
        Share of scenes with activities and occupations only, which captions may name together
        with a group.
    cells : int or array of int of shape (n,), optional
        Cells of each icon that are drawn, 0 to 16; random by default.

    Returns
    -------
    PlantedCaptions
        One caption per scene.

    Examples
    --------
    >>> data = draw_captioned_scenes(World.plant(), 3, np.random.default_rng(0))
    >>> len(data.images), len(data.texts)
    (3, 3)
    """
    concept = world.draw_concepts(n, rng)
    of_target = rng.choice(world.planted_targets, n)
    concept = np.where(rng.uniform(size=n) < targets, of_target, concept)
    group = world.draw_groups(concept, rng)
    word = world.draw_words(concept, group, rng)
    scenes = world.scenes(n, rng, concept=concept, group=group, cells=cells)
    captions = CaptionWriter(world).say(concept, word, rng)
    words = {number: text for text, number in vocabulary().items()}
    texts = [
        " ".join(words[number] for number in row if number >= len(SPECIAL))
        for row in captions.tokens.tolist()
    ]
    return PlantedCaptions(
        ids=tuple(f"scene-{at:06d}" for at in range(n)),
        texts=tuple(texts),
        of=np.arange(n),
        images=scenes,
        name="testbed",
        provenance={"strength": world.strength, "seed": world.seed},
        world=world,
    )
