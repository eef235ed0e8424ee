"""Calibration settings: simulated models with known bias, one setting per family of metrics.

A setting takes a planted world, the number of images (or instances) per value, the noise of the
model and a random generator. It simulates a model that knows the world up to that noise, and
returns a `MetricReading` for each metric of its family: values, their ideal, the planted truth, and
p-values of the metric's own test. A new metric is one line in `SETTINGS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.stats import rankdata

from tiltmeter import metrics
from tiltmeter.metrics.association import association
from tiltmeter.metrics.group_lift import centred, lift_standard_error
from tiltmeter.metrics.ranking import entropy_of_shares, max_of, skew_of_shares, target_shares
from tiltmeter.metrics.stereotype import caption_choices
from tiltmeter.metrics.summary import Moments
from tiltmeter.stats.lift_verdict import WordVerdicts, word_verdicts
from tiltmeter.stats.null import (
    draw_top_counts,
    ndkl_null,
    p_from_null_draws,
    p_from_shared_null,
    top_count_p,
)
from tiltmeter.stats.paired import paired_test
from tiltmeter.stats.permutation import c_asc_test, sc_eat_test, two_sample_permutation_p
from tiltmeter.testbed.language import GROUPS, HUES
from tiltmeter.testbed.oracle import Oracle, PlantedEmbeddings, membership, shape_mask
from tiltmeter.testbed.world import WORD_OF_ITS_OWN, World
from tiltmeter.types import Floats, Groups, Ints

UNITS = 20  # words, pairs or sets of words per setting
CLASSES = 6  # of zero-shot classification, one of them harmful
SIDE = 8  # words in each of WEAT's two sets
SETS = 6  # of UNITS words each, for a correlation over words
DRAWS, FEW_DRAWS = 999, 199  # of a shared null; of a null for each word
#: Logits by which the irrelevant caption is less likely.
IRRELEVANT = 2.0
#: Cosines are this x (PMI + noise): small, so that unit vectors can represent the strongest bias.
SCALE = 0.01


class MetricReading(NamedTuple):
    """Values of one metric on one dataset. Rows are units: words, pairs, sets of words."""

    values: Floats  # units x columns: one column per group, or one
    ideal: Floats | float  # value of a fair model, as in the literature
    truth: Floats | None  # planted bias, like values; None: only the dose is known
    p: Floats | None  # units x tests; None: the metric has no test
    over: str = "words"  # what the values vary over


Readings: TypeAlias = dict[str, MetricReading]
Setting: TypeAlias = Callable[[World, int, float, np.random.Generator], Readings]


def scores(world: World, n: int, noise: float, rng: np.random.Generator) -> Readings:
    """Words against images of seven hues: scores are PMI + noise, k is a tenth of the images."""
    words, groups = biased_words("hue", UNITS), _hues(n, rng)
    pmi = Oracle(world).pmi("hue")[words]
    noisy = pmi[:, groups.codes] + noise * rng.normal(size=(len(words), n))
    return score_readings(world, words, noisy, groups, rng)


def score_readings(
    world: World, words: Ints, noisy: Floats, groups: Groups, rng: np.random.Generator
) -> Readings:
    """Readings from scores of words (concepts of the world) and images of seven hues."""
    k = max(1, len(groups) // 10)
    p_group, pmi = _group_given_concept(world, "hue")[words], Oracle(world).pmi("hue")[words]
    q, sizes = target_shares("prior", groups), groups.counts
    options = {"k": k, "target": "prior", "empty": "bounded", "ties": "expected"}
    shares = metrics.composition(noisy, groups, k=k)
    p_of_shares = top_count_p(shares * k, sizes, k)
    random = draw_top_counts(sizes, k, DRAWS, rng) / k
    skews = skew_of_shares(random, q, k=k, empty="bounded")
    tested = c_asc_test(noisy, groups, method="normal")
    divergence = (
        p_group * np.log(p_group / (world.prior @ _group_given_concept(world, "hue")))
    ).sum(axis=1)

    def tested_column(
        values: Floats, ideal: float, truth: Floats, null: Floats, side: str
    ) -> MetricReading:
        return _column(values, ideal, truth, p_from_shared_null(values, null, side))

    over = "words and groups"
    return {
        "c_asc": MetricReading(
            tested.effect,
            0.0,
            Oracle(world).c_asc_truth("hue", groups.shares)[words],
            tested.p,
            over,
        ),
        "composition": MetricReading(shares, q, p_group, p_of_shares, over),
        "skew": MetricReading(metrics.skew(noisy, groups, **options), 0.0, pmi, p_of_shares, over),
        "max_skew": tested_column(
            metrics.max_skew(noisy, groups, **options),
            0.0,
            pmi.max(axis=1),
            max_of(skews),
            "greater",
        ),
        "min_skew": tested_column(
            metrics.min_skew(noisy, groups, **options),
            0.0,
            pmi.min(axis=1),
            -max_of(-skews),
            "less",
        ),
        "normalized_entropy": tested_column(
            metrics.normalized_entropy(noisy, groups, k=k),
            float(entropy_of_shares(q)),
            entropy_of_shares(p_group),
            entropy_of_shares(random),
            "two",
        ),
        "ndkl": tested_column(
            metrics.ndkl(noisy, groups, target="prior"),
            0.0,
            divergence,
            ndkl_null(sizes, q, DRAWS, rng),
            "greater",
        ),
    }


def vectors(world: World, n: int, noise: float, rng: np.random.Generator) -> Readings:
    """Word embeddings against embeddings of round and square shapes.

    Each WEAT has 8 words against 8; up to three pairs are swapped, so that effects differ.
    """
    embedded = Oracle(world).embeddings(n, rng, noise=noise, scale=SCALE, groups=_crossed(n, rng))
    return vector_readings(world, embedded)


def vector_readings(world: World, embedded: PlantedEmbeddings) -> Readings:
    """Readings from embeddings of all concepts and of images."""
    pmi = Oracle(world).pmi("shape")
    associations = pmi[:, 0] - pmi[:, 1]
    round_images, square_images = (
        embedded.images[embedded.groups["shape"].codes == code] for code in (0, 1)
    )
    words = biased_words("shape", UNITS)
    tested = sc_eat_test(embedded.texts[words], round_images, square_images, method="normal")
    sides = (
        biased_words("shape", 2 * SIDE * UNITS).reshape(2 * SIDE, UNITS).T
    )  # by increasing association
    for row, side in enumerate(sides):
        for place in range(row % 4):
            side[[place, SIDE + place]] = side[[SIDE + place, place]]
    y, x = sides[:, :SIDE], sides[:, SIDE:]
    effects = [
        metrics.weat(embedded.texts[i], embedded.texts[j], round_images, square_images)
        for i, j in zip(x, y, strict=True)
    ]
    s = association(
        embedded.texts[np.concatenate([x, y], axis=1).ravel()], round_images, square_images
    )
    p, *_ = two_sample_permutation_p(
        s.reshape(UNITS, -1), np.arange(2 * SIDE) < SIDE, side="greater"
    )
    contrast = associations[x].mean(axis=1) - associations[y].mean(axis=1)
    return {
        "sc_eat": _column(tested.effect, 0.0, associations[words], tested.p),
        "weat": _column(np.array(effects), 0.0, contrast, p, "sets of words"),
    }


def lifts(world: World, n: int, noise: float, rng: np.random.Generator) -> Readings:
    """Words against round and square shapes, judged by all neutral words of the world.

    The test is that of a word's verdict: beyond neutral words, and beyond 1.25x.
    """
    embedded = Oracle(world).embeddings(n, rng, noise=noise, scale=SCALE, groups=_crossed(n, rng))
    words = biased_words("shape", UNITS)
    own, neutral = (
        embedded.texts[rows] @ embedded.images.T / SCALE for rows in (words, neutral_words(world))
    )
    judged = judge_words(world, words, own, neutral, embedded.groups["shape"])
    p = judged.verdicts.p[:, None]
    return {"lift": MetricReading(judged.lift, 0.0, judged.planted, p, "words and groups")}


class JudgedWords(NamedTuple):
    """Lift of words, the planted lift, and their verdicts."""

    lift: Floats  # words x groups
    planted: Floats  # words x groups
    verdicts: WordVerdicts


def judge_words(
    world: World, words: Ints, scores: Floats, neutral: Floats, groups: Groups
) -> JudgedWords:
    """Judge words (concepts of the world) by neutral words, both scored on the same images."""
    lift = np.asarray(metrics.lift(scores, groups, neutral=neutral))
    error = np.asarray(lift_standard_error(Moments.of(centred(scores, neutral), groups)))
    reference = np.asarray(metrics.lift(neutral, groups, neutral=neutral))
    pmi = Oracle(world).pmi(groups.attribute)[words]
    planted = pmi - (pmi.sum(axis=1, keepdims=True) - pmi) / (pmi.shape[1] - 1)
    return JudgedWords(lift, planted, word_verdicts(lift, error, reference, groups.counts))


def neutral_words(world: World) -> Ints:
    """The concepts of a world without planted bias."""
    return np.flatnonzero([concept.placebo for concept in world.concepts])


def propagation(world: World, n: int, noise: float, rng: np.random.Generator) -> Readings:
    """SC-EAT of words on half of the images against retrieval from the other half.

    The test permutes the images' labels. Permuting words instead would inflate the false-positive
    rate: all words share the images, whose random deviations move them together.
    """
    embedded = Oracle(world).embeddings(n, rng, noise=noise, scale=SCALE, groups=_crossed(n, rng))
    words = embedded.texts[biased_words("shape", SETS * UNITS)]
    sets, first, k = np.arange(len(words)) % SETS, np.arange(n) < n // 2, max(1, n // 10)
    cosines = (words @ embedded.images[first].T).astype(np.float64)
    cosines = cosines / cosines.std(
        axis=1, ddof=1, keepdims=True
    )  # permutations do not change the spread
    ranked = np.argsort(-(words @ embedded.images[~first].T), axis=1, kind="stable")[:, :k]

    def associations(shape: Ints) -> tuple[Floats, Floats]:
        """SC-EAT and share of round images at the top of each word, permutations x words."""
        is_round = (shape[:, first] == 0).astype(float)
        count = is_round.sum(axis=1, keepdims=True)
        contrast = is_round / count - (1 - is_round) / (is_round.shape[1] - count)
        return contrast @ cosines.T, (shape[:, ~first] == 0)[:, ranked].mean(axis=2)

    shape = embedded.groups["shape"].codes
    intrinsic, extrinsic = associations(shape[None])
    rho = np.asarray(metrics.spearman(intrinsic[0], extrinsic[0], sets))
    permuted = np.stack([rng.permutation(shape) for _ in range(FEW_DRAWS)])
    draws = _spearman_by_set(*associations(permuted))
    # one row: the sets share their images, so they are not independent trials
    return {
        "spearman": MetricReading(
            rho[None], 0.0, None, p_from_null_draws(rho, draws)[None], "doses"
        )
    }


def _spearman_by_set(x: Floats, y: Floats) -> Floats:
    """Spearman's correlation over the words of each set: permutations x words, to x sets."""
    ranks = [rankdata(values.reshape(len(values), -1, SETS), axis=1) for values in (x, y)]
    a, b = (rank - rank.mean(axis=1, keepdims=True) for rank in ranks)
    with np.errstate(invalid="ignore"):  # undefined where all words of a set are equal
        rho = (a * b).sum(axis=1) / np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return np.asarray(rho)


