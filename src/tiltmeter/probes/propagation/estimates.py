"""Data of the paper's Figures 6 and 7, group effects by valence, and single queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.metrics.propagation import z_scores
from tiltmeter.probes.propagation.experiments import ExperimentResult
from tiltmeter.probes.propagation.rows import analyses, by_code, student
from tiltmeter.results import INSTANCES, rows
from tiltmeter.stats import defined
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Floats

#: Valence that separates pleasant from unpleasant in Figure 7.
MIDDLE = 0.5
BANDS = ("pleasant", "unpleasant")


def valence_rows(measured: ExperimentResult, constants: dict[str, Any]) -> Iterator[pa.Table]:
    """Figure 6: group means as z-scores. Figure 7: the same by valence, and the difference."""
    note = "; ".join(measured.notes) or None
    groups = measured.queries.groups
    if measured.experiment.content == "valence" and groups is not None:
        means = by_code(measured.intrinsic[:, :1, 0], groups)[0]
        yield _z_rows(means, groups.names, None, len(groups), constants, note)
        return
    if measured.queries.valence is None or measured.items.groups is None:
        return
    names = measured.items.groups.names
    high = measured.queries.valence >= MIDDLE
    for band, queries in zip(BANDS, (high, ~high), strict=True):
        if queries.any():
            means = defined.mean(measured.intrinsic[queries, 0])
            yield _z_rows(means, names, band, int(queries.sum()), constants, note)
    yield _lean_rows(measured.intrinsic[:, 0], high, "intrinsic_lean", names, constants, note)
    for k_index, k in enumerate(measured.k):
        k_constants = {**constants, "k": k}
        yield _lean_rows(
            measured.extrinsic[:, k_index, 0], high, "extrinsic_lean", names, k_constants, note
        )


def _z_rows(
    means: Floats,
    names: Sequence[str],
    band: str | None,
    n: int,
    constants: dict[str, Any],
    note: str | None,
) -> pa.Table:
    z = z_scores(means)
    return rows(
        len(names),
        **constants,
        metric="intrinsic_z",
        group=list(names),
        category=band,
        value=z,
        n=n,
        note=[note if np.isfinite(score) else "all groups have the same mean" for score in z],
    )


def _lean_rows(
    numbers: Floats,
    high: Floats,
    metric: str,
    names: Sequence[str],
    constants: dict[str, Any],
    note: str | None,
) -> pa.Table:
    """Mean over pleasant minus mean over unpleasant queries, for each group."""
    value, variances, freedom = [], [], []
    known = ~np.isnan(numbers).any(axis=1)
    for column in numbers[known].T:
        parts = [column[high[known]], column[~high[known]]]
        enough = min(len(part) for part in parts) > 1
        value.append(parts[0].mean() - parts[1].mean() if enough else np.nan)
        variances.append([part.var(ddof=1) / len(part) if enough else np.nan for part in parts])
        freedom.append([max(len(part) - 1.0, 1.0) for part in parts])
    differences = np.array(value)
    low, upper, p = student(differences, np.array(variances), np.array(freedom))
    return rows(
        len(names),
        **constants,
        metric=metric,
        group=list(names),
        category="pleasant less unpleasant",
        ideal=0.0,
        **columns(
            differences, p=p, side="two", family="holm", interval=Interval(edges=(low, upper))
        ),
        ci_method="Welch",
        n=int(known.sum()),
        n_undefined=int((~known).sum()),
        note=[
            note if np.isfinite(v) else f"no queries on one side of {MIDDLE}" for v in differences
        ],
    )


def instances(measured: ExperimentResult, constants: dict[str, Any]) -> pa.Table:
    """Intrinsic and extrinsic score of each query, the latter at the last k."""
    of_queries = measured.queries.groups
    parts: list[dict[str, Any]] = []
    for analysis in analyses(measured):
        by_column = measured.experiment.content == "group"
        for what, numbers in (
            ("intrinsic", measured.intrinsic[analysis.rows, 0, analysis.column]),
            (
                f"extrinsic@{measured.k[-1]}",
                measured.extrinsic[analysis.rows, -1, 0, analysis.column],
            ),
        ):
            label = [] if of_queries is None else [(of_queries.attribute, analysis.group)]
            parts += [
                {"experiment": f"{constants['experiment']} {what}", "id": measured.queries.ids[row],
                 "concept": analysis.group if by_column else None, "groups": label,
                 "score": None if np.isnan(number) else float(number)}
                for row, number in zip(analysis.rows, numbers, strict=True)
            ]  # fmt: skip
    labels = {name: constants[name] for name in ("model", "dataset")}
    return pa.Table.from_pylist([{**labels, **part} for part in parts], schema=INSTANCES)
