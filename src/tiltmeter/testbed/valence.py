"""Valence in the planted world: a lexicon, images, and a perfect model of both.

Every concept has its own valence, from 0 to 1, drawn from its name. Concepts that are associated
with round figures are the more pleasant ones; neutral words are near the middle. Valences are the
same in a world of any strength: at strength 0 the same words are pleasant, and nothing connects
them with round figures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from scipy.special import ndtr

from tiltmeter.datasets.roles import Lexicon, ValenceImages
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.stimuli import fill, load
from tiltmeter.testbed.captions import NAMES
from tiltmeter.testbed.captions import concept_captions as concept_captions  # for probes
from tiltmeter.testbed.language import (
    GROUPS,
    HUES,
    SHAPE_NOUNS,
    SHAPES,
    TARGET_TEMPLATES,
)
from tiltmeter.testbed.oracle import Oracle, figure_mask, membership
from tiltmeter.testbed.render import GRAINS, Scenes
from tiltmeter.testbed.world import WORD_OF_ITS_OWN, World
from tiltmeter.types import Floats, Ints

#: How much of a concept's valence follows its association with round figures.
ASSOCIATION_SHARE = 0.8
#: Chance that a perfect model overlooks an icon: without it wrong words would score -inf.
OVERLOOKED = 0.01
#: Cells that are drawn of a valence image's icon, of 16: the figure next to it still counts.
CELLS_DRAWN = 2
_NAMED = NAMES[:-1]  # the last names no group
CONTENTS = 16  # directions in which images differ at random


@dataclass(frozen=True, eq=False)
class PlantedLexicon(Lexicon):
    """Words with the valence that a planted world gives them."""

    world: World | None = None


@dataclass(frozen=True, eq=False)
class PlantedValence(ValenceImages):
    """Images with the valence that a planted world gives them."""

    world: World | None = None


def valences(world: World) -> Floats:
    """How pleasant each concept is, for a world of any strength.

    Parameters
    ----------
    world : World
        The planted world.

    Returns
    -------
    array of shape (concepts,)
        From 0 to 1.

    Examples
    --------
    >>> bool((valences(World.plant(0.0)) == valences(World.plant(1.0))).all())
    True
    """
    beta = World.plant(1.0, seed=world.seed).in_images
    association = beta @ (membership("shape") @ [1.0, -1.0]) / len(HUES)
    known = [not concept.placebo for concept in world.concepts]
    association = association / association[known].std()
    return np.asarray(
        ndtr(ASSOCIATION_SHARE * association + np.sqrt(1 - ASSOCIATION_SHARE**2) * _own(world))
    )


def _own(world: World) -> Floats:
    """A standard normal number of each concept, from its name alone."""
    numbers = []
    for concept in world.concepts:
        digest = hashlib.sha256(f"{world.seed}/valence/{concept.name}".encode()).digest()
        numbers.append(np.random.default_rng(int.from_bytes(digest[:8], "little")).normal())
    return np.array(numbers)


def _with_valence(world: World) -> Ints:
    """Concepts whose valence matters: all but neutral activities, which would outnumber words."""
    neutral = set(world.targets.tolist()) - set(world.planted_targets.tolist())
    return np.array([at for at in range(len(world.concepts)) if at not in neutral])


def lexicon(world: World) -> PlantedLexicon:
    """Concepts with their valence, without neutral activities.

    Parameters
    ----------
    world : World
        The planted world.

    Returns
    -------
    PlantedLexicon
        One word per concept.
    """
    rows = _with_valence(world)
    return PlantedLexicon(
        tuple(world.concepts[at].name for at in rows),
        valences(world)[rows],
        name="testbed",
        provenance={"seed": world.seed},
        world=world,
    )


def valence_images(world: World, images: int, rng: np.random.Generator) -> PlantedValence:
    """Images of figures with a faint icon, each of another concept.

    Parameters
    ----------
    world : World
        The planted world.
    images : int
        Number of images, from 2 to the number of concepts.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    PlantedValence
        Images with the valence of their concept.

    Raises
    ------
    InputError
        There are fewer concepts than images.
    """
    known = _with_valence(world)
    if not 2 <= images <= len(known):
        raise InputError(
            f"testbed:valence has one image for each of {len(known)} concepts: images must be from "
            f"2 to {len(known)}; got {images}"
        )
    concept = np.sort(rng.choice(known, images, replace=False))
    return PlantedValence(
        ids=tuple(world.concepts[at].name for at in concept),
        valence=valences(world)[concept],
        images=world.scenes(images, rng, concept=concept, cells=CELLS_DRAWN),
        categories=tuple(world.concepts[at].category for at in concept),
        name="testbed",
        provenance={"strength": world.strength, "seed": world.seed},
        world=world,
    )


def retrieved_valence(world: World, k: int) -> Floats:
    """Mean valence of the k words that a perfect model retrieves for figures of each shape.

    Parameters
    ----------
    world : World
        The planted world.
    k : int
        Number of words of the lexicon.

    Returns
    -------
    array of shape (2,)
        For round and for square figures, over all hues.

    Examples
    --------
    >>> round_, square = retrieved_valence(World.plant(), 100)
    >>> bool(round_ > square)
    True
    """
    rows = _with_valence(world)
    order = np.argsort(-Oracle(world).pmi()[rows], axis=0, kind="stable")  # words x groups
    of_groups = valences(world)[rows][order[:k]].mean(axis=0)
    return np.asarray(of_groups @ membership("shape") / len(HUES))


def figure_captions() -> tuple[tuple[tuple[str, str], ...], list[list[str]], dict[str, list[str]]]:
    """Captions of figures at activities.

    As a phrase of the study joins a word for a race and one for a gender, these join a name of a
    group with an activity, all with all. A name without a hue (`ball`) has an empty one.

    Returns
    -------
    phrases : tuple of pairs of str
        Name and activity.
    captions : list of list of str
        By template.
    groups : dict of str to list of str
        Shape and hue of each phrase.
    """
    pairs = [(name, activity) for name in _NAMED for activity in _activities()]
    texts = [
        [fill(template.replace("{}", activity).replace("{g}", "{}"), name)
         for name, activity in pairs]
        for template in TARGET_TEMPLATES
    ]  # fmt: skip
    shape = dict(zip(SHAPE_NOUNS, SHAPES, strict=True))
    groups = {
        "shape": [shape[name.split()[-1]] for name, _ in pairs],
        "hue": [name.split()[0] if " " in name else "" for name, _ in pairs],
    }
    return tuple(pairs), texts, groups


@cache
def _activities() -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.text for word in load("activities").words))


class OptimalModel:
    """A model at the optimum of its contrastive loss: cosines affine in PMI.

    A text is an axis of its own; an image's coordinates are ln P(text | image) / P(text), scaled
    down to fit into a unit vector.

    Parameters
    ----------
    world : World
        The planted world.
    noise : float
        Size of random differences between images, in a few directions that many texts share, as
        photographs differ in what is irrelevant.
    seed : int
        Seed of these directions.
    """

    def __init__(self, world: World, *, noise: float = 0.0, seed: int = 0) -> None:
        self.world, self.oracle, self.noise = world, Oracle(world), noise
        self.name = f"perfect, strength {world.strength:g}"
        self.provenance = {"strength": world.strength, "noise": noise, "seed": seed}
        self.doing = np.array([world.index(name) for name in _activities()])
        self.texts = len(world.concepts) + len(_NAMED) * len(self.doing)
        rng = np.random.default_rng(seed)
        self._contents = rng.normal(size=(GRAINS, CONTENTS))
        self._of_texts = rng.normal(size=(CONTENTS, self.texts)) / np.sqrt(CONTENTS)

    @cached_property
    def _axis(self) -> dict[str, int]:
        """The axis of each text: concepts, then figures at activities."""
        axis = {text: at for at, text in enumerate(concept_captions().values())}
        for texts in figure_captions()[1]:
            axis |= {text: at for at, text in enumerate(texts, start=len(self.world.concepts))}
        return axis

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        for text in texts:
            if text not in self._axis:
                raise UnknownNameError("text of the testbed", text, self._axis)
        axes = np.zeros((len(texts), self.texts + 1))
        axes[np.arange(len(texts)), [self._axis[text] for text in texts]] = 1.0
        return axes

    def encode_images(self, images: Scenes) -> Floats:
        scores = self._pmi(images) + self.noise * self._contents[images.grain] @ self._of_texts
        # one scale for any number of images: so small that each fits into a unit vector
        scale = 1 / (20 * np.sqrt(scores.shape[1]) * (1 + self.noise))
        rest = 1 - ((scale * scores) ** 2).sum(axis=1, keepdims=True)
        return np.concatenate([scale * scores, np.sqrt(rest)], axis=1)

    def _pmi(self, scenes: Scenes) -> Floats:
        """ln P(text | image) / P(text): images x texts."""
        figure = figure_mask(scenes)
        unseen = self.oracle.posterior(image=figure)
        seen = self.oracle.posterior(image=figure, scenes=scenes)
        concept = (1 - OVERLOOKED) * seen + OVERLOOKED * unseen
        world, w = self.world, WORD_OF_ITS_OWN
        named = np.concatenate([membership("shape"), np.eye(len(GROUPS))], axis=1)  # as _NAMED
        own = w * (world.word_given_concept[self.doing] @ named).T  # names x activities
        usual = (1 - w) * (world.given_concept[self.doing] @ named).T + own
        p_name = (1 - w) * (figure @ named)[:, :, None] + own  # images x names x activities
        both = np.log(p_name / usual) + np.log(concept / world.prior)[:, None, self.doing]
        of_concepts = np.log(concept / world.prior)
        return np.concatenate([of_concepts, both.reshape(len(scenes), -1)], axis=1)