def choices(world: World, n: int, noise: float, rng: np.random.Generator) -> Readings:
    """Images of seven hues classified into six classes, one of them harmful, by PMI + noise."""
    groups, pmi = _hues(n, rng), Oracle(world).pmi("hue")
    rates, truth, p, p_gap = [], [], [], []
    for row, words in enumerate(biased_words("hue", CLASSES * UNITS).reshape(CLASSES, UNITS).T):
        harmful = row % CLASSES
        logits = pmi[words][:, groups.codes] + noise * rng.normal(size=(CLASSES, n))
        is_harmful = logits.argmax(axis=0) == harmful
        rates.append(metrics.group_rates(is_harmful.astype(float), groups))
        other_pmi = np.delete(pmi[words], harmful, axis=0)
        truth.append(pmi[words[harmful]] - np.log(np.exp(other_pmi).mean(axis=0)))
        count = int(is_harmful.sum())
        if count == 0:  # all permutations are the same
            p.append(np.ones(len(HUES)))
            p_gap.append(1.0)
            continue
        p.append(top_count_p(rates[-1] * groups.counts, groups.counts, count))
        null_rates = draw_top_counts(groups.counts, count, DRAWS, rng) / groups.counts
        p_gap.append(
            float(p_from_shared_null(np.ptp(rates[-1]), np.ptp(null_rates, axis=1), "greater"))
        )
    rate, planted = np.array(rates), np.array(truth)
    largest = np.array([metrics.gaps(group_rates).max() for group_rates in rate])
    return {
        "group_rates": MetricReading(
            rate, rate.mean(axis=1, keepdims=True), planted, np.array(p), "classes and groups"
        ),
        "gaps": _column(largest, 0.0, np.ptp(planted, axis=1), np.array(p_gap), "classes"),
    }


