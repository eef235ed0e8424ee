"""Association tests in the language of the world, with the effect that was planted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiltmeter.metrics.association import DDOF
from tiltmeter.stimuli import fill, load
from tiltmeter.testbed.captions import concept_captions
from tiltmeter.testbed.language import GROUP_TEMPLATES, HUES, PHRASES, SHAPE_NOUNS
from tiltmeter.testbed.oracle import Oracle, membership
from tiltmeter.testbed.valence import valences
from tiltmeter.testbed.world import World
from tiltmeter.types import Floats

PLEASANT, OCCUPATIONS = 25, 6  # concepts of a set


@dataclass(frozen=True, eq=False)
class PlantedTests:
    """Sets of captions by name, tests as names of their sets, and the planted effect of each."""

    words: dict[str, tuple[str, ...]]
    tests: list[tuple[str, str, str, str, str]]  # name, X, Y, A, B
    truth: dict[str, float]


def planted_tests(world: World) -> PlantedTests:
    """Are balls nearer to pleasant words than blocks are, and to the occupations of round figures?

    The sets are those of the biased world for its fair twin too. The planted effect is that of WEAT
    with the pointwise mutual information of word and group in place of their cosine.

    Parameters
    ----------
    world : World
        The planted world.

    Returns
    -------
    PlantedTests
        Two tests.

    Examples
    --------
    >>> planted_tests(World.plant(0.0)).truth
    {'shapes and valence': 0.0, 'occupations and shapes': 0.0}
    """
    biased = World.plant(1.0, seed=world.seed)
    known = [at for at, concept in enumerate(biased.concepts) if not concept.placebo]
    valence = valences(biased)
    pleasant = sorted(known, key=lambda at: -valence[at])
    jobs = [biased.index(name) for name in dict.fromkeys(w.text for w in load("occupations").words)]
    lean = Oracle(biased).pmi("shape") @ [1.0, -1.0]
    jobs.sort(key=lambda at: -lean[at])
    sets = {"pleasant": pleasant[:PLEASANT], "unpleasant": pleasant[-PLEASANT:],
            "of balls": jobs[:OCCUPATIONS], "of blocks": jobs[-OCCUPATIONS:]}  # fmt: skip
    caption = list(concept_captions().values())
    figures = [fill(GROUP_TEMPLATES[0].replace("{g}", "{}"), phrase) for phrase in PHRASES]
    words = {name: tuple(caption[at] for at in rows) for name, rows in sets.items()}
    for side, noun in enumerate(SHAPE_NOUNS):
        words[f"{noun}s"] = tuple(figures[side * len(HUES) : (side + 1) * len(HUES)])
    pmi = Oracle(world).pmi()  # concepts x groups
    by_valence = pmi[sets["pleasant"]].mean(axis=0) - pmi[sets["unpleasant"]].mean(axis=0)
    by_shape = pmi @ (membership("shape") @ [1.0, -1.0]) / len(HUES)
    return PlantedTests(
        words,
        [("shapes and valence", "balls", "blocks", "pleasant", "unpleasant"),
         ("occupations and shapes", "of balls", "of blocks", "balls", "blocks")],
        {"shapes and valence": _effect(by_valence[: len(HUES)], by_valence[len(HUES) :]),
         "occupations and shapes": _effect(*(by_shape[sets[f"of {noun}s"]]
                                             for noun in SHAPE_NOUNS))},
    )  # fmt: skip


def _effect(x: Floats, y: Floats) -> float:
    """WEAT's d of associations; 0 where there is none."""
    spread = np.concatenate([x, y]).std(ddof=DDOF["caliskan"])
    return float((x.mean() - y.mean()) / spread) if spread > 1e-9 else 0.0
