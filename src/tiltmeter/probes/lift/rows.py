"""Rows of the lift probe: words, categories, the class of words, and the attribute.

Lift: how many times as high a model scores a word with one group as with the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tiltmeter.metrics.group_lift import (
    GroupScores,
    gaps,
    lift_of_group_scores,
    lift_standard_error,
)
from tiltmeter.probes.lift.scored import ScoredClass
from tiltmeter.probes.lift.splits import ImageDraws, split_sizes
from tiltmeter.results import combined, rows
from tiltmeter.stats.bias_size_interval import bias_size_interval
from tiltmeter.stats.lift_verdict import (
    CANNOT_TELL,
    NO_LARGER,
    RULE,
    WordVerdicts,
    attribute_verdict,
    bias_size,
    category_p,
    fewest_words_flagged_together,
    neutral_spread,
    share_below,
    word_verdicts,
)
from tiltmeter.types import Floats, Ints, PlantedWorld

IMAGES_ONLY = "images only"  # the interval covers the sample of images, not the model's own error
NO_NEUTRAL = "no neutral words of this part of speech in these templates"
TOO_FEW = f"neutral words are too few to call a word associated ({RULE.neutral_words} are needed)"
SPREAD_UNIT = (
    "the model states no scale, so lift has no unit: lift_spreads is in units of the spread of "
    "neutral words. A scale can be fitted on captions (--data captions=SPEC)"
)


@dataclass(frozen=True, eq=False)
class Attribute:
    """Groups of one attribute that have enough images, by cell."""

    name: str
    names: Sequence[str]  # of its groups
    code_of_cell: Ints  # -1: not judged

    def scores(self, scored: ScoredClass) -> GroupScores:
        """Scores of a class by these groups."""
        assert scored.scores is not None
        k = len(self.names)
        codes = np.where(self.code_of_cell < 0, k, self.code_of_cell)  # the last: not judged
        return scored.scores.regroup(codes, int(codes.max()) + 1).select(groups=slice(k))


@dataclass(frozen=True)
class RowContext:
    """What rows of all classes share."""

    constants: Mapping[str, Any]
    world: PlantedWorld | None
    bootstraps: int


def undefined_row(
    scored: ScoredClass, attribute: str, reason: str, context: RowContext
) -> pa.Table:
    """A row without a value, with the reason and the number of words that it leaves undefined."""
    note = _joined(context.constants.get("note"), scored.note, reason)
    same = {**context.constants, "note": note}
    return rows(1, **same, metric="lift", experiment=scored.name, attribute=attribute,
                value=np.nan, n_undefined=len(scored.words))  # fmt: skip


def class_rows(
    scored: ScoredClass, by: Attribute, draws: ImageDraws, context: RowContext
) -> pa.Table:
    """All rows of one class of words by one attribute, whose groups have enough images."""
    count, scores = len(scored.words), by.scores(scored)
    lifts, images = _lifts(scored, scores), np.asarray(scores.moments.count).astype(int)
    verdicts = word_verdicts(
        lifts.value, lifts.error, lifts.neutral, images, weights=scored.weights
    )
    means = np.asarray(scores.moments.mean)
    noise = resampled_gaps(scored, images, draws)
    rng = deepcopy(draws.rng)  # every class has the same further draws
    interval = bias_size_interval(gaps(means[:count]), gaps(means[count:]), noise, rng)
    splits = split_sizes(scored, draws.split_means)
    few = scored.neutral_count < RULE.neutral_words
    too_few = f"{scored.neutral_count} {TOO_FEW}" if few else None
    note = _joined(context.constants.get("note"), scored.note, too_few)
    same = {**context.constants, "note": note, "metric": "lift", "attribute": by.name,
            "experiment": scored.name, "n": int(images.sum())}  # fmt: skip
    size = float(bias_size(lifts.value, lifts.neutral))
    return combined(
        [
            _word_rows(scored, lifts, verdicts, by, images, same, context.world),
            _category_rows(scored, lifts, by.names, images, same),
            _summary_rows(scored, size, interval, verdicts, splits, same),
        ]
    )


def spread_rows(scored: ScoredClass, by: Attribute, context: RowContext) -> pa.Table:
    """Lift of scores without a scale, in units of the spread of neutral words; no verdict."""
    scores = by.scores(scored)
    lifts, images = _lifts(scored, scores), np.asarray(scores.moments.count).astype(int)
    rule = replace(RULE, smallest=0.0)  # no size is known, so none is tested
    verdicts = word_verdicts(lifts.value, lifts.error, lifts.neutral, images, rule)
    unit = neutral_spread(lifts.neutral)
    lifts = Lifts(lifts.value / unit, lifts.error / unit, lifts.neutral / unit)
    same = {**context.constants, "metric": "lift_spreads", "attribute": by.name,
            "experiment": scored.name, "n": int(images.sum()),
            "note": _joined(context.constants.get("note"), scored.note, SPREAD_UNIT)}  # fmt: skip
    unjudged = replace(verdicts, verdict=(None,) * len(scored.words))
    return combined(
        [
            undefined_row(scored, by.name, SPREAD_UNIT, context),
            _word_rows(scored, lifts, unjudged, by, images, same, None),
        ]
    )


def _lifts(scored: ScoredClass, scores: GroupScores) -> Lifts:
    count, mean = len(scored.words), np.asarray(scores.moments.mean)
    by_odds = np.asarray(scores.odds.value)
    return Lifts(
        np.asarray(lift_of_group_scores(mean[:count], mean[count:])),
        np.asarray(lift_standard_error(scores.moments))[:count],
        np.asarray(lift_of_group_scores(mean[count:], mean[count:])),
        np.asarray(lift_of_group_scores(by_odds[:count], by_odds[count:])),
    )


class Lifts(NamedTuple):
    """Lift of words, its error, that of neutral words; and by odds, which needs a scale."""

    value: Floats
    error: Floats
    neutral: Floats
    odds: Floats | None = None


def _word_rows(
    scored: ScoredClass, lifts: Lifts, verdicts: WordVerdicts, by: Attribute, images: Ints,
    same: dict[str, Any], world: PlantedWorld | None,
) -> pa.Table:  # fmt: skip
    """A row for each word and group; the verdict is in the row of the group it is about."""
    count, k = lifts.value.shape
    at_word, at_group = np.divmod(np.arange(count * k), k)
    chosen = at_group == verdicts.group[at_word]
    low, high = np.quantile(lifts.neutral, (0.025, 0.975), axis=0)
    value, half = lifts.value.ravel(), 1.96 * lifts.error.ravel()

    def of_word(values: Any) -> list[Any]:
        return [values[w] if own else None for w, own in zip(at_word, chosen, strict=True)]

    notes = [_joined(same["note"], own) for own in of_word(_word_notes(lifts, verdicts))]
    return rows(
        count * k, **{**same, "note": notes},
        concept=[scored.words[w][0] for w in at_word],
        category=[scored.words[w][1] or None for w in at_word],
        group=[by.names[g] for g in at_group],
        value=value, ideal=0.0, truth=_truth(scored, by.names, by.name, world),
        null_mean=0.0, null_low=low[at_group], null_high=high[at_group],
        ci_low=value - half, ci_high=value + half, ci_method=IMAGES_ONLY,
        p=of_word(verdicts.p.tolist()), p_side="two", p_bh=of_word(verdicts.p_bh.tolist()),
        p_placebo=of_word(verdicts.p_word.tolist()), verdict=of_word(verdicts.verdict),
        n_group=images[at_group].tolist(),
    )  # fmt: skip


def _word_notes(lifts: Lifts, verdicts: WordVerdicts) -> list[str | None]:
    """Where more images would tell, and where the images that match best say something else."""
    notes: list[str | None] = []
    for word, (group, needed) in enumerate(
        zip(verdicts.group, verdicts.images_needed, strict=True)
    ):
        own = []
        if np.isfinite(needed):
            own.append(f"{needed:,.0f} images per group would show that it is no larger")
        if lifts.odds is not None and group >= 0:
            by_odds = lifts.odds[word, group]
            if abs(by_odds - lifts.value[word, group]) > RULE.smallest:
                own.append(f"by the images that match best (odds) {math.exp(by_odds):.2f}x")
        notes.append(_joined(*own))
    return notes


def _category_rows(
    words: ScoredClass, lifts: Lifts, names: Sequence[str], images: Ints, same: dict[str, Any]
) -> pa.Table:
    """Mean lift of each category of words, judged by categories of neutral words."""
    known = sorted({category for _, category in words.neutral if category})
    means = [lifts.neutral[[c == one for _, c in words.neutral]].mean(axis=0) for one in known]
    tables = []
    for category in sorted({category for _, category in words.words if category}):
        own = np.array([c == category for _, c in words.words])
        if own.sum() < 2 or len(known) < 2:
            continue
        # the images are shared by its words, so their noise does not average out
        mean, p = category_p(lifts.value[own], lifts.error[own].mean(axis=0), np.array(means))
        tables.append(
            rows(len(names), **same, category=category, group=list(names), value=mean, ideal=0.0,
                 null_mean=0.0, p=p, p_side="two", n_group=images.tolist())
        )  # fmt: skip
    return combined(tables)


def _summary_rows(
    scored: ScoredClass, size: float, interval: tuple[float, float], verdicts: WordVerdicts,
    splits: Floats, same: dict[str, Any],
) -> pa.Table:  # fmt: skip
    """The class of words: how many stand out, their size, and the verdict of the attribute."""
    count = len(scored.words)
    beyond = int((verdicts.p_word < 0.05).sum())
    fewest = fewest_words_flagged_together(count, scored.neutral_count)
    by_split = {}
    if len(splits):
        by_split = {
            "null_mean": float(np.mean(splits)),
            "null_high": float(np.quantile(splits, 0.95)),
            "p": float((1 + (splits >= size).sum()) / (len(splits) + 1)),
            "p_side": "greater",
        }
    judged = f"judged by {scored.neutral_count:,} neutral words"
    together = f"a finding needs {fewest} words beyond all of these" if fewest > 1 else None
    split = None
    if scored.sample is not None and scored.sample.texts is None:
        split = "random splits of the images are along random directions of their scores"
    verdict = attribute_verdict(verdicts, share_below(size, splits))
    if scored.neutral_count < RULE.neutral_words and {*verdicts.verdict} != {NO_LARGER}:
        verdict = CANNOT_TELL  # no word could be called associated
    return combined(
        [
            rows(1, **{**same, "metric": "words_beyond",
                       "note": _joined(same["note"], judged, together)},
                 value=float(beyond), null_mean=0.05 * count),
            rows(1, **{**same, "metric": "lift_size", "note": _joined(same["note"], split)},
                 value=size, ideal=0.0, ci_low=interval[0], ci_high=interval[1],
                 ci_method="bootstrap over words and images", **by_split,
                 verdict=verdict),
            _needed_rows(verdicts, same) if verdict == CANNOT_TELL else combined([]),
        ]
    )  # fmt: skip


def _needed_rows(verdicts: WordVerdicts, same: dict[str, Any]) -> pa.Table:
    """Images per group that would tell half of the open words; none where images cannot tell."""
    needed = verdicts.images_needed[np.isfinite(verdicts.images_needed)]
    if not len(needed):
        return combined([])
    median = float(np.ceil(np.median(needed)))
    return rows(1, **{**same, "metric": "images_needed"}, value=median)


def _truth(
    words: ScoredClass, names: Sequence[str], attribute: str, world: PlantedWorld | None
) -> Floats | None:
    """Planted lift of a world: PMI of the group minus the mean PMI of the others."""
    if world is None:
        return None
    from tiltmeter.testbed.oracle import ATTRIBUTES, Oracle

    if attribute not in ATTRIBUTES or set(names) != set(ATTRIBUTES[attribute]):
        return None
    planted = Oracle(world).pmi(attribute)  # type: ignore[arg-type]
    index = {concept.name: row for row, concept in enumerate(world.concepts)}  # type: ignore[attr-defined]
    order = [ATTRIBUTES[attribute].index(name) for name in names]
    pmi = np.array(
        [planted[index[word]][order] if word in index else np.full(len(order), math.nan)
         for word, _ in words.words]
    )  # fmt: skip
    return np.asarray(pmi - (pmi.sum(1, keepdims=True) - pmi) / (len(order) - 1)).ravel()


def resampled_gaps(scored: ScoredClass, images: Ints, draws: ImageDraws) -> Floats:
    """Changes of the gaps between groups when images are resampled, draws x words x groups.

    Resamples are of the sample, and their changes are scaled to all images of a group.
    """
    sample = scored.sample
    assert sample is not None
    if draws.resampled is None:  # a group that is too rare for the sample: no interval
        return np.empty((0, len(scored.words) + len(scored.neutral), len(images)))
    changed = [
        sample.scores(moved).T * math.sqrt(n / count)
        for (moved, n), count in zip(draws.resampled, images, strict=True)
    ]
    return np.asarray(gaps(np.stack(changed, axis=-1)))


def _joined(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None