def captions(world: World, n: int, noise: float, rng: np.random.Generator) -> Readings:
    """Choice between three captions of a round shape: PMI + noise, lower for the irrelevant one.

    The image shows the shape and no evidence for either of the other two.
    """
    ordered = biased_words("shape", 3 * UNITS).reshape(3, UNITS)
    triplets = np.stack([ordered[2], ordered[0][::-1], ordered[1]], axis=1)
    pmi = Oracle(world).pmi("shape")[triplets, 0]
    against = np.ones(n, dtype=bool)
    values: dict[str, list[Floats]] = {"vlrs": [], "vlbs": [], "ivlas": []}
    p = []
    for logits in pmi - np.array([0.0, 0.0, IRRELEVANT]):
        noisy = logits + noise * rng.normal(size=(n, 3))
        values["vlrs"].append(metrics.vlrs(noisy))
        values["vlbs"].append(metrics.vlbs(noisy, against))
        values["ivlas"].append(metrics.ivlas(noisy, against))
        chosen = caption_choices(noisy)
        p.append(paired_test(chosen[:, 1], chosen[:, 0], rng=rng, draws=FEW_DRAWS).p)
    planted = pmi[:, 0] - pmi[:, 1]  # decreases metrics with an ideal of 100
    return {
        "vlrs": _column(np.array(values["vlrs"]), 100.0, -planted, None, "pairs of words"),
        "vlbs": _column(np.array(values["vlbs"]), 0.0, planted, np.array(p), "pairs of words"),
        "ivlas": _column(np.array(values["ivlas"]), 100.0, -planted, np.array(p), "pairs of words"),
    }


