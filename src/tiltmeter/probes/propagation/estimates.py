"""Figures 6 and 7 of the study, the lean of group effects with valence, and single queries."""

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

#: Where Figure 7 parts pleasant from unpleasant.
MIDDLE = 0.5
BANDS = ("pleasant", "unpleasant")


def figures(measured: ExperimentResult, constants: dict[str, Any]) -> Iterator[pa.Table]:
    """Figure 6: group means as z-scores. Figure 7: by valence of the query, and the difference."""
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
    yield _lean(measured.intrinsic[:, 0], high, "intrinsic_lean", names, constants, note)
    for at, k in enumerate(measured.k):
        told = {**constants, "k": k}
        yield _lean(measured.extrinsic[:, at, 0], high, "extrinsic_lean", names, told, note)


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
        note=[note if np.isfinite(one) else "all groups have the same mean" for one in z],
    )


def _lean(
    numbers: Floats,
    high: Floats,
    metric: str,
    names: Sequence[str],
    constants: dict[str, Any],
    note: str | None,
) -> pa.Table:
    """Mean over pleasant queries less the mean over unpleasant ones, for each group."""
    value, variances, freedom = [], [], []
    there = ~np.isnan(numbers).any(axis=1)
    for column in numbers[there].T:
        parts = [column[high[there]], column[~high[there]]]
        enough = min(len(part) for part in parts) > 1
        value.append(parts[0].mean() - parts[1].mean() if enough else np.nan)
        variances.append([part.var(ddof=1) / len(part) if enough else np.nan for part in parts])
        freedom.append([max(len(part) - 1.0, 1.0) for part in parts])
    found = np.array(value)
    low, upper, p = student(found, np.array(variances), np.array(freedom))
    return rows(
        len(names),
        **constants,
        metric=metric,
        group=list(names),
        category="pleasant less unpleasant",
        ideal=0.0,
        **columns(found, p=p, side="two", family="holm", interval=Interval(edges=(low, upper))),
        ci_method="Welch",
        n=int(there.sum()),
        n_undefined=int((~there).sum()),
        note=[note if np.isfinite(v) else f"no queries on one side of {MIDDLE}" for v in found],
    )


def instances(measured: ExperimentResult, constants: dict[str, Any]) -> pa.Table:
    """Both numbers of each query, to draw rho from: the extrinsic one at the last k."""
    of_queries = measured.queries.groups
    parts: list[dict[str, Any]] = []
    for one in analyses(measured):
        by_column = measured.experiment.content == "group"
        for what, numbers in (
            ("intrinsic", measured.intrinsic[one.rows, 0, one.column]),
            (f"extrinsic@{measured.k[-1]}", measured.extrinsic[one.rows, -1, 0, one.column]),
        ):
            label = [] if of_queries is None else [(of_queries.attribute, one.group)]
            parts += [
                {"experiment": f"{constants['experiment']} {what}", "id": measured.queries.ids[row],
                 "concept": one.group if by_column else None, "groups": label,
                 "score": None if np.isnan(number) else float(number)}
                for row, number in zip(one.rows, numbers, strict=True)
            ]  # fmt: skip
    told = {name: constants[name] for name in ("model", "dataset")}
    return pa.Table.from_pylist([{**told, **part} for part in parts], schema=INSTANCES)
