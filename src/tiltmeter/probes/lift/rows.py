"""Rows of the lift probe: words, categories, the class of words, and the attribute."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.metrics.group_lift import lift_of_group_scores, lift_standard_error
from tiltmeter.metrics.summary import Moments
from tiltmeter.results import combined, rows
from tiltmeter.stats.lift_verdict import (
    RULE,
    WordVerdicts,
    attribute_verdict,
    bias_size,
    category_p,
    fewest_found,
    share_below,
    word_verdicts,
)
from tiltmeter.types import Floats, PlantedWorld

IMAGES_ONLY = "images only"  # the interval covers the sample of images, not the model's own error


@dataclass(frozen=True, eq=False)
class WordClass:
    """Words of one part of speech, and the neutral words that they are judged by."""

    pos: str
    words: Sequence[tuple[str, str]]  # (concept, category)
    neutral: Sequence[tuple[str, str]]
    texts: Floats  # (words, then neutral words) x dimensions; a product with an image is a score


def class_rows(
    words: WordClass, moments: Moments, names: Sequence[str], attribute: str, splits: Floats,
    world: PlantedWorld | None, constants: Mapping[str, Any], bootstraps: int,
    rng: np.random.Generator,
) -> pa.Table:  # fmt: skip
    """All rows of one class of words by one attribute, whose groups have enough images."""
    count = len(words.words)
    neutral = np.asarray(lift_of_group_scores(moments.mean[count:], moments.mean[count:]))
    value = np.asarray(lift_of_group_scores(moments.mean[:count], moments.mean[count:]))
    errors = np.asarray(lift_standard_error(moments))
    images = np.asarray(moments.count).astype(int)
    verdicts = word_verdicts(value, errors[:count], neutral, images)
    same = {**constants, "metric": "lift", "attribute": attribute, "experiment": words.pos}
    return combined(
        [
            _word_rows(words, value, errors[:count], neutral, verdicts, names, images, world, same),
            _category_rows(words, value, errors[:count], neutral, names, images, same),
            _summary_rows(words, value, errors, neutral, verdicts, splits, images, same,
                          bootstraps, rng),
        ]
    )  # fmt: skip


def _word_rows(
    words: WordClass, value: Floats, error: Floats, neutral: Floats, verdicts: WordVerdicts,
    names: Sequence[str], images: Any, world: PlantedWorld | None, same: dict[str, Any],
) -> pa.Table:  # fmt: skip
    """A row for each word and group; the verdict is in the row of the group it is about."""
    count, k = value.shape
    at_word, at_group = np.divmod(np.arange(count * k), k)
    chosen = at_group == verdicts.group[at_word]
    low, high = np.quantile(neutral, (0.025, 0.975), axis=0)
    half = 1.96 * error.ravel()

    def of_word(values: Any) -> list[Any]:
        return [values[w] if own else None for w, own in zip(at_word, chosen, strict=True)]

    few = len(words.neutral) < RULE.neutral_words
    note = f"{len(words.neutral)} neutral words are too few for a verdict" if few else None
    return rows(
        count * k, **{**same, "note": _joined(same.get("note"), note)},
        concept=[words.words[w][0] for w in at_word],
        category=[words.words[w][1] or None for w in at_word],
        group=[names[g] for g in at_group],
        value=value.ravel(), ideal=0.0, truth=_truth(words, names, same["attribute"], world),
        null_mean=0.0, null_lo=low[at_group], null_hi=high[at_group],
        ci_low=value.ravel() - half, ci_high=value.ravel() + half, ci_method=IMAGES_ONLY,
        p=of_word(verdicts.p.tolist()), p_side="two", p_bh=of_word(verdicts.p_bh.tolist()),
        p_placebo=of_word(verdicts.p_word.tolist()), verdict=of_word(verdicts.verdict),
        n=int(images.sum()), n_group=images[at_group].tolist(),
    )  # fmt: skip


def _category_rows(
    words: WordClass, value: Floats, error: Floats, neutral: Floats, names: Sequence[str],
    images: Any, same: dict[str, Any],
) -> pa.Table:  # fmt: skip
    """Mean lift of each category of words, judged by categories of neutral words."""
    known = sorted({category for _, category in words.neutral if category})
    means = [neutral[[c == known_ for _, c in words.neutral]].mean(axis=0) for known_ in known]
    tables = []
    for category in sorted({category for _, category in words.words if category}):
        own = np.array([c == category for _, c in words.words])
        if own.sum() < 2 or len(known) < 2:
            continue
        # the images are shared by its words, so their noise does not average out
        mean, p = category_p(value[own], error[own].mean(axis=0), np.array(means))
        tables.append(
            rows(len(names), **same, category=category, group=list(names), value=mean, ideal=0.0,
                 null_mean=0.0, p=p, p_side="two", n=int(images.sum()), n_group=images.tolist())
        )  # fmt: skip
    return combined(tables)


def _summary_rows(
    words: WordClass, value: Floats, errors: Floats, neutral: Floats, verdicts: WordVerdicts,
    splits: Floats, images: Any, same: dict[str, Any], bootstraps: int, rng: np.random.Generator,
) -> pa.Table:  # fmt: skip
    """The class of words: how many stand out, their spread, the size, and the verdict."""
    n, count = int(images.sum()), len(words.words)
    beyond = int((verdicts.p_word < 0.05).sum())
    fewest = fewest_found(count, len(words.neutral))
    size = bias_size(value, neutral)
    draws = [
        _drawn_size(value, errors[:count], neutral, errors[count:], rng) for _ in range(bootstraps)
    ]
    low, high = np.quantile(draws, (0.025, 0.975)) if draws else (np.nan, np.nan)
    by_split = {}
    if len(splits):
        by_split = {
            "null_mean": float(np.mean(splits)),
            "null_hi": float(np.quantile(splits, 0.95)),
            "p": float((1 + (splits >= size).sum()) / (len(splits) + 1)),
            "p_side": "greater",
        }
    judged = f"judged by {len(words.neutral):,} neutral words"
    together = f"only {fewest} or more can be found together" if fewest > 1 else None
    tables = [
        rows(1, **{**same, "metric": "words_beyond",
                   "note": _joined(same.get("note"), judged, together)},
             value=float(beyond), null_mean=0.05 * count, n=n),
        rows(1, **{**same, "metric": "lift_size"}, value=size, ideal=0.0, n=n, ci_low=low,
             ci_high=high, ci_method="bootstrap of words, images by their error", **by_split,
             verdict=attribute_verdict(verdicts, share_below(size, splits))),
    ]  # fmt: skip
    return combined(tables)


def _drawn_size(
    value: Floats, error: Floats, neutral: Floats, neutral_error: Floats, rng: np.random.Generator
) -> float:
    def drawn(x: Floats, spread: Floats) -> Floats:
        rows_ = rng.integers(0, len(x), len(x))
        return np.asarray(x[rows_] + rng.normal(size=x.shape) * spread[rows_])

    return bias_size(drawn(value, error), drawn(neutral, neutral_error))


def _truth(
    words: WordClass, names: Sequence[str], attribute: str, world: PlantedWorld | None
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


def _joined(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None
