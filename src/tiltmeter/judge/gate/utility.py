"""Is the model as useful as before? The same images, asked twice.

`zero_shot` and `retrieval` keep what became of each image: whether it was named right, or how
many of its queries found what belongs to them. Differences image by image are tested.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltmeter.judge.gate.paired_tests import Z90
from tiltmeter.results import KEY, Run
from tiltmeter.stats.intervals import Z
from tiltmeter.stats.multiplicity import holm
from tiltmeter.stats.paired import mcnemar
from tiltmeter.types import Floats

#: What is paired, by probe.
FIGURES = {"zero_shot": "accuracy", "retrieval": "recall"}
Row = dict[str, Any]


def usefulness_tests(before: Run, after: Run) -> dict[str, Any]:
    """Changes of accuracy and recall, as far as both runs kept the same images' answers."""
    old = {_key(row): row for row in _rows(before)}
    found: list[dict[str, Any]] = []
    for row in _rows(after):
        if _key(row) in old and (both := _answers(before, after, row)) is not None:
            found.append({**_change(*both, int(row["n"])), "row": row, "was": old[_key(row)]})
    columns: dict[str, Any] = {name: [one["row"][name] for one in found] for name in KEY}
    names = ("excess", "ci_low", "ci_high", "inner_low", "inner_high", "p")
    numbers = {name: np.array([one[name] for one in found], dtype=float) for name in names}
    return {
        **columns,
        **numbers,
        "before": np.array([one["was"]["value"] for one in found], dtype=float),
        "after": np.array([one["row"]["value"] for one in found], dtype=float),
        "ideal": np.ones(len(found)),
        "p_fwer": holm(numbers["p"]),
        "method": ["paired"] * len(found),
        "n": [one["row"]["n"] for one in found],
    }


def _rows(run: Run) -> list[Row]:
    return [
        row
        for probe, metric in FIGURES.items()
        for row in run.where(probe=probe, metric=metric, target=None)
        if row["value"] is not None
    ]


def _answers(before: Run, after: Run, row: Row) -> tuple[Floats, Floats] | None:
    """What became of each image in both runs; None where they are not the same images."""
    kept = [_of(run.instances.get(row["probe"]), row) for run in (before, after)]
    if any(not one for one in kept) or set(kept[0]) != set(kept[1]):
        return None
    first, second = (np.array([one[name] for name in kept[0]], dtype=float) for one in kept)
    return first, second


def _of(instances: pa.Table | None, row: Row) -> dict[str, float]:
    if instances is None:
        return {}
    same = pc.equal(instances["rank"], row["k"])
    for name in ("dataset", "experiment"):
        if row[name] is not None:
            same = pc.and_(same, pc.equal(instances[name], row[name]))
    some = instances.filter(same)
    return dict(zip(some["id"].to_pylist(), some["score"].to_pylist(), strict=True))


def _change(first: Floats, second: Floats, queries: int) -> dict[str, float]:
    """How much farther from 1 the share of right answers is, its intervals, and p."""
    if np.isin([first, second], (0, 1)).all() and queries == len(first):
        found = mcnemar(first, second)
        mean, p = -found.difference, found.p
        half = (found.ci_high - found.ci_low) / 2
        middle = -(found.ci_low + found.ci_high) / 2
    else:
        less = first - second
        mean = middle = float(less.sum() / queries)
        half = Z * float(np.sqrt(len(less)) * less.std(ddof=1) / queries)
        p = _two_sided(mean / (half / Z)) if half else 1.0
    inner = half * Z90 / Z
    return {"excess": mean, "ci_low": middle - half, "ci_high": middle + half,
            "inner_low": middle - inner, "inner_high": middle + inner, "p": p}  # fmt: skip


def _two_sided(z: float) -> float:
    from scipy.special import ndtr

    return float(2 * ndtr(-abs(z)))


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)
