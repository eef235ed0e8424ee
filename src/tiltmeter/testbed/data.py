"""`testbed:`: figures of the planted world, without icons, with their groups and the planted truth.

Options: `images` (4000), `strength` of the world (1), `seed` (0). `testbed:valence` is images with
a valence (`images`: 900), `testbed:lexicon` words with one. `testbed:triplets` is scenes with three
captions each (`images`: 400): `cells` of the icons are drawn (1), and `where` says where the bias
was planted (both, images, words). `testbed:concepts` is figures at an activity or in an occupation,
as VL-Bias has them (`images`: 520; `cells` of the icon: 2, enough to guess by, too few to know).
`testbed:captions` is scenes with a caption each (`images`: 1000), `testbed:utility` scenes to
classify by occupation (`images`: 1000, `cells`: 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from tiltmeter.datasets.roles import Scenes
from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.testbed.language import GROUPS, HUES, SHAPES
from tiltmeter.testbed.oracle import ATTRIBUTES, Oracle
from tiltmeter.testbed.triplets import PlantedTriplets, triplets
from tiltmeter.testbed.world import WHERE, World
from tiltmeter.types import Faces, Floats, Groups, Prompt

T = TypeVar("T", int, float)


def load(spec: Spec, columns: Columns) -> Any:
    """Figures of the built-in world, shapes and hues, with the bias that was planted.

    Parameters
    ----------
    spec : Spec
        `testbed:`, or `testbed:NAME` (valence, lexicon, triplets, concepts, captions, utility),
        with their options.
    columns : Columns
        Not used: both attributes are known.

    Returns
    -------
    Faces, Scenes, or PlantedValence, -Lexicon, -Triplets, -Captions or -Utility
        The data of that role.

    Raises
    ------
    InputError
        An option is not a number, or there are too few images.
    """
    if spec.rest in ("valence", "lexicon"):
        return _load_valence(spec)
    if spec.rest == "triplets":
        return _load_triplets(spec)
    if spec.rest == "concepts":
        return _load_concepts(spec)
    if spec.rest in ("captions", "utility"):
        return _load_scenes(spec)
    del columns  # both attributes are known
    spec.check_options("images", "strength", "seed")
    images = _number(spec, "images", int, 4000)
    strength, seed = _number(spec, "strength", float, 1.0), _number(spec, "seed", int, 0)
    if images < len(GROUPS) * 2:
        raise InputError(f"testbed: needs at least {len(GROUPS) * 2} images; got {images}")
    return planted_faces(World.plant(strength), images, np.random.default_rng(seed))


def _load_valence(spec: Spec) -> Any:
    """Images or words with the valence that the world gives them."""
    from tiltmeter.testbed.valence import lexicon, valence_images

    spec.check_options("images", "strength", "seed")
    world = World.plant(_number(spec, "strength", float, 1.0))
    if spec.rest == "lexicon":
        return lexicon(world)
    rng = np.random.default_rng(_number(spec, "seed", int, 0))
    return valence_images(world, _number(spec, "images", int, 900), rng)


def _load_triplets(spec: Spec) -> PlantedTriplets:
    spec.check_options("images", "strength", "seed", "cells", "where")
    images, cells = _number(spec, "images", int, 400), _number(spec, "cells", int, 1)
    strength, seed = _number(spec, "strength", float, 1.0), _number(spec, "seed", int, 0)
    if images < 8:
        raise InputError(f"testbed: needs at least 8 images of triplets; got {images}")
    world = World.plant(strength, where=spec.options.get("where", WHERE[0]))
    return triplets(world, images, np.random.default_rng(seed), cells=cells)


def _load_concepts(spec: Spec) -> Scenes:
    spec.check_options("images", "strength", "seed", "cells")
    images, cells = _number(spec, "images", int, 520), _number(spec, "cells", int, 2)
    strength, seed = _number(spec, "strength", float, 1.0), _number(spec, "seed", int, 0)
    world = World.plant(strength)
    if images < 2 * len(world.planted_targets):
        raise InputError(
            f"testbed:concepts needs two images for each of {len(world.planted_targets)} concepts; "
            f"got {images}"
        )
    return planted_concepts(world, images, np.random.default_rng(seed), cells=cells)


def planted_concepts(
    world: World, images: int, rng: np.random.Generator, *, cells: int = 2
) -> Scenes:
    """Figures with the icon of an activity or occupation: a concept of every image, as in VL-Bias.

    Parameters
    ----------
    world : World
        The planted world.
    images : int
        Number of images; concepts and, within a concept, shapes are as equal as possible.
    rng : numpy.random.Generator
        Source of randomness.
    cells : int
        Cells of each icon that are drawn, 0 to 16.

    Returns
    -------
    Scenes
        Labelled by shape and hue. A scene is a concept, so images are not counterfactuals of each
        other.

    Examples
    --------
    >>> data = planted_concepts(World.plant(), 130, np.random.default_rng(0))
    >>> len(set(data.scenes)), data.attribute("shape").counts.tolist()
    (65, [65, 65])
    """
    count = len(world.planted_targets)
    order = np.arange(images)
    concept = world.planted_targets[order % count]
    shape = (order // count) % len(SHAPES)
    hue = rng.integers(0, len(HUES), images)
    scenes = world.scenes(images, rng, concept=concept, group=shape * len(HUES) + hue, cells=cells)
    return Scenes(
        ids=tuple(f"scene-{i:05d}" for i in range(images)),
        groups={"shape": Groups(shape, SHAPES, "shape"), "hue": Groups(hue, HUES, "hue")},
        images=scenes,
        name="testbed:concepts",
        provenance={"strength": world.strength, "seed": world.seed},
        world=world,
        scenes=tuple(world.concepts[at].name for at in concept),
        kinds=tuple(str(world.concepts[at].category) for at in concept),
        parallel=False,
    )


def _load_scenes(spec: Spec) -> Any:
    """Scenes with captions, or with classes."""
    from tiltmeter.testbed.captioned import draw_captioned_scenes, draw_classes

    spec.check_options("images", "strength", "seed", *["cells"] * (spec.rest == "utility"))
    images = _number(spec, "images", int, 1000)
    if images < 2:
        raise InputError(f"testbed:{spec.rest} needs at least 2 images; got {images}")
    world = World.plant(_number(spec, "strength", float, 1.0))
    rng = np.random.default_rng(_number(spec, "seed", int, 0))
    if spec.rest == "captions":
        return draw_captioned_scenes(world, images, rng)
    return draw_classes(world, images, rng, cells=_number(spec, "cells", int, 3))


def planted_faces(world: World, images: int, rng: np.random.Generator) -> Faces:
    """Images of figures without icons, with the truth of their world.

    Parameters
    ----------
    world : World
        The planted world.
    images : int
        Number of images; groups are as equal as possible.
    rng : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    Faces
        Labelled by shape and hue.

    Examples
    --------
    >>> faces = planted_faces(World.plant(), 28, np.random.default_rng(0))
    >>> faces.attribute("shape").counts.tolist()
    [14, 14]
    """
    group = rng.permutation(np.arange(images) % len(GROUPS))
    scenes = world.scenes(images, rng, group=group, cells=0)
    return Faces(
        ids=tuple(f"figure-{i:05d}" for i in range(images)),
        groups={
            "shape": Groups(group // len(HUES), SHAPES, "shape"),
            "hue": Groups(group % len(HUES), HUES, "hue"),
        },
        images=scenes,
        truth=planted_truth(world),
        name="testbed",
        provenance={"strength": world.strength, "seed": world.seed},
        world=world,
    )


def planted_truth(world: World) -> Callable[[str, Sequence[Prompt], Groups], Floats | None]:
    """The planted truth, as `Faces.truth`: known for C-ASC, for concepts and groups of the world.

    Parameters
    ----------
    world : World
        The planted world.

    Returns
    -------
    callable
        Takes a metric, prompts and groups; returns prompts x groups, or None for other metrics.
    """
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
        rows = [of_concepts[row[p.concept]] if p.concept in row else unknown for p in prompts]
        return np.stack(rows)

    return truth


def _number(spec: Spec, name: str, kind: Callable[[str], T], default: T) -> T:
    try:
        return kind(spec.options[name]) if name in spec.options else default
    except ValueError:
        raise InputError(f"testbed: {name} must be a number; got {spec.options[name]!r}") from None
