"""Lift of words in captions against lift in a model: one unit, one slope, and its ceiling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.corpus.caption_lift import EXPECTED
from tiltmeter.corpus.counting import CaptionCounts
from tiltmeter.corpus.estimates import PROBE, contained_signs, lift_of
from tiltmeter.errors import InputError
from tiltmeter.metrics.group_lift import lift_of_group_scores
from tiltmeter.metrics.propagation import spearman_rows
from tiltmeter.probes.lift.rows import SPREAD_UNIT
from tiltmeter.results import Run, combined, rows
from tiltmeter.stats.intervals import Z
from tiltmeter.stats.noisy_slope import noisy_slope
from tiltmeter.stimuli import Word
from tiltmeter.types import Floats, Ints

FEWEST_WORDS = 10
FEWEST_CAPTIONS = 100  # that name a group
DRAWS = 1000
METHOD = "bootstrap over words"
TRY = "make one with `tiltmeter audit MODEL --images SPEC --probe lift --out RUN`"
#: Names of groups in datasets, and the names of the same groups in captions.
NAMES = {
    "man": "male", "men": "male", "m": "male", "boy": "male",
    "woman": "female", "women": "female", "f": "female", "girl": "female",
    "caucasian": "white", "african american": "black", "latino": "latino hispanic",
    "hispanic": "latino hispanic", "south asian": "indian",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class ModelLift:
    """Lift of one model by one attribute, from the rows of a run."""

    model: str
    images: str
    attribute: str
    scores: str  # which head: "contrastive", "masked"; "" where the run does not say
    groups: Sequence[str]
    words: Sequence[Word]  # with the class that they were judged in as part of speech
    value: Floats  # words x groups
    ceiling: dict[str, dict[str, Any]]  # group -> its row of the metric visibility


def model_lifts(run: Run) -> list[ModelLift]:
    """Lift of every word in a run, by model, images, attribute and kind of score.

    Raises
    ------
    InputError
        The run has no lift.
    """
    found: dict[tuple[str, ...], dict[Word, dict[str, float]]] = {}
    measured = run.where(metric="lift")
    for row in measured:
        if row["concept"] is None or row["value"] is None or SPREAD_UNIT in (row["note"] or ""):
            continue
        scores, _, pos = (row["experiment"] or "").rpartition(": ")
        key = (row["model"], row["dataset"], row["attribute"], scores)
        word = Word(row["concept"], pos, row["category"] or "")
        found.setdefault(key, {}).setdefault(word, {})[row["group"]] = row["value"]
    if not found:
        reasons = "; ".join(sorted({row["note"] for row in measured if row["note"]}))
        raise InputError(f"the run has no lift of words{f' ({reasons})' * bool(reasons)}: {TRY}")
    seen = [row for row in run.where(metric="visibility") if row["value"] is not None]
    lifts = []
    for (model, images, attribute, scores), words in found.items():
        groups = list(next(iter(words.values())))
        value = np.array([[by[group] for group in groups] for by in words.values()])
        # one nat of another head is not the nat of the texts that visibility was measured with
        ceiling = {row["group"]: row for row in seen
                   if (row["model"], row["dataset"], row["attribute"]) == (model, images, attribute)
                   and scores in ("", row["experiment"] or "contrastive")}  # fmt: skip
        lifts.append(
            ModelLift(model, images, attribute, scores, groups, list(words), value, ceiling)
        )
    return lifts


def listed_words(run: Run) -> list[Word]:
    """The words whose lift a run has, once each."""
    words = (word for lift in model_lifts(run) for word in lift.words)
    first = {word.text: word for word in reversed(list(words))}
    return [Word(one.text, one.pos if one.pos in ("noun", "adjective") else "", one.category)
            for one in reversed(first.values())]  # fmt: skip


def compare_with_model(
    counts: CaptionCounts, neutral: Sequence[Word], run: Run, *, dataset: str, seed: int
) -> pa.Table:
    """Slope of the model's lift on that of the captions, with its ceiling, over words.

    Metrics: `caption_lift` and `model_lift` of each word; `slope`, `ceiling`, `slope_of_ceiling`
    and `spearman`. With two groups one mirrors the other, so there is one slope; with more, one
    for each group.

    Raises
    ------
    InputError
        The run has no lift, or no two groups of it are named by the counted group words.
    """
    lifts = model_lifts(run)
    tables: list[pa.Table] = []
    for lift in lifts:
        for axis, signs, at in _matches(counts, lift):
            same = {"probe": PROBE, "model": lift.model, "dataset": dataset, "split": lift.images,
                    "experiment": f"{lift.scores}: {axis}" if lift.scores else axis,
                    "attribute": lift.attribute, "seed": seed}  # fmt: skip
            rng = np.random.default_rng([seed, len(tables)])
            tables.append(_compare(counts, neutral, lift, signs, at, same, rng))
    if not tables:
        groups = sorted({group for lift in lifts for group in lift.groups})
        known = sorted({sign.group for sign in counts.vocabulary.signs})
        raise InputError(
            f"captions are searched for {', '.join(known)}, and the run has the groups "
            f"{', '.join(groups)}: two groups must have the same names; --groups FILE takes other "
            "group words",
            value=groups,
        )
    return combined(tables)


def _matches(counts: CaptionCounts, lift: ModelLift) -> Iterator[tuple[str, Ints, Ints]]:
    """Axes of group words that name at least two groups of the run: signs, and the run's groups."""
    own = {_plain(group): at for at, group in enumerate(lift.groups)}
    vocabulary = counts.vocabulary
    for axis in vocabulary.axes:
        named = {sign: _plain(vocabulary.signs[sign].group) for sign in vocabulary.signs_of(axis)}
        pairs = [(sign, own[group]) for sign, group in named.items() if group in own]
        if len(pairs) > 1:
            yield axis, *np.array(pairs).T


