"""What a perfect model of the world would know: closed forms, no training.

A caption names a concept c and perhaps a group; a picture shows a figure of group v and perhaps an
icon. The joint probability of a concept, a figure, a named group l and what is drawn
of an icon is

    P(c) P(v | c) [(1 - w) 1(l = v) + w P_words(l | c)] 1(the drawn cells are those of c)

where w is the share of captions whose group word is not read off the figure. Everything here is a
sum or a ratio of these. Groups are given as masks over the 14 crossed groups, so that a caption may
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
    """Which crossed groups belong to each group of an attribute: 14 x groups, ones and zeros.

    >>> membership("shape").sum(axis=0)
    array([7., 7.])
    """
    shape, hue = np.divmod(np.arange(len(GROUPS)), len(HUES))
    codes = {"shape": shape, "hue": hue, "shape*hue": np.arange(len(GROUPS))}[attribute]
    return np.asarray(np.eye(len(ATTRIBUTES[attribute]))[codes])


@dataclass(frozen=True, eq=False)
class Oracle:
    """The closed forms of one world."""

    world: World

    def pmi(self, attribute: str = "shape*hue") -> Floats:
        """ln P(group | concept) / P(group) of figures, concepts x groups.

        This is what logit_scale x cosine of a caption and an icon-free picture tends to, up to a
        constant, in a model at the optimum of its contrastive loss.
        """
        given = self.world.given_concept @ membership(attribute)
        return np.asarray(np.log(given / (self.world.prior @ given)))

    def c_asc_truth(self, attribute: str, shares: Floats) -> Floats:
        """What C-ASC should order: PMI less the others' mean PMI, weighted by their shares."""
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
        """P(concept | what is seen), n x concepts (or n x `among`): also that of a masked word.

        `image` and `text` are masks, n x 14: the groups that the figure, and the named group, may
        have. `scenes` shows icons. What is not given is not known.
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
        """ln P(caption | picture) / P(caption): what a perfect matching head gives, one a pair.

        The caption names `concept` and, with `text`, a group; -inf where the two cannot occur.
        """
        image = figure_mask(scenes)
        seen = self._matches(scenes)
        both = self._groups_given_concept(image, text) * seen
        alone = self._groups_given_concept(None, text)
        picture = (self._groups_given_concept(image, None) * seen) @ self.world.prior
        rows = np.arange(len(scenes))
        top = both[rows, concept]
        bottom = np.broadcast_to(alone, both.shape)[rows, concept] * picture
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(top / bottom))

    def caption_choice(
        self, concepts: Ints, *, scenes: Scenes, text: Floats | None = None
    ) -> Floats:
        """Probabilities of choosing each of several captions (n x captions): softmax of logits."""
        logits = np.stack(
            [self.matching_logit(one, scenes=scenes, text=text) for one in concepts.T], axis=1
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
        """Whether what is drawn of an icon is a concept's, n x concepts."""
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
    ) -> OracleEmbeddings:
        """Unit vectors whose cosines are affine in PMI plus noise, without any training.

        cos(text c, image i) = constant + `scale` (PMI[c, group of i] + `noise` N(0, 1)), nearly:
        the noise is a dot product of random directions. By default `scale` is 0.05, or less where
        unit vectors could not hold that much.
        """
        pmi = self.pmi()
        free = dimensions - len(GROUPS) - 1
        if free < 8:
            raise InputError(f"oracle embeddings take at least {len(GROUPS) + 9} dimensions")
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
        # text: PMI on the group axes; its own direction is as long as the noise asks for
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
                f"unit vectors cannot hold that much: lower scale ({scale}) or noise ({noise}), or "
                f"dimensions ({dimensions})"
            )
        t = np.concatenate(
            [np.sqrt(rest)[:, None], on_groups, on_own[:, None] * _directions(len(pmi), free, rng)],
            axis=1,
        )
        return OracleEmbeddings(t.astype(np.float32), x.astype(np.float32), groups)


@dataclass(frozen=True, eq=False)
class OracleEmbeddings:
    """Vectors of all concepts and of some images, and the images' crossed groups."""

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
    """The one group that each figure has, n x 14."""
    return np.asarray(np.eye(len(GROUPS))[scenes.shape * len(HUES) + scenes.hue])


def shape_mask(shape: Ints) -> Floats:
    """All groups of a shape, whatever the hue, n x 14."""
    return membership("shape").T[shape]


def _directions(n: int, d: int, rng: np.random.Generator) -> Floats:
    x = rng.normal(size=(n, d))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))
