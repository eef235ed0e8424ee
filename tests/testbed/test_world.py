"""The planted world: what leans, what does not, and that it is the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.testbed.language import GROUPS, HUES
from tiltmeter.testbed.oracle import Oracle, membership
from tiltmeter.testbed.world import World

WORLD = World.plant(1.0)


def margins(world: World) -> tuple[np.ndarray, np.ndarray]:
    given = world.given_concept
    return given @ membership("shape"), given @ membership("hue")


def test_the_same_seed_plants_the_same_world_and_another_does_not() -> None:
    assert (World.plant(1.0).in_images == WORLD.in_images).all()
    assert (World.plant(1.0, seed=1).in_images != WORLD.in_images).any()


def test_placebos_lean_nowhere_and_words_do() -> None:
    placebo = np.array([concept.placebo for concept in WORLD.concepts])
    assert not WORLD.in_images[placebo].any()
    assert WORLD.in_images[~placebo].any(axis=1).all()


def test_a_crossed_leaning_has_even_margins() -> None:
    shape, hue = margins(WORLD)
    even = np.isclose(shape[:, 0], 0.5)
    crossed = even & WORLD.in_images.any(axis=1)
    assert crossed.sum() > 20
    assert np.allclose(hue[crossed], 1 / len(HUES))
    assert np.abs(WORLD.given_concept[crossed] - 1 / len(GROUPS)).max(axis=1).min() > 0.01


def test_strength_nought_plants_nothing() -> None:
    world = World.plant(0.0)
    assert np.allclose(world.given_concept, 1 / len(GROUPS))
    assert np.allclose(Oracle(world).pmi(), 0)


@pytest.mark.parametrize(
    ("where", "images", "words"), [("images", True, False), ("words", False, True)]
)
def test_planting_in_one_place_only(where: str, images: bool, words: bool) -> None:
    world = World.plant(1.0, where=where)
    assert world.in_images.any() == images
    assert world.in_words.any() == words


def test_a_table_of_ones_own(tmp_path) -> None:
    path = tmp_path / "table.yaml"
    path.write_text("nurse: {round: 1.0, 'square | red': -0.5}\n")
    world = World.plant(2.0, table=path)
    row = world.in_images[world.index("nurse")]
    assert row[0] == 2.0
    assert row[GROUPS.index("square | red")] == -1.0
    assert np.count_nonzero(world.in_images.any(axis=1)) == 1


@pytest.mark.parametrize(
    ("table", "named"), [({"nurze": {"round": 1}}, "nurse"), ({"nurse": {"rond": 1}}, "round")]
)
def test_a_table_with_an_unknown_name(table: dict, named: str) -> None:
    with pytest.raises(UnknownNameError, match=named):
        World.plant(table=table)


def test_what_is_no_world() -> None:
    with pytest.raises(InputError, match="0 or more"):
        World.plant(-1.0)
    with pytest.raises(UnknownNameError, match="images"):
        World.plant(where="image")
    with pytest.raises(InputError, match="each concept"):
        World.plant(table={"nurse": 1.0})  # type: ignore[dict-item]


def test_draws_follow_the_table() -> None:
    rng = np.random.default_rng(0)
    concept = np.full(200_000, WORLD.index("nurse"))
    drawn = np.bincount(WORLD.draw_groups(concept, rng), minlength=len(GROUPS)) / len(concept)
    assert np.abs(drawn - WORLD.given_concept[concept[0]]).max() < 0.005
