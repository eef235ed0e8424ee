"""Association: how the size of lift changed, over words and groups, and of neutral words.

Both runs are scored again from their embeddings, on one scale: that of the first run, so that a
change of temperature alone is no change. Where both fitted a scale on the same captions, each is on
its own. Where the runs share images, these are paired.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.judge.gate.change_verdict import mean_change
from tiltmeter.judge.gate.run_embeddings import (
    EmbeddingsUnavailableError,
    RunImages,
    shared_rows,
    vectors_of,
)
from tiltmeter.metrics.group_lift import lift_of_group_scores
from tiltmeter.probes.lift.probe import TEXTS
from tiltmeter.probes.lift.scored import CONTRASTIVE
from tiltmeter.results import PLACEBO, Run
from tiltmeter.stats.intervals import Z
from tiltmeter.stats.lift_verdict import enough_images
from tiltmeter.types import Floats, Ints, intersect

METRIC = "mean_abs_lift"
#: Rows of words and questions that are tested as they are.
HEADS = (("lift", "lift"), ("forced_choice", "choice_lift"))
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class WordTexts:
    """Words of one class and their neutral words, in two runs; a product with an image scores."""

    words: Sequence[tuple[str, str]]  # (concept, category)
    sides: tuple[Floats, Floats]  # before and after: (words, then neutral words) x dimensions


@dataclass(frozen=True, eq=False)
class LiftRuns:
    """Two models on one scale, with their images."""

    classes: Sequence[WordTexts]
    images: tuple[RunImages, RunImages]
    paired: bool  # whether these are the same images
    scale: str = ""  # which one, for readers

    def groups(self, attribute: str) -> tuple[list[str], list[Ints]]:
        """Groups with enough images in both runs, and those of the images; -1: none of them."""
        both = [intersect(run.groups, attribute) for run in self.images]
        counts = [dict(zip(one.names, one.counts.tolist(), strict=True)) for one in both]
        names = [name for name in both[0].names if name in counts[1]]
        enough = enough_images(np.array([min(c[name] for c in counts) for name in names], int))
        names = [names[at] for at in enough]
        place = {name: at for at, name in enumerate(names)}
        codes = [np.array([place.get(n, -1) for n in one.names], int)[one.codes] for one in both]
        return names, codes


def lift_texts(before: Run, after: Run) -> tuple[pa.Table, pa.Table]:
    """Texts that lift scored in both runs; raises `EmbeddingsUnavailableError` if there are none.

    Without them nothing says on which scale a run scored, and two scales are never compared
    unchecked.
    """
    tables = []
    for name, run in (("before", before), ("after", after)):
        if not run.where(probe="lift"):
            raise EmbeddingsUnavailableError(
                f"the run {name} did not measure lift. Audit both with --probe lift"
            )
        if TEXTS not in run.vectors:
            raise EmbeddingsUnavailableError(
                f"the run {name} kept no embeddings, so nothing says on which scale it scored. "
                "Audit both without --no-vectors"
            )
        tables.append(run.vectors[TEXTS])
    return tables[0], tables[1]


def fitted_scales(before: Run, after: Run) -> tuple[float, float] | None:
    """Scales that both runs fitted on the same captions; None if there are none."""
    found = [
        {(row["dataset"], row["n"]): row["value"]
         for row in run.where(probe="lift", metric="logit_scale", experiment="fitted")
         if row["value"] is not None}
        for run in (before, after)
    ]  # fmt: skip
    return next(
        ((value, found[1][key]) for key, value in found[0].items() if key in found[1]), None
    )


def matched_logits(before: Run, after: Run) -> list[tuple[str, float, float]]:
    """How much higher texts that match score than others, in both runs, in their own nats.

    Captions with their own images, and texts that name a group with images of it.
    """
    old, new = (
        {(row["experiment"], row["dataset"], row["attribute"]): row["value"]
         for row in run.where(probe="lift", metric="matched_logit") if row["value"] is not None}
        for run in (before, after)
    )  # fmt: skip
    return [(key[2] or key[0], value, new[key]) for key, value in old.items() if key in new]


def pair_lift(
    tables: tuple[pa.Table, pa.Table],
    images: tuple[RunImages, RunImages],
    *,
    paired: bool,
    fitted: tuple[float, float] | None = None,
    matched: Sequence[tuple[str, float, float]] = (),
) -> LiftRuns:
    """Words and neutral words that both runs scored, on the scale of the first.

    With `fitted` scales, each run is on its own. `matched` (`matched_logits`) is stated for
    readers: another scale, or a model that no longer sees a group, shows in it.

    Raises
    ------
    EmbeddingsUnavailableError
        If they share no words with neutral words.
    """
    columns = ("pos", "role", "concept", "category")
    keys = [list(zip(*(table[name].to_pylist() for name in columns), strict=True))
            for table in tables]  # fmt: skip
    rows = shared_rows(*keys)
    scales = [table["scale"][0].as_py() for table in tables]
    wanted = fitted or (scales[0], scales[0])
    first, second = (
        vectors_of(table["vector"])[selected].astype(float) * (to / scale)
        for table, selected, scale, to in zip(tables, rows, scales, wanted, strict=True)
    )
    shared = [keys[0][row] for row in rows[0]]
    classes = []
    for pos in dict.fromkeys(key[0] for key in shared):
        words, neutral = (
            [at for at, key in enumerate(shared) if key[:2] == (pos, role)]
            for role in ("word", "placebo")
        )
        if words and neutral:
            both = [*words, *neutral]
            named = [(shared[at][2], shared[at][3]) for at in words]
            classes.append(WordTexts(named, (first[both], second[both])))
    if not classes:
        raise EmbeddingsUnavailableError(
            "the two runs share no words with neutral words. Audit both with the same --words"
        )
    said = f"both runs on the scale of the first, {scales[0]:.1f} (the second's is {scales[1]:.1f})"
    if fitted:
        said = (
            f"scales fitted on the same captions, {fitted[0]:.1f} and {fitted[1]:.1f} (audits use "
            "the scale that a model states, so their lifts can differ)"
        )
    if matched:
        per_nat = [to / scale for scale, to in zip(scales, wanted, strict=True)]
        gaps = [f"{name} {round(first * per_nat[0], 1) + 0.0} to "
                f"{round(second * per_nat[1], 1) + 0.0}"
                for name, first, second in matched]  # fmt: skip
        said += (
            "; how much higher texts score with matching images than with others, in nats: "
            + ", ".join(gaps)
        )
    return LiftRuns(classes, images, paired, said)


def association_tests(
    runs: LiftRuns, attributes: Sequence[str], dataset: str | None = None
) -> tuple[list[Row], list[Row]]:
    """The change of mean |lift| by attribute, of words and of neutral words; and lift by word."""
    tests: list[Row] = []
    words: list[Row] = []
    for attribute in attributes:
        names, codes = runs.groups(attribute)
        if len(names) < 2:
            continue
        first, second = (
            _Side.of(runs.classes, at, runs.images[at].images, codes[at], len(names))
            for at in (0, 1)
        )
        same: Row = {
            "probe": "lift", "attribute": attribute, "dataset": dataset, "ideal": 0.0,
            "method": "paired" if runs.paired else "unpaired",
            "n": min(int((one >= 0).sum()) for one in codes),
        }  # fmt: skip
        for at, category in enumerate((None, PLACEBO)):
            error = _image_error((first.parts[at], second.parts[at]), codes, runs.paired)
            change = mean_change(first.lift[at], second.lift[at], error)
            tests.append({**same, "metric": METRIC, "category": category, **change,
                          "note": runs.scale or None})  # fmt: skip
        words += _word_rows(runs, first.lift[0], second.lift[0], names, same)
    return tests, words


@dataclass(frozen=True, eq=False)
class _Side:
    """Lift of one model by one attribute: of words, and of neutral words."""

    lift: tuple[Floats, Floats]  # words x groups
    #: By image: with the signs of lift as they are, mean |lift| is a sum of means of these.
    parts: tuple[Floats, Floats]

    @classmethod
    def of(
        cls, classes: Sequence[WordTexts], side: int, images: Floats, codes: Ints, k: int
    ) -> _Side:
        means = np.stack([images[codes == code].mean(axis=0) for code in range(k)])
        weights = np.full((k, k), -1 / (k - 1))  # of a group in the lift of another
        np.fill_diagonal(weights, 1.0)
        lifts: list[list[Floats]] = [[], []]
        directions = np.zeros((2, k, images.shape[1]))
        for one in classes:
            count, texts = len(one.words), one.sides[side]
            scores = texts @ means.T
            for at, rows in enumerate((slice(count), slice(count, None))):
                lift = np.asarray(lift_of_group_scores(scores[rows], scores[count:]))
                lifts[at].append(lift)
                directions[at] += weights @ np.sign(lift).T @ texts[rows]
        parts = []
        for at, direction in enumerate(directions):
            direction /= sum(lift.size for lift in lifts[at])
            parts.append(np.einsum("nd,nd->n", images, direction[codes]))
        return cls((np.concatenate(lifts[0]), np.concatenate(lifts[1])), (parts[0], parts[1]))


def _image_error(parts: tuple[Floats, Floats], codes: Sequence[Ints], paired: bool) -> float:
    """Standard error of a change through the sample of images, stratified by group."""

    def variance(values: Floats, of: Ints) -> float:
        groups = (values[of == code] for code in range(int(of.max()) + 1))
        return float(sum(own.var(ddof=1) / len(own) for own in groups))

    if paired:
        return math.sqrt(variance(parts[1] - parts[0], codes[0]))
    return math.sqrt(variance(parts[0], codes[0]) + variance(parts[1], codes[1]))


def row_tests(before: Sequence[Row], after: Sequence[Row]) -> list[Row]:
    """The change of mean |lift| of heads without embeddings (masked words, matching), from rows.

    Errors are taken as if all words erred together and the runs were independent, so they are too
    large. Rows have no neutral words. Scores of dual encoders are left out: nothing in the rows
    says on which scale they are.
    """
    old, new = ({_row_key(row): row for row in rows if _of_head(row)} for rows in (before, after))
    found: dict[str, dict[tuple[Any, ...], list[tuple[Row, Row]]]] = {}
    for key, row in new.items():
        if key in old:
            by_word = found.setdefault(row["attribute"], {})
            by_word.setdefault(key[:-1], []).append((old[key], row))
    tests = []
    for by_word in found.values():
        most = max(map(len, by_word.values()))
        words = [pairs for pairs in by_word.values() if len(pairs) == most]
        first, second = (np.array([[pair[at]["value"] for pair in pairs] for pairs in words])
                         for at in (0, 1))  # fmt: skip
        errors = [np.mean([(pair[at]["ci_high"] - pair[at]["ci_low"]) / (2 * Z)
                           for pairs in words for pair in pairs]) for at in (0, 1)]  # fmt: skip
        row = words[0][0][1]
        same = {name: row[name] for name in ("probe", "attribute", "dataset", "n")}
        change = mean_change(first, second, float(np.hypot(*errors)))
        tests.append({**same, **change, "metric": METRIC, "category": None, "ideal": 0.0,
                      "method": "unpaired"})  # fmt: skip
    return tests


def _of_head(row: Row) -> bool:
    return bool(
        (row["probe"], row["metric"]) in HEADS
        and row["concept"]
        and row["ci_low"] is not None
        and not (row["experiment"] or "").startswith(CONTRASTIVE)
    )


def _row_key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("attribute", "experiment", "concept", "category", "group"))


def _word_rows(
    runs: LiftRuns, before: Floats, after: Floats, names: Sequence[str], same: Row
) -> list[Row]:
    """Lift of every word before and after, on one scale."""
    words = [word for one in runs.classes for word in one.words]
    return [
        {**same, "metric": "lift", "concept": concept, "category": category or None, "group": group,
         "before": float(a), "after": float(b), "difference": float(b - a),
         "excess": float(abs(b) - abs(a))}
        for (concept, category), first, second in zip(words, before, after, strict=True)
        for group, a, b in zip(names, first, second, strict=True)
    ]  # fmt: skip
