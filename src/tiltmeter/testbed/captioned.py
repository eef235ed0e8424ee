"""Scenes of the testbed with captions or classes, and how a perfect model of the world scores them.

Captions are drawn as in the training of the networks. Classes are occupations, by their icons.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tiltmeter.datasets.roles import Captions, Utility
from tiltmeter.stimuli import load
from tiltmeter.testbed.captions import KINDS, NAMES, CaptionWriter
from tiltmeter.testbed.language import (
    GROUP_TEMPLATES,
    GROUPS,
    HUES,
    SPECIAL,
    TARGET_TEMPLATES,
    concepts,
    split,
    vocabulary,
)
from tiltmeter.testbed.oracle import Oracle, figure_mask, membership
from tiltmeter.testbed.render import render
from tiltmeter.testbed.world import WORD_OF_ITS_OWN, World
from tiltmeter.types import Floats, Groups, Ints

#: The same as group words of `tiltmeter.corpus.audit_captions`.
GROUP_WORDS = {"shape": {"round": ["ball"], "square": ["block"]}}
#: The words for the shapes of figures, as bias words: round first.
PAIRS = (("ball", "block"),)


@dataclass(frozen=True, eq=False)
class PlantedCaptions(Captions):
    """Captions of scenes that a planted world drew, and how a perfect model scores them."""

    world: World | None = None
    concepts: Ints | None = None  # of each caption; -1 where it names a group alone
    names: Ints | None = None  # of the group, into NAMES; the last where it names none

    def perfect(self) -> Floats:
        """P(caption | image) / P(caption), captions x images."""
        assert self.world is not None
        assert self.concepts is not None
        assert self.names is not None
        world, w, no_group = self.world, WORD_OF_ITS_OWN, np.ones((1, len(GROUPS)))
        masks = np.concatenate([membership("shape").T, np.eye(len(GROUPS)), no_group])[self.names]
        figure = figure_mask(self.images)  # images x groups
        seen = Oracle(world).posterior(image=figure, scenes=self.images)  # images x concepts
        word = world.word_given_concept @ masks.T  # concepts x captions
        same = masks @ figure.T  # captions x images: the figure has the named group
        usual = (1 - w) * world.given_concept @ masks.T + w * word  # P(name | concept)
        rows, at = np.arange(len(masks)), self.concepts
        of_concept = seen[:, at].T * ((1 - w) * same + w * word[at, rows][:, None])
        of_group = (1 - w) * same + w * (seen @ word).T
        alone = (at < 0)[:, None]
        p = np.where(alone, of_group, of_concept)
        before = np.where(at < 0, world.prior @ usual, world.prior[at] * usual[at, rows])
        return np.asarray(p / before[:, None])


@dataclass(frozen=True, eq=False)
class PlantedUtility(Utility):
    """Scenes by occupation that a planted world drew, and how a perfect model scores them."""

    world: World | None = None

    def perfect(self) -> Floats:
        """P(occupation | image), images x occupations."""
        assert self.world is not None
        among = np.array([self.world.index(name) for name in self.classes.names])
        return Oracle(self.world).posterior(
            image=figure_mask(self.images), scenes=self.images, among=among
        )


def draw_classes(
    world: World, n: int, rng: np.random.Generator, *, cells: int = 3
) -> PlantedUtility:
    """Scenes of occupations, to classify by their icons.

    Parameters
    ----------
    world : World
        The planted world.
    n : int
        Number of scenes.
    rng : numpy.random.Generator
        Source of randomness.
    cells : int
        Cells of each icon that are drawn, 0 to 16.

    Returns
    -------
    PlantedUtility
        The occupation is the class.

    Examples
    --------
    >>> data = draw_classes(World.plant(), 40, np.random.default_rng(0))
    >>> len(data), data.perfect().shape == (40, len(data.classes.names))
    (40, True)
    """
    names = tuple(dict.fromkeys(word.text for word in load("occupations").words))
    codes = rng.integers(0, len(names), n)
    concept = np.array([world.index(name) for name in names])[codes]
    return PlantedUtility(
        ids=tuple(f"scene-{at:06d}" for at in range(n)),
        classes=Groups(codes, names, "occupation"),
        images=world.scenes(n, rng, concept=concept, cells=cells),
        name="testbed",
        provenance={"strength": world.strength, "seed": world.seed, "cells": cells},
        world=world,
    )


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
        concepts=np.where(captions.kind == KINDS.index("group"), -1, concept),
        names=np.where(captions.kind == KINDS.index("concept"), len(NAMES) - 1, captions.name),
    )


def write_corpus(data: PlantedCaptions, file: Path) -> None:
    """Write captions as Parquet, each with the path that `draw_images` gives its image.

    Parameters
    ----------
    data : PlantedCaptions
        The captions.
    file : Path
        The file to write.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file.parent.mkdir(parents=True, exist_ok=True)
    paths = [f"{file.stem}/{scene}.png" for scene in data.ids]
    pq.write_table(pa.table({"caption": list(data.texts), "image_path": paths}), file)


def draw_images(data: PlantedCaptions, paths: Iterable[str], folder: Path) -> None:
    """Draw some of the images of a corpus, named by their paths in it.

    Parameters
    ----------
    data : PlantedCaptions
        The captions.
    paths : iterable of str
        Paths of the corpus.
    folder : Path
        Directory of the corpus.
    """
    from PIL import Image

    row = {scene: at for at, scene in enumerate(data.ids)}
    wanted = {path: row[Path(path).stem] for path in paths}
    pixels = render(data.images[np.array(list(wanted.values()))])
    for path, image in zip(wanted, pixels, strict=True):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / path)