def _plain(group: str) -> str:
    name = group.lower().replace("_", " ").replace("/", " ")
    return NAMES.get(name, name)


def _compare(
    counts: CaptionCounts, neutral: Sequence[Word], lift: ModelLift, signs: Ints, at: Ints,
    same: dict[str, Any], rng: np.random.Generator,
) -> pa.Table:  # fmt: skip
    """Rows of one attribute and one kind of group words."""
    vocabulary = counts.vocabulary
    named = counts.exclusive[-1, signs]
    often = named >= FEWEST_CAPTIONS
    names = [vocabulary.signs[sign].group for sign in signs]
    few = [name for name, enough in zip(names, often, strict=True) if not enough]
    if often.sum() < 2:
        reason = (
            f"fewer than {FEWEST_CAPTIONS} captions name each of {', '.join(names)} by a "
            f"{vocabulary.signs[signs[0]].axis} word: "
            + ", ".join(f"{name} {n:,}" for name, n in zip(names, named, strict=True))
        )
        return rows(1, **same, metric="slope", value=np.nan, note=reason)
    signs, at = signs[often], at[often]
    number = {term: row for row, term in enumerate(vocabulary.terms)}
    self_named = np.asarray(contained_signs(vocabulary)[:, signs].any(axis=1))
    # a word in two categories is one word
    row_of = {word.text: row for row, word in enumerate(lift.words) if word.text in number}
    listed = [row for text, row in row_of.items() if not self_named[number[text]]]
    terms = np.array([number[lift.words[row].text] for row in listed], int)
    data = lift_of(counts, signs, terms, neutral)
    # a lift is k / (k - 1) times the group's score off the mean of all: so scores of some groups
    scores = lift.value[listed][:, at]
    model = np.asarray(lift_of_group_scores(scores, np.zeros((1, len(at)))))
    k, all_groups = len(at), len(lift.groups)
    model *= (all_groups - 1) / all_groups
    data_words = [lift.words[row] for row in np.array(listed, int)[data.often]]
    classes = np.unique([word.pos for word in data_words], return_inverse=True)[1]
    left_out = f"left out, named by fewer than {FEWEST_CAPTIONS} captions: {', '.join(few)}"
    notes = [left_out] if few else []
    if len(at) < all_groups:
        notes.append(f"the ceiling is for all {all_groups} groups of the run")
    tables = []
    for column in range(k) if k > 2 else [k - 1]:
        x, error, y = (
            table[data.often, column] for table in (data.value, data.expected_error, model)
        )
        group = {**same, "group": vocabulary.signs[signs[column]].group}
        constants = {**group, "concept": [word.text for word in data_words],
                     "category": [word.category or None for word in data_words]}  # fmt: skip
        half = Z * data.error[data.often, column]
        tables.append(
            rows(len(x), **constants, metric="caption_lift", value=x, ideal=0.0, ci_low=x - half,
                 ci_high=x + half, ci_method="wald")
        )  # fmt: skip
        tables.append(rows(len(y), **constants, metric="model_lift", value=y, ideal=0.0))
        ceiling = lift.ceiling.get(lift.groups[at[column]])
        tables.append(_slope_rows(x, error**2, y, classes, ceiling, group, notes, rng))
    return combined(tables)


