"""Data of the paper's Figures 6 and 7, group effects by valence, and single queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.metrics.propagation import z_scores
from tiltmeter.probes.propagation.experiments import (
    BANDS,
    MIDDLE,
    ExperimentInput,
    ExperimentResult,
    valence_bands,
)
from tiltmeter.probes.propagation.rows import (
    GroupMeans,
    ResamplingUnits,
    analyses,
    clusters_of,
    group_error,
    student,
)
from tiltmeter.results import INSTANCES, rows
from tiltmeter.stats.clustered import MeanError
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Floats

#: Draws of group means, for the interval of a z-score.
Z_DRAWS = 2000


def valence_rows(measured: ExperimentResult, constants: dict[str, Any]) -> Iterator[pa.Table]:
    """Figure 6: group means as z-scores. Figure 7: means by valence, z-scores, the difference."""
    note = "; ".join(measured.notes) or None
    groups = measured.queries.groups
    if measured.experiment.content == "valence" and groups is not None:
        units = ResamplingUnits(
            measured.intrinsic[:, 0, 0], groups, np.zeros((0, len(groups.names))),
            np.zeros((len(groups.names),) * 2), 1.0, measured.queries.clusters,
        )  # fmt: skip
        means = GroupMeans.of(units)
        yield _z_rows(
            means.mean, means.covariance, groups.names, None, len(groups), constants, note
        )
        return
    if measured.by_band is None or measured.items.groups is None or measured.members is None:
        return
    names, bands = measured.items.groups.names, valence_bands(measured.queries)
    assert bands is not None
    reach, standing = measured.by_band  # bands x items
    set_groups = measured.items.groups[measured.members]
    set_clusters = clusters_of(measured.items, measured.members)
    for code, band in enumerate(BANDS):
        scores = measured.intrinsic[bands.codes == code, 0]
        scores = scores[~np.isnan(scores).any(axis=1)]
        if not len(scores):
            continue
        means, n = scores.mean(axis=0), len(scores)
        errors = [group_error(standing[code], set_groups, at, set_clusters)
                  for at in range(len(names))]  # fmt: skip
        of_items = np.nan_to_num([error.variance for error in errors])
        covariance = np.atleast_2d(np.cov(scores.T)) / n if n > 1 else np.zeros((len(names),) * 2)
        variances = np.column_stack([of_items, np.diag(covariance)])
        freedom = [[np.nan_to_num(error.freedom, nan=1.0), max(n - 1.0, 1.0)] for error in errors]
        low, high, _ = student(means, variances, np.array(freedom))
        yield rows(
            len(names),
            **constants,
            metric="intrinsic_by_valence",
            group=list(names),
            category=band,
            **columns(means, interval=Interval(edges=(low, high), method=WELCH)),
            n=n,
            note=note,
        )
        covariance = covariance + np.diag(of_items)
        yield _z_rows(means, covariance, names, band, n, constants, note)
    yield _lean_rows(
        measured.intrinsic[:, 0], bands.codes == 0,
        [group_error(standing[0] - standing[1], set_groups, at, set_clusters)
         for at in range(len(names))],
        "intrinsic_lean", names, constants, note,
    )  # fmt: skip
    groups, shared = measured.items.groups, clusters_of(measured.items, slice(None))
    # a group's share is a sum over its items; scaled, it is a mean
    scaled = (reach[0] - reach[1]) * groups.counts[groups.codes]
    errors = [group_error(scaled, groups, at, shared) for at in range(len(names))]
    for k_index, k in enumerate(measured.k):
        k_constants = {**constants, "k": k}
        yield _lean_rows(
            measured.extrinsic[:, k_index, 0], bands.codes == 0, errors, "extrinsic_lean", names,
            k_constants, note,
        )  # fmt: skip


#: Errors from queries, and from items.
WELCH = "Student, over queries and items"


def z_interval(means: Floats, covariance: Floats) -> tuple[Floats, Floats]:
    """95% interval of z-scores over groups, whose means have normal errors."""
    draws = np.random.default_rng(0).multivariate_normal(
        means, covariance, Z_DRAWS, check_valid="ignore"
    )
    z = np.stack([z_scores(draw) for draw in draws])
    return (*np.nanpercentile(z, [2.5, 97.5], axis=0),)


def _z_rows(
    means: Floats,
    covariance: Floats,
    names: Sequence[str],
    band: str | None,
    n: int,
    constants: dict[str, Any],
    note: str | None,
) -> pa.Table:
    z = z_scores(means)
    interval = None
    if len(names) > 2 and np.isfinite(covariance).all() and np.isfinite(z).all():
        interval = Interval(edges=z_interval(means, covariance), method="normal errors of means")
    return rows(
        len(names),
        **constants,
        metric="intrinsic_z",
        group=list(names),
        category=band,
        **columns(z, interval=interval),
        n=n,
        note=[note if np.isfinite(score) else "all groups have the same mean" for score in z],
    )


def _lean_rows(
    numbers: Floats,
    high: Floats,
    of_items: Sequence[MeanError],
    metric: str,
    names: Sequence[str],
    constants: dict[str, Any],
    note: str | None,
) -> pa.Table:
    """Mean over pleasant minus mean over unpleasant queries, for each group.

    Its error has two sources: which queries, and which items of the group (`of_items`).
    """
    value, variances, freedom = [], [], []
    known = ~np.isnan(numbers).any(axis=1)
    for column, error in zip(numbers[known].T, of_items, strict=True):
        parts = [column[high[known]], column[~high[known]]]
        enough = min(len(part) for part in parts) > 1
        value.append(parts[0].mean() - parts[1].mean() if enough else np.nan)
        variances.append([part.var(ddof=1) / len(part) if enough else np.nan for part in parts]
                         + [np.nan_to_num(error.variance)])  # fmt: skip
        freedom.append([*(max(len(part) - 1.0, 1.0) for part in parts),
                        np.nan_to_num(error.freedom, nan=1.0)])  # fmt: skip
    differences = np.array(value)
    low, upper, p = student(differences, np.array(variances), np.array(freedom))
    return rows(
        len(names),
        **constants,
        metric=metric,
        group=list(names),
        category="pleasant minus unpleasant",
        ideal=0.0,
        **columns(
            differences, p=p, side="two", family="holm", interval=Interval(edges=(low, upper))
        ),
        ci_method=WELCH,
        n=int(known.sum()),
        n_undefined=int((~known).sum()),
        note=[
            note if np.isfinite(v) else f"no queries on one side of {MIDDLE}" for v in differences
        ],
    )


def data_rows(
    sides: Mapping[str, ExperimentInput], constants: dict[str, Any]
) -> Iterator[pa.Table]:
    """What was measured with: items by role and group, templates, mean and spread of valence."""
    for role, side in sides.items():
        of_role = {**constants, "category": role, "dataset": side.dataset or None}
        yield rows(1, **of_role, metric="data_items", value=float(len(side)), n=len(side))
        yield rows(1, **of_role, metric="data_templates", value=float(len(side.vectors)))
        if side.clusters:
            distinct = len({name for names in side.clusters for name in names})
            yield rows(1, **of_role, metric="data_clusters", value=float(distinct), n=len(side))
        if side.groups is not None:
            counts = side.groups.counts
            yield rows(
                len(counts), **of_role, metric="data_items", value=counts.astype(float), n=counts,
                attribute=side.groups.attribute, group=list(side.groups.names),
            )  # fmt: skip
        if side.valence is not None:
            valence = np.asarray(side.valence, dtype=float)
            for name, value in (("mean", valence.mean()), ("sd", valence.std(ddof=1))):
                yield rows(1, **of_role, metric=f"data_valence_{name}", value=value, n=len(side))


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
