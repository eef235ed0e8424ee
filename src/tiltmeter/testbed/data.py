"""`testbed:`: figures of the planted world, without icons, with their groups and the planted truth.

Options: `images` (4000), `strength` of the world (1), `seed` (0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.inputs import Columns
from tiltmeter.specs import Spec
from tiltmeter.testbed.language import GROUPS, HUES, SHAPES
from tiltmeter.testbed.oracle import ATTRIBUTES, Oracle
from tiltmeter.testbed.world import World
from tiltmeter.types import Faces, Floats, Groups, Prompt

T = TypeVar("T", int, float)


def load(spec: Spec, columns: Columns) -> Faces:
    """Figures of the built-in world, shapes and hues, with the tilt that was planted."""
    del columns  # there are two attributes, and both are known
    spec.only("images", "strength", "seed")
    images = _number(spec, "images", int, 4000)
    strength, seed = _number(spec, "strength", float, 1.0), _number(spec, "seed", int, 0)
    if images < len(GROUPS) * 2:
        raise InputError(f"testbed: needs at least {len(GROUPS) * 2} images; got {images}")
    return figures(World.plant(strength), images, np.random.default_rng(seed))


def figures(world: World, images: int, rng: np.random.Generator) -> Faces:
    """Icon-free pictures with groups as even as can be, and the truth of their world."""
    group = rng.permutation(np.arange(images) % len(GROUPS))
    scenes = world.scenes(images, rng, group=group, cells=0)
    return Faces(
        ids=tuple(f"figure-{i:05d}" for i in range(images)),
        groups={
            "shape": Groups(group // len(HUES), SHAPES, "shape"),
            "hue": Groups(group % len(HUES), HUES, "hue"),
        },
        images=scenes,
        truth=planted(world),
        name="testbed",
        provenance={"strength": world.strength, "seed": world.seed},
    )


def planted(world: World) -> Callable[[str, Sequence[Prompt], Groups], Floats | None]:
    """What metrics should order words by: known for C-ASC, of concepts and groups of the world."""
    oracle = Oracle(world)
    row = {concept.name: at for at, concept in enumerate(world.concepts)}

    def truth(metric: str, prompts: Sequence[Prompt], groups: Groups) -> Floats | None:
        if metric != "c_asc" or groups.attribute not in ATTRIBUTES:
            return None
        names = list(ATTRIBUTES[groups.attribute])
        shares = np.zeros(len(names))
        at = [names.index(name) for name in groups.names]
        shares[at] = groups.shares
        of_concepts = oracle.c_asc_truth(groups.attribute, shares)[:, at]
        unknown = np.full(len(at), np.nan)
        found = [of_concepts[row[p.concept]] if p.concept in row else unknown for p in prompts]
        return np.stack(found)

    return truth


def _number(spec: Spec, name: str, kind: Callable[[str], T], default: T) -> T:
    try:
        return kind(spec.options[name]) if name in spec.options else default
    except ValueError:
        raise InputError(f"testbed: {name} must be a number; got {spec.options[name]!r}") from None
