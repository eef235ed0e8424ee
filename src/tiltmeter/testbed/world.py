"""The planted world: which figures a concept comes with, in images and in captions.

For concept c and group g (shape x hue), P(g | c) is proportional to exp(beta[c, g]): so the
pointwise mutual information of every concept and group is known. The group that a caption names is
the figure's, except in a share of captions where it is drawn from the concept's own table of words:
so a bias can be planted in the images, in the captions, or in both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.yaml_files import parse_yaml
from tiltmeter.stimuli import load
from tiltmeter.testbed.language import GROUPS, HUES, SHAPES, Concept, concepts
from tiltmeter.testbed.render import BACKGROUND, CELLS, GRAINS, SIZE, Scenes, icon_code
from tiltmeter.types import Floats, Ints

WHERE = ("both", "images", "words")
#: Share of captions whose group word is not the figure's.
WORD_OF_ITS_OWN = 0.3
#: Concepts that captions name together with a group.
TARGET_LISTS = ("activities", "occupations", "neutral-activities")
#: Relative frequency of concepts: neutral words like words, so that models learn them equally
#: well; targets more often, since captions name them in other sentences too.
WORD, TARGET = 2, 8
#: Share of images without an icon; otherwise 1 to 16 cells are drawn, few more often than many.
NO_ICON = 0.4


@dataclass(frozen=True, eq=False)
class World:
    """Planted associations of concepts with groups: how strong they are in images and captions.

    Parameters
    ----------
    concepts : tuple of Concept
        Everything that has an icon.
    in_images, in_words : array of shape (concepts, groups)
        beta, for the figure in an image and for the group that a caption names.
    strength : float
        Factor of all betas; 0 is a world without bias.
    seed : int
        Decides the betas.
    """

    concepts: tuple[Concept, ...]
    in_images: Floats  # beta, concepts x groups
    in_words: Floats  # beta, concepts x groups
    strength: float
    seed: int

    @classmethod
    def plant(
        cls,
        strength: float = 1.0,
        *,
        where: str = "both",
        seed: int = 0,
        table: Mapping[str, Mapping[str, float]] | str | Path | None = None,
    ) -> World:
        """A world of a given strength.

        Parameters
        ----------
        strength : float
            0 or more; at 0 there is no bias.
        where : {"both", "images", "words"}
            Where the bias is planted.
        seed : int
            Decides the default table.
        table : mapping or path to a YAML file, optional
            Replaces the default table: concept -> {shape, hue or "shape | hue": beta}. Concepts
            that it does not name have no bias.

        Returns
        -------
        World
            The world.

        Raises
        ------
        InputError
            The strength is negative, or the table cannot be read.
        UnknownNameError
            `where`, or a concept or group of the table, is unknown.

        Examples
        --------
        >>> world = World.plant(table={"nurse": {"round": 1.0}})
        >>> world.given_concept[world.index("nurse")][:7].sum().round(3)
        np.float64(0.731)
        """
        if where not in WHERE:
            raise UnknownNameError("place to plant", where, WHERE)
        if not strength >= 0:
            raise InputError(f"the strength of a world must be 0 or more; got {strength}")
        known = concepts()
        base = _default_table(known, seed) if table is None else _read_table(known, table)
        beta, none = strength * base, np.zeros_like(base)
        return cls(
            known,
            none if where == "words" else beta,
            none if where == "images" else beta,
            float(strength),
            seed,
        )

    @cached_property
    def given_concept(self) -> Floats:
        """P(figure's group | concept), concepts x groups."""
        return _softmax(self.in_images)

    @cached_property
    def word_given_concept(self) -> Floats:
        """P(group that a caption names | concept), where it is not the figure's."""
        return _softmax(self.in_words)

    @cached_property
    def codes(self) -> Ints:
        """Icons, concepts x cells."""
        return np.stack([icon_code(concept.name) for concept in self.concepts])

    def index(self, name: str) -> int:
        """The number of a concept; UnknownNameError if there is none of that name."""
        numbers = {concept.name: at for at, concept in enumerate(self.concepts)}
        if name not in numbers:
            raise UnknownNameError("concept of the testbed", name, numbers)
        return numbers[name]

    @cached_property
    def targets(self) -> Ints:
        """Activities and occupations, which captions may name with a group; ascending."""
        names = {word.text for name in TARGET_LISTS for word in load(name).words}
        return np.array([at for at, concept in enumerate(self.concepts) if concept.name in names])

    @cached_property
    def planted_targets(self) -> Ints:
        """Targets that are no neutral words; ascending."""
        return np.array([at for at in self.targets if not self.concepts[at].placebo])

    @cached_property
    def prior(self) -> Floats:
        """P(concept)."""
        weight = np.full(len(self.concepts), float(WORD))
        weight[self.planted_targets] = TARGET
        return np.asarray(weight / weight.sum())

    def draw_concepts(self, n: int, rng: np.random.Generator) -> Ints:
        return rng.choice(len(self.concepts), n, p=self.prior)

    def draw_groups(self, concept: Ints, rng: np.random.Generator) -> Ints:
        """The figure's group for each concept."""
        return draw_columns(self.given_concept[concept], rng)

    def draw_words(self, concept: Ints, group: Ints, rng: np.random.Generator) -> Ints:
        """The group that a caption names, for each concept and figure."""
        own = draw_columns(self.word_given_concept[concept], rng)
        return np.where(rng.uniform(size=len(concept)) < WORD_OF_ITS_OWN, own, group)

    def scenes(
        self,
        n: int,
        rng: np.random.Generator,
        *,
        concept: Ints | None = None,
        group: Ints | None = None,
        cells: Ints | int | None = None,
    ) -> Scenes:
        """Draw random scenes.

        Parameters
        ----------
        n : int
            Number of scenes.
        rng : numpy.random.Generator
            Source of randomness.
        concept, group : int or array of int of shape (n,), optional
            Fixed concepts and groups; drawn from the world by default.
        cells : int or array of int of shape (n,), optional
            Cells of each icon that are drawn, 0 to 16; random by default.

        Returns
        -------
        Scenes
            To be rendered by `render`, or shown to a model of the testbed.

        Examples
        --------
        >>> len(World.plant().scenes(5, np.random.default_rng(0)))
        5
        """
        concept = self.draw_concepts(n, rng) if concept is None else np.broadcast_to(concept, n)
        group = self.draw_groups(concept, rng) if group is None else np.broadcast_to(group, n)
        if cells is None:
            drawn = 1 + (CELLS**2 * rng.uniform(size=n) ** 2).astype(int)
            cells = np.where(rng.uniform(size=n) < NO_ICON, 0, drawn)
        size = rng.integers(4, 8, n)
        half = SIZE // 2
        order = rng.permuted(np.tile(np.arange(CELLS**2), (n, 1)), axis=1)
        return Scenes(
            shape=group // len(HUES),
            hue=group % len(HUES),
            x=rng.integers(size, half - size),
            y=rng.integers(size, SIZE - size),
            size=size,
            side=rng.integers(0, 2, n),
            background=rng.integers(*BACKGROUND, (n, 3)),
            grain=rng.integers(0, GRAINS, n),
            code=self.codes[concept],
            drawn=(order < np.broadcast_to(cells, n)[:, None]).astype(np.int64),
        )


def _default_table(known: tuple[Concept, ...], seed: int) -> Floats:
    """The default betas: by shape and hue, or only by their intersection; neutral words have none.

    Those of a concept depend on its name and the seed, not on other concepts.
    """
    table = np.zeros((len(known), len(GROUPS)))
    for row, concept in enumerate(known):
        if concept.placebo:
            continue
        digest = hashlib.sha256(f"{seed}/{concept.name}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        if rng.uniform() < 0.1:
            table[row] = _intersectional(rng.uniform(0.5, 1.3) * rng.choice([-1, 1])).ravel()
        else:
            by_shape = np.array([0.5, -0.5]) * rng.normal(0, 1.2)
            by_hue = rng.normal(0, 0.9, len(HUES))
            table[row] = (by_shape[:, None] + by_hue - by_hue.mean()).ravel()
    return table


def _intersectional(size: float) -> Floats:
    """Betas by shape x hue that neither attribute shows alone: both margins stay even.

    Three hues are more frequent with round figures and less with square ones, three the other way
    round; the seventh is raised so that every hue is as frequent as before.
    """
    sign = np.array([1, -1, 1, -1, 1, -1, 0])
    beta = size * np.array([1, -1])[:, None] * sign
    beta[:, -1] = np.log(np.cosh(size))
    return np.asarray(beta)


def _read_table(
    known: tuple[Concept, ...], table: Mapping[str, Mapping[str, float]] | str | Path
) -> Floats:
    if isinstance(table, str | Path):
        path = Path(table)
        try:
            table = parse_yaml(path.read_text(encoding="utf-8"), path)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read as a table of betas: {error}") from None
    if not isinstance(table, Mapping) or not all(isinstance(x, Mapping) for x in table.values()):
        raise InputError(
            "a table of betas must map each concept to {group: beta}, as in nurse: {round: 1.0}"
        )
    rows = {concept.name: at for at, concept in enumerate(known)}
    members = {name: [name in group.split(" | ") or name == group for group in GROUPS]
               for name in (*SHAPES, *HUES, *GROUPS)}  # fmt: skip
    beta = np.zeros((len(known), len(GROUPS)))
    for name, betas in table.items():
        if name not in rows:
            raise UnknownNameError("concept of the testbed", str(name), rows)
        for group, value in betas.items():
            if group not in members:
                raise UnknownNameError("group of the testbed", str(group), members)
            beta[rows[name], members[group]] += float(value)
    return beta


def _softmax(beta: Floats) -> Floats:
    e = np.exp(beta - beta.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def draw_columns(p: Floats, rng: np.random.Generator) -> Ints:
    """One column of each row, with the row's probabilities."""
    edges = p.cumsum(axis=1)
    return np.asarray((rng.uniform(size=(len(p), 1)) > edges[:, :-1]).sum(axis=1))