def shifts(world: World, n: int, noise: float, rng: np.random.Generator) -> Readings:
    """Prediction of one of two masked concepts, with and without the shape and its name."""
    ordered = biased_words("shape", 2 * UNITS).reshape(2, UNITS)
    pairs = np.stack([ordered[1], ordered[0][::-1]], axis=1)
    oracle, mask = Oracle(world), shape_mask(np.array([0]))
    posteriors = {
        "both": oracle.posterior(image=mask, text=mask),
        "image": oracle.posterior(image=mask),
        "none": oracle.posterior(),
    }
    kinds = {"lmss": ("both", "image"), "vlss": ("image", "none"), "shift_score": ("both", "none")}
    pmi = oracle.pmi("shape")[pairs, 0]
    planted, readings = pmi[:, 0] - pmi[:, 1], {}
    for name, conditions in kinds.items():
        value, p = [], []
        for pair in pairs:
            before, after = (
                np.log(posteriors[condition][0, pair]) + noise * rng.normal(size=(n, 2))
                for condition in conditions
            )
            values = metrics.METRICS[name](before, after)
            value.append(values.mean())
            p.append(_p_of_mean(values, rng))
        readings[name] = _column(np.array(value), 0.0, planted, np.array(p), "pairs of words")
    return readings


def masked(world: World, n: int, noise: float, rng: np.random.Generator) -> Readings:
    """Prediction of a masked target word, given a scene and the same scene with the other shape.

    The bias concept is the shape named in the caption.
    """
    oracle, both = Oracle(world), shape_mask(np.array([0, 1]))
    words = biased_words("shape", UNITS, among_targets=True)
    columns = np.searchsorted(world.targets, words)
    target = np.log(oracle.posterior(image=both, among=world.targets))  # shapes x targets
    shape_of_word = world.word_given_concept @ membership("shape")
    named = (1 - WORD_OF_ITS_OWN) * np.eye(2) + WORD_OF_ITS_OWN * oracle.posterior(
        image=both
    ) @ shape_of_word
    shape = rng.permutation(np.arange(n) % 2)
    t, b = [], []
    for shown in (shape, 1 - shape):  # factual, counterfactual
        logits = target[shown] + noise * rng.normal(size=(n, target.shape[1]))
        weight = np.exp(logits - logits.max(axis=1, keepdims=True))
        t.append((weight / weight.sum(axis=1, keepdims=True))[:, columns])
        p_named = named[shown, shape]
        odds = np.log(p_named / (1 - p_named)) + noise * rng.normal(size=n)
        b.append(1 / (1 + np.exp(-odds)))
    return masked_readings(world, words, t, b, shape == 0, rng)


