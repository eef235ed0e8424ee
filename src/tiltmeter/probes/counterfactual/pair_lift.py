"""Lift of paired images and texts: how many times as likely a word is with one group.

The paired difference of ln P(word) between the two versions of an image (or of its text, or of
both) takes the place of the gap between groups of the probe `lift`. It is compared with the same
difference of neutral words in the same templates, and judged by the same rule
(`tiltmeter.stats.lift_verdict`). Differences are averaged over templates first; the unit of noise
is the cluster of images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tiltmeter.results import INSTANCES, PLACEBO, combined, rows
from tiltmeter.stats import defined
from tiltmeter.stats.intervals import Z
from tiltmeter.stats.lift_verdict import (
    CANNOT_TELL,
    NO_LARGER,
    RULE,
    WordVerdicts,
    attribute_verdict,
    share_below,
    word_verdicts,
)
from tiltmeter.types import Faces, Floats, Ints

if TYPE_CHECKING:
    from tiltmeter.probes.counterfactual.measuring import CounterfactualQuery, MaskedScores
    from tiltmeter.stats.resampling import Resampling

#: What is swapped, and the part of `MaskedScores.targets` that has it.
SWAPPED = {"image": 1, "text": 2, "both": 3}
NO_NEUTRAL = "the model knows no neutral words of this class: lift is undefined, see log_shift"


@dataclass(frozen=True, eq=False)
class PairedLift:
    """Lift of one class of words, towards the first group, with the clusters behind it."""

    words: Ints  # columns of the query's targets
    neutral: Ints  # columns of its neutral words
    lift: Floats  # words
    error: Floats  # words, through the sample of images
    n: Ints  # clusters of each word
    neutral_lift: Floats
    neutral_error: Floats
    centred: Floats  # clusters x words, NaN where not measured
    neutral_centred: Floats  # clusters x neutral words


def paired_lifts(
    scores: MaskedScores, query: CounterfactualQuery, swapped: str
) -> list[PairedLift]:
    """Lift by class of words; classes without neutral words are left out."""
    if scores.neutral is None:
        return []
    part = SWAPPED[swapped]
    towards = np.where(scores.first, -1.0, 1.0)[:, None]
    moved = towards * (scores.targets[part] - scores.targets[0]).mean(axis=1)
    moved = np.where(scores.asked > 0, moved, np.nan)
    of_neutral = towards * (scores.neutral[part] - scores.neutral[0])
    found = []
    for name in dict.fromkeys(query.classes):
        words = np.flatnonzero([one == name for one in query.classes])
        neutral = np.flatnonzero([one == name for _, one in query.neutral])
        if len(neutral):
            own, reference = moved[:, words], of_neutral[:, neutral]
            common = reference.mean(axis=1, keepdims=True)  # a shift of all words is no bias
            own, reference = (_by_cluster(x - common, scores.clusters) for x in (own, reference))
            middle = np.median(reference.mean(axis=0))
            n = (~np.isnan(own)).sum(axis=0)
            found.append(
                PairedLift(
                    words, neutral, defined.mean(own) - middle, _error(own, n), n,
                    reference.mean(axis=0) - middle,
                    _error(reference, np.full(len(neutral), len(reference))),
                    own - middle, reference - middle,
                )
            )  # fmt: skip
    return found


def paired_size(lift: Floats, error: Floats, neutral: Floats, neutral_error: Floats) -> float:
    """Root mean square of lift beyond that of neutral words, in nats; noise of images taken off.

    sqrt(max(0, mean (lift^2 - error^2) - mean (neutral^2 - neutral_error^2))). Words may be
    measured on fewer images than neutral words, so the noise of each is taken off.

    >>> round(paired_size([0.5, -0.5], [0.0, 0.0], [0.3, -0.3], [0.0, 0.0]), 3)
    0.4
    """
    own, reference = (
        float(defined.mean(np.square(a) - np.square(b)))
        for a, b in ((lift, error), (neutral, neutral_error))
    )
    undefined = math.isnan(own - reference)
    return math.nan if undefined else math.sqrt(max(0.0, own - reference))


def pair_lift_tables(
    scores: MaskedScores, data: Faces, query: CounterfactualQuery, resampling: Resampling,
    rng: np.random.Generator, constants: dict[str, Any],
) -> tuple[pa.Table, pa.Table]:  # fmt: skip
    """Rows by word, the size with a verdict, and what `compare` pairs by image (INSTANCES)."""
    tables, instance_tables = [], []
    for swapped in SWAPPED:
        same = {**constants, "experiment": f"{scores.source}, {swapped}"}
        lifts = paired_lifts(scores, query, swapped)
        if not lifts:
            tables.append(rows(1, **same, metric="pair_lift", value=[np.nan], note=NO_NEUTRAL))
            continue
        for one in lifts:
            tables += _class_rows(one, query, resampling, rng, same)
        for category in (None, PLACEBO):
            table, instances = _mean_rows(lifts, scores, data, category, same)
            tables.append(table)
            instance_tables.append(instances)
    return combined(tables), combined(instance_tables, INSTANCES)


def _class_rows(
    one: PairedLift, query: CounterfactualQuery, resampling: Resampling,
    rng: np.random.Generator, same: dict[str, Any],
) -> list[pa.Table]:  # fmt: skip
    judged = one.n >= RULE.group_images
    verdicts = _verdicts(one, judged)
    low, high = np.quantile(one.neutral_lift, (0.025, 0.975))
    few = f"fewer than {RULE.group_images} pairs: no verdict"
    too_few_neutral = len(one.neutral) < RULE.neutral_words
    note = f"{len(one.neutral)} neutral words are too few to call a word associated"
    by_word = rows(
        len(one.words), **same, metric="pair_lift", ideal=0.0,
        target=[query.targets[at] for at in one.words],
        category=[query.categories[at] for at in one.words],
        group=query.swap.groups[0],
        value=one.lift, null_mean=0.0, null_low=low, null_high=high,
        ci_low=one.lift - Z * one.error, ci_high=one.lift + Z * one.error, ci_method="images only",
        p=_spread(verdicts, "p", judged), p_side="two", p_bh=_spread(verdicts, "p_bh", judged),
        p_placebo=_spread(verdicts, "p_word", judged),
        verdict=_spread(verdicts, "verdict", judged), n=one.n.tolist(),
        note=[(note if too_few_neutral else None) if known else few for known in judged],
    )  # fmt: skip
    neutral = rows(
        len(one.neutral), **same, metric="pair_lift", ideal=0.0, category=PLACEBO,
        target=[query.neutral[at][0] for at in one.neutral], value=one.neutral_lift,
        n=len(one.neutral_centred),
    )  # fmt: skip
    return [by_word, neutral, _size_row(one, query, verdicts, resampling, rng, same)]


def _verdicts(one: PairedLift, judged: Floats) -> WordVerdicts | None:
    if not judged.any():
        return None
    mirror = np.array([1.0, -1.0])  # the two groups mirror each other
    n = int(one.n[judged].min())
    return word_verdicts(
        one.lift[judged, None] * mirror, np.repeat(one.error[judged, None], 2, axis=1),
        one.neutral_lift[:, None] * mirror, np.array([n, n]),
    )  # fmt: skip


def _spread(verdicts: WordVerdicts | None, name: str, judged: Floats) -> list[Any]:
    """A value for each judged word, None for the others."""
    values = iter([] if verdicts is None else list(getattr(verdicts, name)))
    return [next(values) if known else None for known in judged]


def _size_row(
    one: PairedLift, query: CounterfactualQuery, verdicts: WordVerdicts | None,
    resampling: Resampling, rng: np.random.Generator, same: dict[str, Any],
) -> pa.Table:  # fmt: skip
    """The size of lift over a class, compared with pairs whose groups are swapped at random."""
    size = paired_size(one.lift, one.error, one.neutral_lift, one.neutral_error)
    columns = np.concatenate([one.centred, one.neutral_centred], axis=1)
    known, count = ~np.isnan(columns), len(one.words)
    filled = np.where(known, columns, 0.0)
    errors = np.concatenate([one.error, one.neutral_error])

    def sizes(weights: Floats, of: Floats) -> Floats:
        """Sizes of reweighted clusters; `of` divides."""
        with np.errstate(divide="ignore", invalid="ignore"):
            means = (weights @ filled) / of
        means = means - np.median(means[:, count:], axis=1, keepdims=True)
        return np.array([
            paired_size(m[:count], errors[:count], m[count:], errors[count:]) for m in means
        ])  # fmt: skip

    clusters = len(columns)
    flips = rng.choice([-1.0, 1.0], (min(resampling.permutations, 200), clusters))
    splits = sizes(flips, known.sum(axis=0)) if len(flips) else np.empty(0)
    draws = rng.multinomial(clusters, np.full(clusters, 1 / clusters), resampling.bootstraps)
    low = high = math.nan
    if len(draws) and clusters > 1:
        weights = draws.astype(float)
        square = np.square(sizes(weights, weights @ known))
        # basic bootstrap: a mean of squares grows with the noise of resampling
        ends = 2 * size**2 - np.quantile(square, (0.975, 0.025))
        low, high = np.sqrt(np.maximum(0.0, ends))
    verdict = CANNOT_TELL
    if verdicts is not None:
        verdict = attribute_verdict(verdicts, share_below(size, splits))
        few_neutral = len(one.neutral) < RULE.neutral_words
        if few_neutral and {*verdicts.verdict} != {NO_LARGER}:
            verdict = CANNOT_TELL
    null = {}
    if len(splits):
        null = {"null_mean": float(splits.mean()), "null_high": float(np.quantile(splits, 0.95)),
                "p": float((1 + (splits >= size).sum()) / (len(splits) + 1)),
                "p_side": "greater"}  # fmt: skip
    names = dict.fromkeys(query.categories[at] for at in one.words)
    return rows(
        1, **same, metric="pair_lift_size", category="+".join(names), ideal=0.0, value=[size],
        ci_low=low, ci_high=high, ci_method="bootstrap over clusters of images", **null,
        verdict=verdict, n=clusters,
        note=f"judged by {len(one.neutral)} neutral words"
        + (f"; no word has {RULE.group_images} pairs" if verdicts is None else ""),
    )  # fmt: skip


def _mean_rows(
    lifts: list[PairedLift], scores: MaskedScores, data: Faces, category: str | None,
    same: dict[str, Any],
) -> tuple[pa.Table, pa.Table]:  # fmt: skip
    """Mean absolute lift, and the part of each cluster in it (with the signs as they are)."""
    neutral = category == PLACEBO
    lift = np.concatenate([one.neutral_lift if neutral else one.lift for one in lifts])
    values = np.concatenate(
        [one.neutral_centred if neutral else one.centred for one in lifts], axis=1
    )
    known = ~np.isnan(values)
    usable = known.any(axis=0)
    weight = np.sign(lift[usable]) * len(values) / known[:, usable].sum(axis=0)
    parts = np.where(known, values, 0.0)[:, usable] @ weight / usable.sum()
    first_rows = np.unique(scores.clusters, return_index=True)[1]
    table = rows(
        1, **same, metric="mean_abs_pair_lift", category=category, ideal=0.0,
        value=[float(np.abs(lift[usable]).mean())], n=len(values),
    )  # fmt: skip
    instances = rows(
        len(values), INSTANCES, model=same["model"], dataset=same["dataset"],
        experiment=f"mean_abs_pair_lift, {same['experiment']}" + ", neutral" * neutral,
        id=[data.ids[scores.rows[at]] for at in first_rows], score=parts,
    )  # fmt: skip
    return table, instances


def _by_cluster(values: Floats, clusters: Ints) -> Floats:
    """Means over the instances of each cluster, NaN where a cluster has none."""
    codes = np.unique(clusters, return_inverse=True)[1].reshape(-1)
    count = int(codes.max()) + 1
    known = ~np.isnan(values)
    sums, sizes = np.zeros((count, values.shape[1])), np.zeros((count, values.shape[1]))
    np.add.at(sums, codes, np.where(known, values, 0.0))
    np.add.at(sizes, codes, known.astype(float))
    return np.asarray(np.divide(sums, sizes, out=np.full(sums.shape, np.nan), where=sizes > 0))


def _error(by_cluster: Floats, n: Ints) -> Floats:
    """Standard error of means over clusters; NaN for fewer than two."""
    spread = defined.std(by_cluster)
    return np.asarray(np.where(n > 1, spread / np.sqrt(np.maximum(n, 1)), np.nan))
