"""What a perfect model of the world would know: closed forms, no training.

A caption names a concept c and perhaps a group; an image shows a figure of group v and perhaps an
icon. The joint probability of a concept, a figure, a named group l and the drawn part of an icon is

    P(c) P(v | c) [(1 - w) 1(l = v) + w P_words(l | c)] 1(the drawn cells are those of c)

where w is the share of captions whose group word is not the figure's. Everything here is a sum or a
ratio of these. Groups are given as masks over the 14 groups of shape and hue, so that a caption may
name a shape alone, or nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.testbed.language import GROUPS, HUES, SHAPES
from tiltmeter.testbed.render import Scenes
from tiltmeter.testbed.world import WORD_OF_ITS_OWN, World
from tiltmeter.types import Floats, Groups, Ints

ATTRIBUTES = {"shape": SHAPES, "hue": HUES, "shape*hue": GROUPS}


def membership(attribute: str) -> Floats:
    """Which of the 14 groups of shape and hue belong to each group of an attribute.

    Parameters
    ----------
    attribute : {"shape", "hue", "shape*hue"}
        The attribute.

    Returns
    -------
    array of shape (14, groups)
        Ones and zeros.

    Examples
    --------
    >>> membership("shape").sum(axis=0)
    array([7., 7.])
    """
    shape, hue = np.divmod(np.arange(len(GROUPS)), len(HUES))
    codes = {"shape": shape, "hue": hue, "shape*hue": np.arange(len(GROUPS))}[attribute]
    return np.asarray(np.eye(len(ATTRIBUTES[attribute]))[codes])


@dataclass(frozen=True, eq=False)
class Oracle:
    """The closed forms of one world.

    Parameters
    ----------
    world : World
        The planted world.

    Examples
    --------
    >>> from tiltmeter.testbed.world import World
    >>> oracle = Oracle(World.plant(0.0))
    >>> bool(abs(oracle.pmi("shape")).max() < 1e-12)
    True
    """

    world: World

    def pmi(self, attribute: str = "shape*hue") -> Floats:
        """ln P(group | concept) / P(group) of figures, concepts x groups.

        In a model at the optimum of its contrastive loss, logit_scale x cosine of a caption and an
        icon-free image is this up to a constant.
        """
        p = self.world.given_concept @ membership(attribute)  # concepts x groups
        return np.asarray(np.log(p / (self.world.prior @ p)))

    def c_asc_truth(self, attribute: str, shares: Floats) -> Floats:
        """The order that C-ASC should have: PMI minus the mean PMI of the other groups.

        Parameters
        ----------
        attribute : str
            The attribute.
        shares : array of shape (groups,)
            Shares of the groups among the images, the weights of the mean.

        Returns
        -------
        array of shape (concepts, groups)
            The truth, up to its scale.
        """
        pmi = self.pmi(attribute)
        total = pmi @ shares
        return np.asarray(pmi - (total[:, None] - pmi * shares) / (1 - shares))

    def posterior(
        self,
        *,
        image: Floats | None = None,
        text: Floats | None = None,
        scenes: Scenes | None = None,
        among: Ints | None = None,
    ) -> Floats:
        """P(concept | what is seen): also that of a masked word.

        Parameters
        ----------
        image, text : array of shape (n, 14), optional
            Masks: the groups that the figure, and the named group, may have.
        scenes : Scenes, optional
            Scenes with icons.
        among : array of int, optional
            Concepts to choose from; all by default.

        Returns
        -------
        array of shape (n, concepts)
            NaN where what is seen cannot occur.
        """
        weight = self._groups_given_concept(image, text) * self.world.prior
        if scenes is not None:
            weight = weight * self._matches(scenes)
        if among is not None:
            weight = weight[:, among]
        total = weight.sum(axis=1, keepdims=True)
        unknown = np.full_like(weight, np.nan)
        return np.asarray(np.divide(weight, total, out=unknown, where=total > 0))

    def matching_logit(
        self,
        concept: Ints,
        *,
        scenes: Scenes,
        text: Floats | None = None,
    ) -> Floats:
        """ln P(caption | image) / P(caption): the logit of a perfect matching head.

        Parameters
        ----------
        concept : array of int of shape (n,)
            The concept that each caption names.
        scenes : Scenes
            The images.
        text : array of shape (n, 14), optional
            Mask of the group that each caption names.

        Returns
        -------
        array of shape (n,)
            -inf where the two cannot occur together.
        """
        image = figure_mask(scenes)
        seen = self._matches(scenes)
        both = self._groups_given_concept(image, text) * seen
        alone = self._groups_given_concept(None, text)
        p_image = (self._groups_given_concept(image, None) * seen) @ self.world.prior
        rows = np.arange(len(scenes))
        top = both[rows, concept]
        bottom = np.broadcast_to(alone, both.shape)[rows, concept] * p_image
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(top / bottom))

    def caption_choice(
        self, concepts: Ints, *, scenes: Scenes, text: Floats | None = None
    ) -> Floats:
        """Probabilities of choosing each of several captions (n x captions): softmax of logits."""
        logits = np.stack(
            [self.matching_logit(concept, scenes=scenes, text=text) for concept in concepts.T],
            axis=1,
        )
        e = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(e / e.sum(axis=1, keepdims=True))

    def _groups_given_concept(self, image: Floats | None, text: Floats | None) -> Floats:
        """P(figure in `image`, named group in `text` | concept), n x concepts (1 x, if neither)."""
        v, words = self.world.given_concept.T, self.world.word_given_concept.T
        if image is None and text is None:
            return np.ones((1, len(self.world.concepts)))
        if text is None:
            return np.asarray(image @ v)
        if image is None:
            image = np.ones_like(text)
        w = WORD_OF_ITS_OWN
        return np.asarray((1 - w) * (image * text) @ v + w * (image @ v) * (text @ words))

    def _matches(self, scenes: Scenes) -> Floats:
        """Whether the drawn part of an icon is a concept's, n x concepts."""
        wrong = np.zeros((len(scenes), len(self.world.concepts)), dtype=bool)
        for cell in range(scenes.code.shape[1]):
            differs = scenes.code[:, [cell]] != self.world.codes[None, :, cell]
            wrong |= differs & (scenes.drawn[:, [cell]] > 0)
        return (~wrong).astype(float)

    def embeddings(
        self,
        images: int,
        rng: np.random.Generator,
        *,
        dimensions: int = 64,
        noise: float = 1.0,
        scale: float | None = None,
        groups: Ints | None = None,
    ) -> PlantedEmbeddings:
        """Unit vectors whose cosines are affine in PMI plus noise, without any training.

        cos(text c, image i) = constant + `scale` (PMI[c, group of i] + `noise` N(0, 1)), nearly:
        the noise is a dot product of random directions.

        Parameters
        ----------
        images : int
            Number of images.
        rng : numpy.random.Generator
            Source of randomness.
        dimensions : int
            Length of the vectors, at least 23.
        noise : float
            Standard deviation of the noise.
        scale : float, optional
            Size of the bias in cosines; 0.05 by default, or less where unit vectors cannot have
            that much.
        groups : array of int of shape (images,), optional
            The group of each image; random by default.

        Returns
        -------
        PlantedEmbeddings
            Of all concepts and of the images.

        Raises
        ------
        InputError
            There are too few dimensions, or the scale or the noise is too large.
        """
        pmi = self.pmi()
        free = dimensions - len(GROUPS) - 1
        if free < 8:
            raise InputError(
                f"oracle embeddings need at least {len(GROUPS) + 9} dimensions; got {dimensions}"
            )
        if groups is None:
            groups = rng.integers(0, len(GROUPS), images)
        # image: a constant, its group (one of 14 axes), and a direction of its own
        own = np.sqrt(1 / 2)
        x = np.concatenate(
            [
                np.full((images, 1), np.sqrt(1 / 4)),
                np.sqrt(1 / 4) * np.eye(len(GROUPS))[groups],
                own * _directions(images, free, rng),
            ],
            axis=1,
        )
        # text: PMI on the group axes; the length of its own direction gives the noise
        if scale is None:
            longest = np.sqrt(
                np.max((2 * pmi) ** 2 @ np.ones(len(GROUPS)) + free * (noise / own) ** 2)
            )
            scale = min(0.05, 0.95 / longest)
        on_groups = scale / np.sqrt(1 / 4) * pmi
        on_own = np.full(len(pmi), scale * noise * np.sqrt(free) / own)
        rest = 1 - (on_groups**2).sum(axis=1) - on_own**2
        if rest.min() < 0:
            raise InputError(
                f"unit vectors cannot have that much: lower scale ({scale}) or noise ({noise}), or "
                f"dimensions ({dimensions})"
            )
        t = np.concatenate(
            [np.sqrt(rest)[:, None], on_groups, on_own[:, None] * _directions(len(pmi), free, rng)],
            axis=1,
        )
        return PlantedEmbeddings(t.astype(np.float32), x.astype(np.float32), groups)


@dataclass(frozen=True, eq=False)
class PlantedEmbeddings:
    """Embeddings whose cosines follow the planted associations, and the group of each image."""

    texts: Floats  # concepts x dimensions
    images: Floats
    crossed: Ints

    @cached_property
    def groups(self) -> dict[str, Groups]:
        shape, hue = np.divmod(self.crossed, len(HUES))
        return {
            "shape": Groups(shape, SHAPES, "shape"),
            "hue": Groups(hue, HUES, "hue"),
        }


def figure_mask(scenes: Scenes) -> Floats:
    """The group of each figure, n x 14."""
    return np.asarray(np.eye(len(GROUPS))[scenes.shape * len(HUES) + scenes.hue])


def shape_mask(shape: Ints) -> Floats:
    """All groups of a shape, of any hue, n x 14."""
    return membership("shape").T[shape]


def _directions(n: int, d: int, rng: np.random.Generator) -> Floats:
    x = rng.normal(size=(n, d))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))
