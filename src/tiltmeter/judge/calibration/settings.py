"""Where each metric meets a bias of known size: one setting a family of metrics.

A setting takes a planted world, the number of images (or instances) behind each value, the noise of
the model and the randomness. It plays a model that knows the world up to that noise, and gives for
each metric of its family a `MetricReading`: values, what they should be without bias, what was
planted, and the p-values of the metric's own test. A new metric is one line in `SETTINGS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np

from tiltmeter import metrics
from tiltmeter.metrics.association import association
from tiltmeter.metrics.ranking import entropy_of_shares, max_of, skew_of_shares, target_shares
from tiltmeter.metrics.stereotype import picks
from tiltmeter.stats.null import (
    draw_top_counts,
    ndkl_null,
    p_of_draws,
    p_of_sample,
    top_count_p,
)
from tiltmeter.stats.paired import paired_test
from tiltmeter.stats.permutation import c_asc_test, sc_eat_test, two_sample_p
from tiltmeter.testbed.language import GROUPS, HUES
from tiltmeter.testbed.oracle import Oracle, membership, shape_mask
from tiltmeter.testbed.world import WORD_OF_ITS_OWN, World
from tiltmeter.types import Floats, Groups, Ints

UNITS = 20  # words, pairs or sets of words in a setting
CLASSES = 6  # of a zero-shot choice, one of them harmful
SIDE = 8  # words in each of WEAT's two sets
SETS = 6  # of UNITS words each, for a correlation over words
DRAWS, FEW_DRAWS = 999, 199  # of a null; of one that each word needs for itself
#: Logits by which an image rules the irrelevant caption out.
IRRELEVANT = 2.0
#: Cosines are this x (PMI + noise): small, so that unit vectors can hold the strongest tilt.
SCALE = 0.01


class MetricReading(NamedTuple):
    """What one metric gives on one dataset. Rows are units: words, pairs, sets of words."""

    values: Floats  # units x columns: a column a group, or one
    ideal: Floats | float  # of a fair model, as the literature has it
    truth: Floats | None  # like values: the tilt that was planted; None: the dose alone is known
    p: Floats | None  # like values; None: the metric has no test of its own
    over: str = "words"  # what values differ by


Readings: TypeAlias = dict[str, MetricReading]
Setting: TypeAlias = Callable[[World, int, float, np.random.Generator], Readings]


def scores(world: World, n: int, noise: float, rng: np.random.Generator) -> Readings:
    """Words against images of seven hues: scores are PMI + noise, the top tenth is looked at."""
    words, k = leaning("hue", UNITS), max(1, n // 10)
    groups = _hues(n, rng)
    given, pmi = _given(world, "hue")[words], Oracle(world).pmi("hue")[words]
    seen = pmi[:, groups.codes] + noise * rng.normal(size=(len(words), n))
    q, sizes = target_shares("prior", groups), groups.counts
    how = {"k": k, "target": "prior", "empty": "bounded", "ties": "expected"}
    shares = metrics.composition(seen, groups, k=k)
    p_of_shares = top_count_p(shares * k, sizes, k)
    random = draw_top_counts(sizes, k, DRAWS, rng) / k
    skews = skew_of_shares(random, q, k=k, empty="bounded")
    tested = c_asc_test(seen, groups, method="normal")
    divergence = (given * np.log(given / (world.prior @ _given(world, "hue")))).sum(axis=1)

    def one(values: Floats, ideal: float, truth: Floats, null: Floats, side: str) -> MetricReading:
        return _column(values, ideal, truth, p_of_sample(values, null, side))

    each = "words and groups"
    return {
        "c_asc": MetricReading(
            tested.effect,
            0.0,
            Oracle(world).c_asc_truth("hue", groups.shares)[words],
            tested.p,
            each,
        ),
        "composition": MetricReading(shares, q, given, p_of_shares, each),
        "skew": MetricReading(metrics.skew(seen, groups, **how), 0.0, pmi, p_of_shares, each),
        "max_skew": one(
            metrics.max_skew(seen, groups, **how), 0.0, pmi.max(axis=1), max_of(skews), "greater"
        ),
        "min_skew": one(
            metrics.min_skew(seen, groups, **how), 0.0, pmi.min(axis=1), -max_of(-skews), "less"
        ),
        "normalized_entropy": one(
            metrics.normalized_entropy(seen, groups, k=k),
            float(entropy_of_shares(q)),
            entropy_of_shares(given),
            entropy_of_shares(random),
            "two",
        ),
        "ndkl": one(
            metrics.ndkl(seen, groups, target="prior"),
            0.0,
            divergence,
            ndkl_null(sizes, q, DRAWS, rng),
            "greater",
        ),
    }


def vectors(world: World, n: int, noise: float, rng: np.random.Generator) -> Readings:
    """Vectors of words against vectors of round and of square figures.

    Each WEAT has 8 words against 8; up to three pairs of them have changed sides, so that there is
    more and less to find.
    """
    made = Oracle(world).embeddings(n, rng, noise=noise, scale=SCALE, groups=_crossed(n, rng))
    pmi = Oracle(world).pmi("shape")
    lean = pmi[:, 0] - pmi[:, 1]
    near, far = (made.images[made.groups["shape"].codes == code] for code in (0, 1))
    words = leaning("shape", UNITS)
    single = sc_eat_test(made.texts[words], near, far, method="normal")
    sides = leaning("shape", 2 * SIDE * UNITS).reshape(2 * SIDE, UNITS).T  # rising lean
    for row, side in enumerate(sides):
        for at in range(row % 4):
            side[[at, SIDE + at]] = side[[SIDE + at, at]]
    y, x = sides[:, :SIDE], sides[:, SIDE:]
    effects = [
        metrics.weat(made.texts[i], made.texts[j], near, far) for i, j in zip(x, y, strict=True)
    ]
    s = association(made.texts[np.concatenate([x, y], axis=1).ravel()], near, far)
    p, *_ = two_sample_p(s.reshape(UNITS, -1), np.arange(2 * SIDE) < SIDE, side="greater")
    contrast = lean[x].mean(axis=1) - lean[y].mean(axis=1)
    return {
        "sc_eat": _column(single.effect, 0.0, lean[words], single.p),
        "weat": _column(np.array(effects), 0.0, contrast, p, "sets of words"),
    }


def propagation(world: World, n: int, noise: float, rng: np.random.Generator) -> Readings:
    """SC-EAT of words on half of the images against who comes up first among the other half.

    The test deals the images' labels out again. Shuffling words instead would cry wolf: all words
    meet the same images, and what chance put there moves them together.
    """
    made = Oracle(world).embeddings(n, rng, noise=noise, scale=SCALE, groups=_crossed(n, rng))
    words = made.texts[leaning("shape", SETS * UNITS)]
    sets, first, k = np.arange(len(words)) % SETS, np.arange(n) < n // 2, max(1, n // 10)
    cosines = (words @ made.images[first].T).astype(np.float64)
    cosines = cosines / cosines.std(axis=1, ddof=1, keepdims=True)  # no dealing changes the spread
    ranked = np.argsort(-(words @ made.images[~first].T), axis=1, kind="stable")[:, :k]

    def correlation(shape: Ints) -> Floats:
        near = shape[first] == 0
        inside = cosines @ (near / near.sum() - ~near / (~near).sum())  # SC-EAT
        outside = (shape[~first][ranked] == 0).mean(axis=1)
        return np.asarray(metrics.spearman(inside, outside, sets))

    shape = made.groups["shape"].codes
    rho = correlation(shape)
    draws = np.array([correlation(rng.permutation(shape)) for _ in range(FEW_DRAWS)])
    # one row: the sets share their images, and are no independent trials
    return {"spearman": MetricReading(rho[None], 0.0, None, p_of_draws(rho, draws)[None], "doses")}


def choices(world: World, n: int, noise: float, rng: np.random.Generator) -> Readings:
    """Images of seven hues put into one of six classes, one of them harmful, by PMI + noise."""
    groups, pmi = _hues(n, rng), Oracle(world).pmi("hue")
    rates, truth, p, p_gap = [], [], [], []
    for row, words in enumerate(leaning("hue", CLASSES * UNITS).reshape(CLASSES, UNITS).T):
        harmful = row % CLASSES
        seen = pmi[words][:, groups.codes] + noise * rng.normal(size=(CLASSES, n))
        wrong = seen.argmax(axis=0) == harmful
        rates.append(metrics.group_rates(wrong.astype(float), groups))
        others = np.delete(pmi[words], harmful, axis=0)
        truth.append(pmi[words[harmful]] - np.log(np.exp(others).mean(axis=0)))
        count = int(wrong.sum())
        if count == 0:  # nothing to be permuted: every dealing gives the same
            p.append(np.ones(len(HUES)))
            p_gap.append(1.0)
            continue
        p.append(top_count_p(rates[-1] * groups.counts, groups.counts, count))
        drawn = draw_top_counts(groups.counts, count, DRAWS, rng) / groups.counts
        p_gap.append(float(p_of_sample(np.ptp(rates[-1]), np.ptp(drawn, axis=1), "greater")))
    rate, lean = np.array(rates), np.array(truth)
    largest = np.array([metrics.gaps(one).max() for one in rate])
    return {
        "group_rates": MetricReading(
            rate, rate.mean(axis=1, keepdims=True), lean, np.array(p), "classes and groups"
        ),
        "gaps": _column(largest, 0.0, np.ptp(lean, axis=1), np.array(p_gap), "classes"),
    }


def captions(world: World, n: int, noise: float, rng: np.random.Generator) -> Readings:
    """One of three captions of a round figure: PMI + noise, less for the irrelevant one.

    The image shows the figure and nothing that would speak for either of the other two.
    """
    by_lean = leaning("shape", 3 * UNITS).reshape(3, UNITS)
    triplets = np.stack([by_lean[2], by_lean[0][::-1], by_lean[1]], axis=1)
    pmi = Oracle(world).pmi("shape")[triplets, 0]
    shown = np.ones(n, dtype=bool)
    found: dict[str, list[Floats]] = {"vlrs": [], "vlbs": [], "ivlas": []}
    p = []
    for logits in pmi - np.array([0.0, 0.0, IRRELEVANT]):
        seen = logits + noise * rng.normal(size=(n, 3))
        found["vlrs"].append(metrics.vlrs(seen))
        found["vlbs"].append(metrics.vlbs(seen, shown))
        found["ivlas"].append(metrics.ivlas(seen, shown))
        chosen = picks(seen)
        p.append(paired_test(chosen[:, 1], chosen[:, 0], rng=rng, draws=FEW_DRAWS).p)
    tilt = pmi[:, 0] - pmi[:, 1]  # lowers what has its ideal at 100
    return {
        "vlrs": _column(np.array(found["vlrs"]), 100.0, -tilt, None, "pairs of words"),
        "vlbs": _column(np.array(found["vlbs"]), 0.0, tilt, np.array(p), "pairs of words"),
        "ivlas": _column(np.array(found["ivlas"]), 100.0, -tilt, np.array(p), "pairs of words"),
    }


def shifts(world: World, n: int, noise: float, rng: np.random.Generator) -> Readings:
    """Which of two concepts is masked: with and without the figure, with and without its name."""
    by_lean = leaning("shape", 2 * UNITS).reshape(2, UNITS)
    pairs = np.stack([by_lean[1], by_lean[0][::-1]], axis=1)
    oracle, mask = Oracle(world), shape_mask(np.array([0]))
    said = {
        "both": oracle.posterior(image=mask, text=mask),
        "image": oracle.posterior(image=mask),
        "none": oracle.posterior(),
    }
    kinds = {"lmss": ("both", "image"), "vlss": ("image", "none"), "shift_score": ("both", "none")}
    pmi = oracle.pmi("shape")[pairs, 0]
    tilt, found = pmi[:, 0] - pmi[:, 1], {}
    for name, conditions in kinds.items():
        value, p = [], []
        for pair in pairs:
            before, after = (
                np.log(said[one][0, pair]) + noise * rng.normal(size=(n, 2)) for one in conditions
            )
            each = metrics.METRICS[name](before, after)
            value.append(each.mean())
            p.append(_p_of_mean(each, rng))
        found[name] = _column(np.array(value), 0.0, tilt, np.array(p), "pairs of words")
    return found


def masked(world: World, n: int, noise: float, rng: np.random.Generator) -> Readings:
    """A masked target word beside a figure and beside the same figure redrawn in the other shape.

    The bias concept is the shape that the caption names.
    """
    oracle, both = Oracle(world), shape_mask(np.array([0, 1]))
    words = leaning("shape", UNITS, among_targets=True)
    at = np.searchsorted(world.targets, words)
    target = np.log(oracle.posterior(image=both, among=world.targets))  # shapes x targets
    own = world.word_given_concept @ membership("shape")
    named = (1 - WORD_OF_ITS_OWN) * np.eye(2) + WORD_OF_ITS_OWN * oracle.posterior(image=both) @ own
    shape = rng.permutation(np.arange(n) % 2)
    t, b = [], []
    for seen in (shape, 1 - shape):  # factual, counterfactual
        logits = target[seen] + noise * rng.normal(size=(n, target.shape[1]))
        weight = np.exp(logits - logits.max(axis=1, keepdims=True))
        t.append((weight / weight.sum(axis=1, keepdims=True))[:, at])
        p_named = named[seen, shape]
        odds = np.log(p_named / (1 - p_named)) + noise * rng.normal(size=n)
        b.append(1 / (1 + np.exp(-odds)))
    pmi = oracle.pmi("shape")[words]
    lean, first = pmi[:, 0] - pmi[:, 1], shape == 0
    one_way, p_one_way, directed, p_directed = [], [], [], []
    for word in range(len(words)):
        bias = metrics.counterfactual_bias(t[0][:, word], t[1][:, word], b[0], b[1])
        there = ~np.isnan(bias)
        one_way.append(bias[there & first].mean())
        p_one_way.append(_p_of_mean(bias[there & first], rng))
        directed.append(metrics.directed_bias(bias, first))
        p_directed.append(_p_of_mean((bias * np.where(first, 1, -1))[there], rng))
    return {
        "counterfactual_bias": _column(np.array(one_way), 0.0, lean, np.array(p_one_way)),
        "directed_bias": _column(np.array(directed), 0.0, lean, np.array(p_directed)),
    }


#: The setting of every registered metric.
SETTINGS: dict[str, Setting] = {
    "c_asc": scores,
    "composition": scores,
    "counterfactual_bias": masked,
    "directed_bias": masked,
    "gaps": choices,
    "group_rates": choices,
    "ivlas": captions,
    "lmss": shifts,
    "max_skew": scores,
    "min_skew": scores,
    "ndkl": scores,
    "normalized_entropy": scores,
    "sc_eat": vectors,
    "shift_score": shifts,
    "skew": scores,
    "spearman": propagation,
    "vlbs": captions,
    "vlrs": captions,
    "vlss": shifts,
    "weat": vectors,
}


@cache
def _by_lean(attribute: str, among_targets: bool) -> Ints:
    """Words that lean by this attribute, in the order of their lean to its first group.

    Placebos, and words that lean only by the intersection of attributes, have nothing to be found.
    """
    world = World.plant(1.0)
    lean = np.log(_given(world, attribute))
    lean = lean - lean.mean(axis=1, keepdims=True)
    words = np.flatnonzero(np.abs(lean).max(axis=1) > 1e-6)
    if among_targets:
        words = np.intersect1d(words, world.targets)
    return np.asarray(words[np.argsort(lean[words, 0], kind="stable")])


def leaning(attribute: str, count: int, *, among_targets: bool = False) -> Ints:
    """`count` words spread evenly over the sizes of their lean, the same at every dose.

    >>> len(set(leaning("hue", 20).tolist()))
    20
    """
    words = _by_lean(attribute, among_targets)
    return np.asarray(words[np.linspace(0, len(words) - 1, count).astype(int)])


def _given(world: World, attribute: str) -> Floats:
    """P(group | concept), concepts x groups of the attribute."""
    return np.asarray(world.given_concept @ membership(attribute))


def _crossed(n: int, rng: np.random.Generator) -> Ints:
    """Crossed groups of n images, as even as can be."""
    return rng.permutation(np.arange(n) % len(GROUPS))


def _hues(n: int, rng: np.random.Generator) -> Groups:
    return Groups(_crossed(n, rng) % len(HUES), HUES, "hue")


def _column(
    values: Floats, ideal: float, truth: Floats, p: Floats | None, over: str = "words"
) -> MetricReading:
    """A reading of one value a unit."""
    return MetricReading(
        values[:, None], ideal, truth[:, None], None if p is None else p[:, None], over
    )


def _p_of_mean(values: Floats, rng: np.random.Generator) -> float:
    """Whether the mean differs from 0: signs flipped at random."""
    return paired_test(np.zeros(len(values)), values, rng=rng, draws=FEW_DRAWS).p
