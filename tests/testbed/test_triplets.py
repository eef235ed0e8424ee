"""Triplets of the planted world: they lean as planted, and their truth is the oracle's."""

from __future__ import annotations

import numpy as np
import pytest

import tiltmeter as tm
from tiltmeter.datasets.roles import Triplets
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.probes.texts import neutral_captions
from tiltmeter.testbed.captions import NAMES
from tiltmeter.testbed.language import HUES, PHRASES, SHAPE_NOUNS, encode
from tiltmeter.testbed.oracle import Oracle, figure_mask
from tiltmeter.testbed.render import Scenes
from tiltmeter.testbed.triplets import OracleMatcher, caption, triplets
from tiltmeter.testbed.world import WHERE, WORD_OF_ITS_OWN, World

WORLD = World.plant(1.0)


def drawn(cells: int = 1, world: World = WORLD, n: int = 200):
    return triplets(world, n, np.random.default_rng(0), cells=cells)


def test_shape_of_the_role() -> None:
    data = tm.load_data("testbed:triplets?images=60&cells=3&seed=1", role="triplets")
    assert isinstance(data, Triplets)
    assert len(data) == 60
    assert data.against.sum() == 30
    assert data.categories.names == ("shape", "shape*hue")
    assert data.categories.counts.tolist() == [30, 30]
    assert isinstance(data.images, Scenes)
    assert (data.images.drawn.sum(axis=1) == 3).all()
    again, other = (tm.load_data(f"testbed:triplets?images=60&cells=3&seed={s}") for s in (1, 2))
    assert data.stereotypical == again.stereotypical != other.stereotypical
    encode([*data.stereotypical, *data.anti, *data.irrelevant])  # a trained model knows every word


def test_captions_name_the_figure_and_lean_as_they_should() -> None:
    data = drawn()
    lean = Oracle(WORLD).pmi("shape*hue")
    group = data.images.shape * len(HUES) + data.images.hue
    for row in range(len(data)):
        name = data.targets[row]
        assert all(name in text[row] for text in (data.stereotypical, data.anti, data.irrelevant))
        assert SHAPE_NOUNS[data.images.shape[row]] in name
        if name in PHRASES:
            assert PHRASES.index(name) == group[row]
            first, second, third = lean[data.concepts[row], group[row]]
            assert first > third > second
    shapes = Oracle(WORLD).pmi("shape")[data.concepts[:, :2], data.images.shape[:, None]]
    named = np.array([name in SHAPE_NOUNS for name in data.targets])
    assert (shapes[named, 0] > shapes[named, 1]).all()


def test_the_picture_shows_what_the_label_says() -> None:
    data = drawn(cells=16)
    shown = np.where(data.against, data.concepts[:, 1], data.concepts[:, 0])
    assert (data.images.code == WORLD.codes[shown]).all()
    # all of the icon to see: a perfect model is never wrong
    assert tm.metrics.vlbs(data.best, data.against) == 0
    assert tm.metrics.vlrs(data.best) == 100


def test_a_perfect_choice_falls_for_the_stereotype_as_the_icon_goes() -> None:
    curve = [float(tm.metrics.vlbs(d.best, d.against)) for d in map(drawn, (0, 1, 2, 4, 8))]
    assert curve == sorted(curve, reverse=True)
    assert curve[0] > 50
    assert curve[-1] == 0
    fair = triplets(World.plant(0.0), 200, np.random.default_rng(0), cells=0)
    assert tm.metrics.vlbs(fair.best, fair.against) == pytest.approx(100 / 3)
    assert fair.stereotypical == drawn(0).stereotypical  # the fair twin is asked the same


@pytest.mark.parametrize("where", WHERE)
def test_the_oracle_against_plain_counting(where: str) -> None:
    """ln P(caption | picture), from the joint table of concept, figure and named group."""
    world = World.plant(1.0, where=where)
    data = drawn(cells=1, world=world, n=24)
    rows, w = np.arange(24), WORD_OF_ITS_OWN
    figure = figure_mask(data.images).argmax(axis=1)
    got = {r: OracleMatcher(world, r).match(data.images, data.stereotypical)
           for r in ("caption", "matching")}  # fmt: skip
    for row in rows:
        fits = [all(not d or s == c for d, s, c in
                    zip(data.images.drawn[row], data.images.code[row], code, strict=True))
                for code in world.codes]  # fmt: skip
        name, concept = data.targets[row], data.concepts[row, 0]
        named = [name in (SHAPE_NOUNS[g // 7], PHRASES[g]) for g in range(14)]

        def joint(c: int, v: int, named=named) -> float:
            own = sum(world.word_given_concept[c][named])
            said = (1 - w) * named[v] + w * own
            return world.prior[c] * world.given_concept[c, v] * said

        picture = sum(world.prior[c] * world.given_concept[c, figure[row]]
                      for c in range(len(fits)) if fits[c])  # fmt: skip
        alone = sum(joint(concept, v) for v in range(14))
        both = joint(concept, figure[row]) if fits[concept] else 0
        if both:
            assert got["caption"][row] == pytest.approx(np.log(both / picture))
            assert got["matching"][row] == pytest.approx(np.log(both / picture / alone))
        else:
            assert got["caption"][row] < -20


def test_neutral_captions_are_the_worlds_own() -> None:
    data = drawn()
    pairs = neutral_captions(data)
    assert all(pair is not None and "figure" in pair[0] and "figure" in pair[1] for pair in pairs)
    assert not any(noun in text.split() for pair in pairs for text in pair for noun in SHAPE_NOUNS)
    matcher = OracleMatcher(WORLD)
    assert np.isfinite(matcher.match(None, [pair[0] for pair in pairs])).all()


def test_without_a_picture_a_caption_is_as_probable_as_it_is() -> None:
    """Over all concepts and the names of a shape, in one template, probabilities sum to 1."""
    matcher = OracleMatcher(WORLD)
    texts = [caption(WORLD.concepts[at].name, name, "The {g} is {}")
             for at in WORLD.targets for name in SHAPE_NOUNS]  # fmt: skip
    total = np.exp(matcher.match(None, texts)).sum()
    assert total == pytest.approx(WORLD.prior[WORLD.targets].sum())
    assert (OracleMatcher(WORLD, "matching").match(None, texts) == 0).all()
    assert NAMES[-1] == "figure"


@pytest.mark.parametrize(
    ("spec", "said"),
    [("images=4", "at least 8"), ("cells=17", "from 0 to 16"), ("cells=x", "must be a number")],
)
def test_refused(spec: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        tm.load_data(f"testbed:triplets?{spec}")


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match="place to plant 'word'"):
        tm.load_data("testbed:triplets?where=word")
    with pytest.raises(UnknownNameError, match="reading of the oracle"):
        OracleMatcher(WORLD, "guess")
    with pytest.raises(UnknownNameError, match="caption of the oracle 'a dog'"):
        OracleMatcher(WORLD).match(None, ["a dog"])
