"""Counterfactual pairs: how mean lift of masked words changed, of words and of neutral words.

Words are paired, and so are images where both runs measured the same: each image's part in the mean
is in the table of instances.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow.compute as pc

from tiltmeter.judge.gate.change_verdict import mean_change
from tiltmeter.results import INSTANCES, PLACEBO, Run
from tiltmeter.types import Floats

METRIC = "mean_abs_pair_lift"
Row = dict[str, Any]


def counterfactual_tests(before: Run, after: Run) -> list[Row]:
    """The change of mean |lift| for each source of counterfactuals and each part that is swapped.

    Words that only one of the runs has are left out. Nothing is returned where a run has no neutral
    words: lift is undefined without.
    """
    sides = [_by_experiment(run) for run in (before, after)]
    tests = []
    for (key, category), first in sides[0].items():
        second = sides[1].get((key, category), {})
        words = [word for word in first if word in second]
        if not words:
            continue
        lifts = [np.array([side[word]["value"] for word in words]) for side in (first, second)]
        parts = [_parts(run, key[0], category) for run in (before, after)]
        error, n, method = _image_error(*parts)
        if math.isnan(error):
            continue
        row = second[words[0]]
        tests.append(
            {"probe": "counterfactual", "metric": METRIC, "dataset": row["dataset"],
             "experiment": key[0], "attribute": row["attribute"], "category": category,
             "ideal": 0.0, "n": n, "method": method, **mean_change(lifts[0], lifts[1], error)}
        )  # fmt: skip
    return tests


def _by_experiment(run: Run) -> dict[tuple[tuple[str, str], str | None], dict[str, Row]]:
    """Rows of words by experiment and attribute; neutral words apart."""
    found: dict[tuple[tuple[str, str], str | None], dict[str, Row]] = {}
    for row in run.where(probe="counterfactual", metric="pair_lift"):
        if row["target"] is not None and row["value"] is not None:
            key = (row["experiment"], row["attribute"])
            category = PLACEBO if row["category"] == PLACEBO else None
            found.setdefault((key, category), {})[row["target"]] = row
    return found


def _parts(run: Run, experiment: str, category: str | None) -> dict[str, float]:
    """Each cluster's part in the mean, by the id of its first image."""
    name = f"{METRIC}, {experiment}" + ", neutral" * (category == PLACEBO)
    table = run.instances.get("counterfactual", INSTANCES.empty_table())
    table = table.filter(pc.equal(table["experiment"], name))
    return dict(zip(table["id"].to_pylist(), table["score"].to_pylist(), strict=True))


def _image_error(before: dict[str, float], after: dict[str, float]) -> tuple[float, int, str]:
    """Standard error of the change through the sample of images; n; and how it was computed."""

    def variance(parts: Floats) -> float:
        return float(parts.var(ddof=1)) / len(parts) if len(parts) > 1 else math.nan

    if before.keys() == after.keys():
        change = np.array([after[name] - before[name] for name in before])
        return math.sqrt(variance(change)), len(change), "paired"
    both = [np.array(list(parts.values())) for parts in (before, after)]
    return math.sqrt(sum(map(variance, both))), min(map(len, both)), "unpaired"
