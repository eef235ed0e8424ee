"""The planted world: which figures a concept comes with, in pictures and in words.

For concept c and crossed group g (shape x hue), P(g | c) is proportional to exp(beta[c, g]): so the
pointwise mutual information of every concept and group is known. The group that a caption names is
the figure's, except in a share of captions where it is drawn from the concept's own table of words:
so a tilt can be planted in the pictures, in the words, or in both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.stimuli import load
from tiltmeter.testbed.language import GROUPS, HUES, SHAPES, Concept, concepts
from tiltmeter.testbed.render import BACKGROUND, CELLS, GRAINS, SIZE, Scenes, icon_code
from tiltmeter.types import Floats, Ints

WHERE = ("both", "images", "words")
#: Share of captions whose group word is not read off the figure.
WORD_OF_ITS_OWN = 0.3
#: Concepts that captions name together with a group.
TARGET_LISTS = ("activities", "occupations")
#: How frequent concepts are against each other: what leans takes more pictures to learn.
PLACEBO, WORD, TARGET = 1, 2, 8
#: Share of pictures without any icon; else 1 to 16 cells are drawn, few more often than many.
NO_ICON = 0.4


@dataclass(frozen=True, eq=False)
class World:
    """Concepts, and how far each leans to each group, in pictures and in words."""

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
        """A world of the given strength; at 0 nothing leans.

        `table` (a mapping, or a YAML file) takes the place of the house's own leanings:
        concept -> {shape, hue or "shape | hue": beta}. What it does not name does not lean.
        """
        if where not in WHERE:
            raise UnknownNameError("place to plant", where, WHERE)
        if not strength >= 0:
            raise InputError(f"the strength of a world is 0 or more; got {strength}")
        known = concepts()
        base = _house_table(known, seed) if table is None else _own_table(known, table)
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
        """P(group of the figure | concept), concepts x groups."""
        return _softmax(self.in_images)

    @cached_property
    def word_given_concept(self) -> Floats:
        """P(group a caption names | concept), where it is not read off the figure."""
        return _softmax(self.in_words)

    @cached_property
    def codes(self) -> Ints:
        """Icons, concepts x cells."""
        return np.stack([icon_code(concept.name) for concept in self.concepts])

    def index(self, name: str) -> int:
        """The number of a concept."""
        found = {concept.name: at for at, concept in enumerate(self.concepts)}
        if name not in found:
            raise UnknownNameError("concept of the testbed", name, found)
        return found[name]

    @cached_property
    def targets(self) -> Ints:
        """Activities and occupations, which captions may name together with a group; rising."""
        names = {word.text for name in TARGET_LISTS for word in load(name).words}
        return np.array([at for at, one in enumerate(self.concepts) if one.name in names])

    @cached_property
    def prior(self) -> Floats:
        """P(concept)."""
        weight = np.array([PLACEBO if one.placebo else WORD for one in self.concepts], float)
        weight[self.targets] = TARGET
        return np.asarray(weight / weight.sum())

    def draw_concepts(self, n: int, rng: np.random.Generator) -> Ints:
        return rng.choice(len(self.concepts), n, p=self.prior)

    def draw_groups(self, concept: Ints, rng: np.random.Generator) -> Ints:
        """The figure's group for each concept."""
        return _pick(self.given_concept[concept], rng)

    def draw_words(self, concept: Ints, group: Ints, rng: np.random.Generator) -> Ints:
        """The group that a caption names, for each concept and figure."""
        own = _pick(self.word_given_concept[concept], rng)
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
        """Scenes at random; what is given is kept. `cells` of the icon are drawn (0 to 16)."""
        concept = self.draw_concepts(n, rng) if concept is None else np.broadcast_to(concept, n)
        group = self.draw_groups(concept, rng) if group is None else np.broadcast_to(group, n)
        if cells is None:
            some = 1 + (CELLS**2 * rng.uniform(size=n) ** 2).astype(int)
            cells = np.where(rng.uniform(size=n) < NO_ICON, 0, some)
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


def _house_table(known: tuple[Concept, ...], seed: int) -> Floats:
    """Leanings of the house: by shape, by hue, or only by their crossing; placebos have none.

    Each concept's come from its own name and the seed, whatever other concepts there are.
    """
    table = np.zeros((len(known), len(GROUPS)))
    for row, concept in enumerate(known):
        if concept.placebo:
            continue
        digest = hashlib.sha256(f"{seed}/{concept.name}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        if rng.uniform() < 0.1:
            table[row] = _crossed(rng.uniform(0.5, 1.3) * rng.choice([-1, 1])).ravel()
        else:
            by_shape = np.array([0.5, -0.5]) * rng.normal(0, 1.2)
            by_hue = rng.normal(0, 0.9, len(HUES))
            table[row] = (by_shape[:, None] + by_hue - by_hue.mean()).ravel()
    return table


def _crossed(size: float) -> Floats:
    """A leaning of shape x hue that neither shows alone: both margins stay even.

    Three hues lean one way with round figures and the other way with square ones, three the other
    way about; the seventh is raised so that every hue is as frequent as before.
    """
    sign = np.array([1, -1, 1, -1, 1, -1, 0])
    beta = size * np.array([1, -1])[:, None] * sign
    beta[:, -1] = np.log(np.cosh(size))
    return np.asarray(beta)


def _own_table(
    known: tuple[Concept, ...], table: Mapping[str, Mapping[str, float]] | str | Path
) -> Floats:
    if isinstance(table, str | Path):
        import yaml

        path = Path(table)
        try:
            table = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise InputError(f"{path} cannot be read as a table of leanings: {error}") from None
    if not isinstance(table, Mapping) or not all(isinstance(x, Mapping) for x in table.values()):
        raise InputError("a table of leanings maps each concept to {group: beta}")
    rows = {concept.name: at for at, concept in enumerate(known)}
    members = {name: [name in group.split(" | ") or name == group for group in GROUPS]
               for name in (*SHAPES, *HUES, *GROUPS)}  # fmt: skip
    beta = np.zeros((len(known), len(GROUPS)))
    for name, leanings in table.items():
        if name not in rows:
            raise UnknownNameError("concept of the testbed", str(name), rows)
        for group, value in leanings.items():
            if group not in members:
                raise UnknownNameError("group of the testbed", str(group), members)
            beta[rows[name], members[group]] += float(value)
    return beta


def _softmax(beta: Floats) -> Floats:
    e = np.exp(beta - beta.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _pick(p: Floats, rng: np.random.Generator) -> Ints:
    """One column of each row, with the row's probabilities."""
    edges = p.cumsum(axis=1)
    return np.asarray((rng.uniform(size=(len(p), 1)) > edges[:, :-1]).sum(axis=1))
