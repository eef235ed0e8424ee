"""Unpaired tests: two values with their intervals, treated as independent.

Both runs used the same images, so their errors are positively correlated: these tests are
conservative, and have less power than paired ones.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from tiltmeter.judge.gate.change_verdict import (
    BIAS,
    DESCRIPTIONS,
    HARMS,
    PRONOUNS,
    PROPAGATION,
    REFUSALS,
    STEREOTYPES,
    question_of,
)
from tiltmeter.results import KEY
from tiltmeter.types import Floats

Row = dict[str, Any]


def interval_tests(
    before: list[Row], after: list[Row], question: str,
    tested_keys: Collection[tuple[Any, ...]] = (),
) -> list[Row]:  # fmt: skip
    """Changes of the results that answer a question and have an interval in both runs.

    Results whose keys are in `tested_keys` were paired already.
    """
    first_words, second_words = _words(before), _words(after)
    old, new = (
        {
            _key(row): row
            for row in judged(rows, question)
            if row["ci_low"] is not None
            and row["value"] is not None
            # a mean over other words is not comparable; a category has all of its words
            and (
                question == DESCRIPTIONS
                or first_words.get(_over(row)) == second_words.get(_over(row))
            )
        }
        for rows in (before, after)
    )
    keys = [key for key in new if key in old and key not in tested_keys]
    a, b = ([source[key] for key in keys] for source in (old, new))
    excess, low, high = _difference(_folded(a), _folded(b))
    numbers = zip(excess.tolist(), low.tolist(), high.tolist(), strict=True)
    return [
        {**{name: new[key][name] for name in (*KEY, "n", "note")}, "before": old[key]["value"],
         "after": new[key]["value"], "ideal": new[key]["ideal"] or 0.0, "excess": change,
         "ci_low": change_low, "ci_high": change_high, "method": "unpaired"}
        for key, (change, change_low, change_high) in zip(keys, numbers, strict=True)
    ]  # fmt: skip


def judged(rows: list[Row], question: str) -> list[Row]:
    """Rows to test: means over all words, overall utility, harms and mentions by category."""
    selected = [row for row in rows if question_of(row) == question and row["factor"] is None]
    if question == HARMS:
        return [row for row in selected
                if not row["experiment"] and row["target"] == row["category"]]  # fmt: skip
    if question == STEREOTYPES:  # with the images themselves, over all categories
        return [row for row in selected
                if not row["category"] and "image" not in row["experiment"]]  # fmt: skip
    if question == REFUSALS:
        return [row for row in selected if row["target"] == "refused"]
    if question == PRONOUNS:
        return [row for row in selected if row["experiment"] == "pronoun"]
    if question == DESCRIPTIONS:
        return [row for row in selected if row["experiment"] == "mentioned"
                and row["target"] == row["category"]]  # fmt: skip
    if question == PROPAGATION:
        return [row for row in selected
                if row["experiment"].partition(" ")[0] in BIAS[row["metric"]]]  # fmt: skip
    return [row for row in selected
            if not (row["concept"] or row["category"] or row["target"])]  # fmt: skip


def _words(rows: list[Row]) -> dict[tuple[Any, ...], set[tuple[Any, ...]]]:
    """The words of each metric that is averaged over words."""
    words: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {}
    for row in rows:
        if row["concept"]:
            words.setdefault(_over(row), set()).add((row["concept"], row["category"]))
    return words


def _over(row: Row) -> tuple[Any, ...]:
    """Columns that a word's row and the mean over words share."""
    return tuple(row[name] for name in ("probe", "metric", "dataset", "attribute", "k"))


def _folded(rows: list[Row]) -> tuple[Floats, Floats, Floats]:
    """Distance from the ideal, with its interval."""
    value, low, high = (_numbers(rows, name) for name in ("value", "ci_low", "ci_high"))
    ideal = _ideal(rows)
    distances = np.stack([np.abs(low - ideal), np.abs(high - ideal)])
    inside = (low <= ideal) & (ideal <= high)
    return (
        np.abs(value - ideal),
        np.where(inside, 0.0, distances.min(axis=0)),
        distances.max(axis=0),
    )


def _difference(
    first: tuple[Floats, Floats, Floats], second: tuple[Floats, Floats, Floats]
) -> tuple[Floats, Floats, Floats]:
    """Second - first, with Newcombe's interval of the difference of two independent values."""
    (a, a_low, a_high), (b, b_low, b_high) = first, second
    change = b - a
    return (
        change,
        change - np.hypot(b - b_low, a_high - a),
        change + np.hypot(b_high - b, a - a_low),
    )


def _numbers(rows: list[Row], name: str) -> Floats:
    return np.array([row[name] for row in rows], dtype=float)


def _ideal(rows: list[Row]) -> Floats:
    """The ideal of each row; 0 for a gap, which has none recorded."""
    return np.array([0.0 if row["ideal"] is None else row["ideal"] for row in rows], dtype=float)


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)
