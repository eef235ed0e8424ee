"""Paired tests of utility on the same images.

`zero_shot` and `retrieval` keep a result for each image: whether it was classified correctly, or
the number of its queries that found a match. Their differences between runs are tested.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltmeter.results import KEY, Run
from tiltmeter.stats.intervals import Z
from tiltmeter.stats.paired import mcnemar
from tiltmeter.types import Floats

#: The metric that is paired, by probe.
METRICS = {"zero_shot": "accuracy", "retrieval": "recall"}
Row = dict[str, Any]


def utility_tests(before: Run, after: Run) -> list[Row]:
    """Changes of accuracy and recall, if both runs have results of the same images."""
    old = {_key(row): row for row in _rows(before)}
    tests = []
    for row in _rows(after):
        if _key(row) in old and (answers := _answers(before, after, row)) is not None:
            same = {name: row[name] for name in (*KEY, "n")}
            values = {"before": old[_key(row)]["value"], "after": row["value"], "ideal": 1.0}
            change = change_of_answers(*answers, int(row["n"]))
            tests.append({**same, **values, **change, "method": "paired"})
    return tests


def _rows(run: Run) -> list[Row]:
    return [
        row
        for probe, metric in METRICS.items()
        for row in run.where(probe=probe, metric=metric, target=None)
        if row["value"] is not None
    ]


def _answers(before: Run, after: Run, row: Row) -> tuple[Floats, Floats] | None:
    """Results of each image in both runs; None if they are not the same images."""
    answers = [_answers_of(run.instances.get(row["probe"]), row) for run in (before, after)]
    if any(not by_image for by_image in answers) or set(answers[0]) != set(answers[1]):
        return None
    first, second = (
        np.array([by_image[name] for name in answers[0]], dtype=float) for by_image in answers
    )
    return first, second


def _answers_of(instances: pa.Table | None, row: Row) -> dict[str, float]:
    if instances is None:
        return {}
    same = pc.equal(instances["rank"], row["k"])
    for name in ("dataset", "experiment"):
        if row[name] is not None:
            same = pc.and_(same, pc.equal(instances[name], row[name]))
    selected = instances.filter(same)
    return dict(zip(selected["id"].to_pylist(), selected["score"].to_pylist(), strict=True))


def change_of_answers(first: Floats, second: Floats, queries: int) -> dict[str, float]:
    """Decrease of the share of correct answers, with its intervals and p."""
    if np.isin([first, second], (0, 1)).all() and queries == len(first):
        test = mcnemar(first, second)
        mean, p = -test.difference, test.p
        half = (test.ci_high - test.ci_low) / 2
        middle = -(test.ci_low + test.ci_high) / 2
    else:
        loss = first - second
        mean = middle = float(loss.sum() / queries)
        half = Z * float(np.sqrt(len(loss)) * loss.std(ddof=1) / queries)
        p = _two_sided(mean / (half / Z)) if half else 1.0
    return {"excess": mean, "ci_low": middle - half, "ci_high": middle + half,
            "p_no_change": p}  # fmt: skip


def _two_sided(z: float) -> float:
    from scipy.special import ndtr

    return float(2 * ndtr(-abs(z)))


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)