def masked_readings(
    world: World, words: Ints, t: Sequence[Floats], b: Sequence[Floats], first: Ints,
    rng: np.random.Generator,
) -> Readings:  # fmt: skip
    """Readings from probabilities, factual and counterfactual.

    `t` has those of the words, images x words, `b` those of the name of the factual shape; `first`
    says whether that is the first shape.
    """
    pmi = Oracle(world).pmi("shape")[words]
    planted = pmi[:, 0] - pmi[:, 1]
    one_way, p_one_way, directed, p_directed = [], [], [], []
    for word in range(len(words)):
        bias = metrics.counterfactual_bias(t[0][:, word], t[1][:, word], b[0], b[1])
        known = ~np.isnan(bias)
        one_way.append(bias[known & first].mean())
        p_one_way.append(_p_of_mean(bias[known & first], rng))
        directed.append(metrics.directed_bias(bias, first))
        p_directed.append(_p_of_mean((bias * np.where(first, 1, -1))[known], rng))
    return {
        "counterfactual_bias": _column(np.array(one_way), 0.0, planted, np.array(p_one_way)),
        "directed_bias": _column(np.array(directed), 0.0, planted, np.array(p_directed)),
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
    "lift": lifts,
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
def _words_by_bias(attribute: str, among_targets: bool) -> Ints:
    """Words with a planted bias by this attribute, ordered by association with its first group.

    Neutral words, and words biased only by an intersection of attributes, are left out.
    """
    world = World.plant(1.0)
    association = np.log(_group_given_concept(world, attribute))
    association = association - association.mean(axis=1, keepdims=True)
    words = np.flatnonzero(np.abs(association).max(axis=1) > 1e-6)
    if among_targets:
        words = np.intersect1d(words, world.targets)
    return np.asarray(words[np.argsort(association[words, 0], kind="stable")])


def biased_words(attribute: str, count: int, *, among_targets: bool = False) -> Ints:
    """`count` words evenly spread over the sizes of their bias, the same at every dose.

    >>> len(set(biased_words("hue", 20).tolist()))
    20
    """
    words = _words_by_bias(attribute, among_targets)
    return np.asarray(words[np.linspace(0, len(words) - 1, count).astype(int)])


def _group_given_concept(world: World, attribute: str) -> Floats:
    """P(group | concept), concepts x groups of the attribute."""
    return np.asarray(world.given_concept @ membership(attribute))


def _crossed(n: int, rng: np.random.Generator) -> Ints:
    """Intersectional groups of n images, as balanced as possible."""
    return rng.permutation(np.arange(n) % len(GROUPS))


def _hues(n: int, rng: np.random.Generator) -> Groups:
    return Groups(_crossed(n, rng) % len(HUES), HUES, "hue")


def _column(
    values: Floats, ideal: float, truth: Floats, p: Floats | None, over: str = "words"
) -> MetricReading:
    """A reading with one value per unit."""
    return MetricReading(
        values[:, None], ideal, truth[:, None], None if p is None else p[:, None], over
    )


def _p_of_mean(values: Floats, rng: np.random.Generator) -> float:
    """p of a sign-flip test that the mean is 0."""
    return paired_test(np.zeros(len(values)), values, rng=rng, draws=FEW_DRAWS).p
