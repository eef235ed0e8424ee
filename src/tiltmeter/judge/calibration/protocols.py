"""Lift against planted bias by protocol, on simulated scores.

A protocol is how a model scores a word: by the cosine of embeddings, by a matching head, or as a
masked word. All three are log ratios, so one truth, the planted PMI, applies to all.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from tiltmeter.judge.calibration.settings import (
    SCALE,
    JudgedWords,
    judge_words,
    neutral_words,
)
from tiltmeter.judge.calibration.verdict import LEVEL
from tiltmeter.metrics.propagation import spearman
from tiltmeter.stats.intervals import wilson
from tiltmeter.stats.lift_verdict import ASSOCIATED, NO_LARGER, RULE
from tiltmeter.testbed.language import GROUPS, HUES, SHAPES
from tiltmeter.testbed.oracle import Oracle
from tiltmeter.testbed.world import World
from tiltmeter.types import Floats, Groups, Ints

DOSES = (0.0, 0.5, 1.0)
GROUP_IMAGES = (20, 50, 200)
ATTRIBUTES = {"shape": SHAPES, "hue": HUES}
NOISE = 1.0  # of simulated scores, nats
#: Planted lifts from which power is measured, nats.
PLANTED = 0.3
BINS = (0.3, 0.5, 1.0)
#: A word planted at this or more must not be called "no larger than 1.25x".
LARGER = 1.5 * RULE.smallest
ORACLE = "oracle"

Row = dict[str, Any]
#: Scores of all concepts and images, from the group (shape x hue) of each image.
Simulation = Callable[[Oracle, Ints, np.random.Generator], Floats]


@cache
def world_of(dose: float) -> World:
    """The planted world of a strength, made once."""
    return World.plant(dose)


def cosine(oracle: Oracle, groups: Ints, rng: np.random.Generator) -> Floats:
    """Scaled cosines of embeddings: PMI plus noise that words and images share."""
    made = oracle.embeddings(len(groups), rng, noise=NOISE, scale=SCALE, groups=groups)
    return np.asarray(made.texts @ made.images.T / SCALE)


def matching(oracle: Oracle, groups: Ints, rng: np.random.Generator) -> Floats:
    """Matching logits, ln P(word | image) / P(word), plus noise."""
    logits = np.log(oracle.posterior(image=np.eye(len(GROUPS))) / oracle.world.prior)[groups].T
    return np.asarray(logits + NOISE * rng.normal(size=logits.shape))


def masked(oracle: Oracle, groups: Ints, rng: np.random.Generator) -> Floats:
    """Log-probabilities of a masked word, whose logits have noise."""
    logits = np.log(oracle.posterior(image=np.eye(len(GROUPS))))[groups].T
    logits = logits + NOISE * rng.normal(size=logits.shape)
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=0)))


SIMULATIONS: Mapping[str, Simulation] = {
    "cosine": cosine,
    "matching": matching,
    "masked": masked,
}


def simulated_rows(datasets: int, seed: int) -> Iterator[Row]:
    """Lift by protocol, attribute, dose and images per group, on simulated scores."""
    for protocol, attribute, dose, size in product(SIMULATIONS, ATTRIBUTES, DOSES, GROUP_IMAGES):
        oracle = Oracle(world_of(dose))
        key = zlib.crc32(f"{protocol} {attribute} {dose!r} {size}".encode())
        judged = []
        for number in range(datasets):
            rng = np.random.default_rng([seed, key, number])
            groups = balanced_groups(attribute, size, rng)
            scores = SIMULATIONS[protocol](oracle, groups, rng)
            judged.append(judge_all(oracle.world, scores, attribute_groups(attribute, groups)))
        place = {"metric": "lift", "setting": ORACLE, "protocol": protocol, "attribute": attribute,
                 "dose": dose, "noise": NOISE, "n": size, "seed": seed}  # fmt: skip
        yield from (place | row for row in lift_rows(judged, dose))


def lift_rows(judged: Sequence[JudgedWords], dose: float) -> Iterator[Row]:
    """Results of lift on datasets of one kind."""
    lift, planted = (
        np.concatenate([getattr(sample, name) for sample in judged])
        for name in JudgedWords._fields[:2]
    )
    verdicts = [sample.verdicts for sample in judged]
    flagged = np.concatenate([found.flagged for found in verdicts])
    if dose == 0:
        p_word = np.concatenate([found.p_word for found in verdicts])
        yield {"statistic": "beyond neutral words", **share(p_word < LEVEL)}
        yield {"statistic": "flagged", **share(flagged)}
        return
    count = lift.size
    yield {"statistic": "slope", "value": _slope(planted, lift), "count": count}
    rho = spearman(planted.ravel(), lift.ravel())[0]
    yield {"statistic": "spearman", "value": rho, "count": count}
    size = np.abs(planted).max(axis=1)
    yield {"statistic": "power", "planted": PLANTED, **share(flagged[size > PLANTED])}
    for low, high in zip(BINS, (*BINS[1:], np.inf), strict=True):
        yield {"statistic": "power by size", "planted": low,
               **share(flagged[(size > low) & (size <= high)])}  # fmt: skip
    small = np.array([said == NO_LARGER for found in verdicts for said in found.verdict])
    yield {"statistic": "no larger", "planted": LARGER, **share(small[size >= LARGER])}
    group = np.concatenate([found.group for found in verdicts])
    rows = np.flatnonzero(flagged)
    if len(rows):
        own, true = (np.abs(x[rows, group[rows]]).mean() for x in (lift, planted))
        yield {"statistic": "exaggeration", "value": own / true, "count": len(rows)}
    else:
        yield {"statistic": "exaggeration", "count": 0, "note": f"no word is {ASSOCIATED}"}


def share(hits: Floats) -> Row:
    """A share with Wilson's interval; undefined for no trials."""
    if not len(hits):
        return {"count": 0, "note": "no such word"}
    low, high = wilson(hits.sum(), np.array(len(hits)))
    return {"value": float(hits.mean()), "ci_low": float(low), "ci_high": float(high),
            "count": len(hits)}  # fmt: skip


def judge_all(world: World, scores: Floats, groups: Groups) -> JudgedWords:
    """Judge all words of a world, from scores of all concepts."""
    neutral = neutral_words(world)
    words = np.setdiff1d(np.arange(len(scores)), neutral)
    return judge_words(world, words, scores[words], scores[neutral], groups)


def _slope(x: Floats, y: Floats) -> float:
    x, y = x.ravel(), y.ravel()
    return float((x - x.mean()) @ y / ((x - x.mean()) @ (x - x.mean())))


def balanced_groups(attribute: str, size: int, rng: np.random.Generator) -> Ints:
    """Groups (shape x hue) of images: `size` in each group of the attribute, the other random."""
    own = np.repeat(np.arange(len(ATTRIBUTES[attribute])), size)
    if attribute == "shape":
        return np.asarray(own * len(HUES) + rng.integers(0, len(HUES), len(own)))
    return np.asarray(rng.integers(0, len(SHAPES), len(own)) * len(HUES) + own)


def attribute_groups(attribute: str, groups: Ints) -> Groups:
    """Groups by one attribute, from groups of shape x hue."""
    shape, hue = np.divmod(groups, len(HUES))
    return Groups(shape if attribute == "shape" else hue, ATTRIBUTES[attribute], attribute)
