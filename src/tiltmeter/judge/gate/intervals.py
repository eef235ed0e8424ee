"""Unpaired tests: two values with their intervals, treated as independent.

Both runs used the same images, so their errors are positively correlated: these tests are
conservative, and have less power than paired ones.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.judge.gate.paired_tests import Z90
from tiltmeter.results import KEY, over_templates
from tiltmeter.stats.intervals import Z
from tiltmeter.stats.multiplicity import holm
from tiltmeter.types import Floats

Row = dict[str, Any]
#: Metrics that are tested, by probe: those with an undisputed ideal.
JUDGED = {
    "ranking": ("c_asc", "max_skew"),
    "zero_shot": ("accuracy",),
    "retrieval": ("recall",),
    "harms": ("gaps",),
}
INNER = Z90 / Z  # width of a 90% interval relative to a 95% one


def interval_tests(
    before: pa.Table,
    after: pa.Table,
    *,
    ranking: bool,
    tested_keys: Collection[tuple[Any, ...]] = (),
) -> dict[str, Any]:
    """Changes of results that have an interval in both runs; `ranking`: also of that probe.

    Results whose keys are in `tested_keys` were paired already.
    """
    first, second = (
        [row for row in judged(table.to_pylist()) if ranking or row["probe"] != "ranking"]
        for table in (before, after)
    )
    first_words, second_words = _words(first), _words(second)
    old, new = (
        {
            _key(row): row
            for row in rows
            if row["ci_low"] is not None
            and row["value"] is not None
            # a mean over other words is not comparable
            and (row["concept"] or first_words.get(_over(row)) == second_words.get(_over(row)))
        }
        for rows in (first, second)
    )
    keys = [key for key in new if key in old and key not in tested_keys]
    a, b = ([source[key] for key in keys] for source in (old, new))
    excess, low, high = _difference(_folded(a), _folded(b))
    arm = np.where(excess > 0, excess - low, high - excess)  # the side towards 0
    z = np.divide(Z * np.abs(excess), arm, out=np.zeros(len(excess)), where=arm > 0)
    p = _two_sided(z)
    p[np.isnan(excess)] = np.nan
    columns: dict[str, Any] = {name: [row[name] for row in b] for name in KEY}
    return {
        **columns,
        "before": _numbers(a, "value"),
        "after": _numbers(b, "value"),
        "ideal": _ideal(b),
        "excess": excess,
        "ci_low": low,
        "ci_high": high,
        "inner_low": excess - INNER * (excess - low),
        "inner_high": excess + INNER * (high - excess),
        "p": p,
        "p_fwer": holm(p),
        "method": ["unpaired"] * len(keys),
        "n": [row["n"] for row in b],
    }


def judged(rows: list[Row]) -> list[Row]:
    """Rows to test: words over all templates, all words, overall utility, harm by category."""
    over_all, _ = over_templates(
        row
        for row in rows
        if row["metric"] in JUDGED.get(row["probe"], ()) and row["factor"] is None
    )
    return [
        row
        for row in over_all
        if not (row["probe"] == "zero_shot" and row["target"])
        and not (
            row["probe"] == "harms" and (row["experiment"] or row["target"] != row["category"])
        )
        and not (row["probe"] == "ranking" and row["concept"] is None and row["category"])
    ]


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


def _two_sided(z: Floats) -> Floats:
    from scipy.special import ndtr

    return np.asarray(2 * ndtr(-np.abs(z)))


def _numbers(rows: list[Row], name: str) -> Floats:
    return np.array([row[name] for row in rows], dtype=float)


def _ideal(rows: list[Row]) -> Floats:
    """The ideal of each row; 0 for a gap, which has none recorded."""
    return np.array([0.0 if row["ideal"] is None else row["ideal"] for row in rows], dtype=float)


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)