def _slope_rows(
    x: Floats, variance: Floats, y: Floats, classes: Ints, ceiling: dict[str, Any] | None,
    same: dict[str, Any], notes: list[str], rng: np.random.Generator,
) -> pa.Table:  # fmt: skip
    """Slope, ceiling, their ratio, and Spearman's correlation."""
    n = len(x)
    limit = {"value": np.nan, "ci_low": np.nan, "ci_high": np.nan, **(ceiling or {})}
    if ceiling is None:
        unknown = "the ceiling is unknown: the run does not say how well the model sees this group"
        notes = [*notes, unknown]
    else:
        notes = [*notes, f"the ceiling is {limit['value']:.3f}"]
    slope = noisy_slope(x, variance, y, classes) if n else np.array([np.nan])
    if n < FEWEST_WORDS:
        reason = (
            f"a slope needs at least {FEWEST_WORDS} words of the run that occur in captions which "
            f"name a group, {EXPECTED} or more expected with each group; got {n}: use more "
            "captions, or a run with words that they contain"
        )
    elif np.isnan(slope[0]):
        reason = "words in the captions differ between groups by no more than their counts vary"
    else:
        reason = ""
    if reason:
        return rows(1, **same, metric="slope", value=np.nan, n=n, note="; ".join([reason, *notes]))
    weights = rng.multinomial(n, np.full(n, 1 / n), DRAWS)
    slopes = noisy_slope(x, variance, y, classes, weights)
    picks = np.repeat(np.tile(np.arange(n), DRAWS), weights.ravel()).reshape(DRAWS, n)
    c, error = limit["value"], (limit["ci_high"] - limit["ci_low"]) / 3.92
    if not limit["ci_low"] > 0:  # a model that may see nothing has no ratio
        c = np.nan
    ceilings = c + error * rng.normal(size=DRAWS)
    found = {
        "slope": (slope[0], slopes),
        "slope_of_ceiling": (slope[0] / c, slopes / ceilings),
        "spearman": (spearman_rows(x[None], y[None])[0], spearman_rows(x[picks], y[picks])),
    }
    tables = [
        rows(1, **same, metric="ceiling", value=limit["value"], ci_low=limit["ci_low"],
             ci_high=limit["ci_high"], ci_method="images only", n=limit.get("n"),
             note="; ".join(notes) if ceiling is None else limit["note"])
    ]  # fmt: skip
    for metric, (value, drawn) in found.items():
        known = np.isfinite(drawn).mean() >= 0.95
        low, high = np.nanquantile(drawn, (0.025, 0.975)) if known else (np.nan, np.nan)
        why = []
        if np.isnan(value) and metric == "spearman":
            why = ["the model's lift does not vary over words"]
        elif np.isnan(value) and ceiling is not None:
            why = ["the model may not see the group at all, so there is no ratio"]
        elif not known and not np.isnan(value):
            why = ["no interval: it is undefined in more than 5% of resamples"]
        tables.append(
            rows(1, **same, metric=metric, value=value, ci_low=low, ci_high=high,
                 ci_method=METHOD, n=n, note="; ".join([*notes, *why]))
        )  # fmt: skip
    return combined(tables)
