"""Rows of the probe `propagation`: rho by group, and differences between groups.

A rho needs a reference with permuted labels, because both scores are computed from the same
embeddings. Bias itself is a difference between groups, of the mean intrinsic or extrinsic score.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tiltmeter.metrics.propagation import spearman, spearman_resamples, spearman_rows
from tiltmeter.probes.propagation.experiments import ExperimentResult, PropagationConfig, permuted
from tiltmeter.results import combined, rows
from tiltmeter.stats import defined
from tiltmeter.stats.bootstrap import interval
from tiltmeter.stats.null import NullBand, band_of, p_of_draws
from tiltmeter.stats.resampling import Resampling
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Floats, Groups, Ints


class Analysis(NamedTuple):
    """One rho: the rows of its queries, and the column of their scores."""

    group: str | None
    rows: Ints
    column: int


def analyses(measured: ExperimentResult) -> list[Analysis]:
    """One analysis per group: its own queries if queries have groups, otherwise all queries."""
    all_queries = np.arange(len(measured.queries))
    of_queries, of_items = measured.queries.groups, measured.items.groups
    by_column = measured.experiment.content == "group"
    if measured.experiment.grouped:
        assert of_queries is not None
        return [
            Analysis(name, np.flatnonzero(of_queries.codes == code), code if by_column else 0)
            for code, name in enumerate(of_queries.names)
        ]
    if by_column:
        assert of_items is not None
        return [Analysis(name, all_queries, code) for code, name in enumerate(of_items.names)]
    return [Analysis(None, all_queries, 0)]


class References(NamedTuple):
    """Every rho and group mean under permuted labels."""

    rho: Floats  # permutations x k x analyses
    intrinsic: Floats  # permutations x groups
    extrinsic: Floats  # permutations x k x groups


def references(
    measured: ExperimentResult,
    choices: PropagationConfig,
    permutations: int,
    rng: np.random.Generator,
) -> References:
    """Measure with permuted labels, in batches, and keep only what the rows need."""
    planned, ks = analyses(measured), len(measured.k)
    groups = len(measured.groups.names) if measured.groups is not None else 0
    under_null = References(
        np.empty((permutations, ks, len(planned))),
        np.empty((permutations, groups)),
        np.empty((permutations, ks, groups)),
    )
    start = 0
    for part in permuted(measured, choices, permutations, rng):
        drawn = slice(start, start := start + part.intrinsic.shape[1])
        for row, analysis in enumerate(planned):
            x = part.intrinsic[analysis.rows, :, analysis.column].T
            for k_index in range(ks):
                y = part.extrinsic[analysis.rows, k_index, :, analysis.column].T
                under_null.rho[drawn, k_index, row] = spearman_rows(x, y)
        if groups:
            under_null.intrinsic[drawn] = _group_means(part, part.intrinsic)
            for k_index in range(ks):
                under_null.extrinsic[drawn, k_index] = _group_means(
                    part, part.extrinsic[:, k_index]
                )
    return under_null


def tabulate(
    measured: ExperimentResult,
    choices: PropagationConfig,
    resampling: Resampling,
    rng: np.random.Generator,
    constants: dict[str, Any],
) -> pa.Table:
    """All rows of one experiment."""
    note = "; ".join(measured.notes) or None
    under_null = references(measured, choices, resampling.permutations, rng)
    tables: list[pa.Table] = []
    for k_index, k in enumerate(measured.k):
        tables += _rhos(
            measured,
            k_index,
            under_null.rho[:, k_index],
            resampling,
            rng,
            {**constants, "k": k},
            note,
        )
    if measured.groups is not None:
        tables += _between(_intrinsic(measured, under_null.intrinsic), "intrinsic", constants, note)
        for k_index, k in enumerate(measured.k):
            units = _extrinsic(measured, k_index, under_null.extrinsic[:, k_index])
            tables += _between(units, "extrinsic", {**constants, "k": k}, note)
    return combined(tables)


def _rhos(
    measured: ExperimentResult,
    k_index: int,
    null_rhos: Floats,
    resampling: Resampling,
    rng: np.random.Generator,
    constants: dict[str, Any],
    note: str | None,
) -> Iterator[pa.Table]:
    """Spearman's rho of each analysis, with those under permuted labels (`null_rhos`)."""
    planned = analyses(measured)
    value, low, high, p = (np.full(len(planned), np.nan) for _ in range(4))
    null, notes = np.full((3, len(planned)), np.nan), [note] * len(planned)
    undefined, boots = np.zeros(len(planned), int), []
    weights: dict[bytes, Floats] = {}  # groups that share queries share their resamples
    for row, analysis in enumerate(planned):
        x = measured.intrinsic[analysis.rows, 0, analysis.column]
        y = measured.extrinsic[analysis.rows, k_index, 0, analysis.column]
        known = ~np.isnan(x)
        undefined[row] = (~known).sum()
        x, y = x[known], y[known]
        if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
            reason = (
                "fewer than two queries" if len(x) < 2 else "one of the two scores does not vary"
            )
            notes[row] = "; ".join(filter(None, [f"no rho: {reason}", note]))
            continue
        value[row] = spearman(x, y)[0]
        if not np.isnan(null_rhos[:, row]).all():
            null[:, row] = band_of(null_rhos[:, row])
            p[row] = p_of_draws(value[row], null_rhos[:, row], "greater")
        if resampling.bootstraps:
            key = known.tobytes() + analysis.rows.tobytes()
            if key not in weights:
                even = np.full(len(x), 1 / len(x))
                weights[key] = rng.multinomial(len(x), even, resampling.bootstraps)
            boot = spearman_resamples(x, y, weights[key])
            low[row], high[row] = interval(boot, value[row])
            boots.append(boot)
    yield rows(
        len(planned),
        **constants,
        metric="rho",
        group=[analysis.group for analysis in planned],
        **columns(
            value,
            null=NullBand(*null),
            p=p,
            side="greater",
            family="holm",
            interval=Interval(edges=(low, high), method="bootstrap over queries"),
        ),
        n=[len(analysis.rows) for analysis in planned],
        n_group=[len(analysis.rows) for analysis in planned],
        n_undefined=undefined,
        note=notes,
    )
    if len(planned) > 1 and len(boots) == len(planned):
        shared = len(weights) == 1
        yield _do_rhos_differ(value, np.stack(boots), shared, constants, len(measured.queries))


def _do_rhos_differ(
    value: Floats, boots: Floats, shared: bool, constants: dict[str, Any], n: int
) -> pa.Table:
    """Largest minus smallest rho; p of Wald's test on Fisher's z that all are equal."""
    z, z_draws = (np.arctanh(np.clip(x, -1 + 1e-9, 1 - 1e-9)) for x in (value, boots))
    usable = ~np.isnan(z_draws).any(axis=0)
    cov = np.atleast_2d(np.cov(z_draws[:, usable]))
    p = wald(z, cov if shared else np.diag(np.diag(cov)), int(usable.sum()) - 1)
    mirror = "the groups' rhos mirror each other, so there is no difference to test"
    return rows(
        1,
        **constants,
        metric="rho_range",
        ideal=0.0,
        **columns(np.ptp(value), p=p, side="greater"),
        n=n,
        note=mirror if np.isnan(p) else None,
    )


def wald(means: Floats, cov: Floats, freedom: float) -> float:
    """p of Hotelling's test that all means are equal; NaN if no difference has any variance.

    >>> round(wald(np.array([0.0, 1.96]), np.diag([0.5, 0.5]), 10**6), 3)
    0.05
    """
    from scipy.stats import f

    contrast = np.eye(len(means))[1:] - np.eye(len(means))[:-1]
    gaps, spread = contrast @ means, contrast @ cov @ contrast.T
    size, axes = np.linalg.eigh(spread)
    usable = size > 1e-10 * max(float(np.trace(cov)), 1e-300)
    rank = int(usable.sum())
    freedom_left = freedom - rank + 1
    if rank == 0 or freedom_left < 1:
        return float("nan")
    t2 = float((((axes.T @ gaps)[usable]) ** 2 / size[usable]).sum())
    return float(f.sf(t2 * freedom_left / (freedom * rank), rank, freedom_left))


@dataclass(frozen=True, eq=False)
class ResamplingUnits:
    """The units that group means average: queries, or items if only these have groups.

    The units are one source of error, the other side of the experiment is another: `other_cov` is
    its contribution to the covariance of the group means, with `freedom`. `null_means` are the
    group means under permuted item labels, permutations x groups.
    """

    scores: Floats
    groups: Groups
    null_means: Floats
    other_cov: Floats
    freedom: float


def by_code(numbers: Floats, groups: Groups) -> Floats:
    """Means of the rows of each group: columns x groups."""
    return np.stack([defined.mean(numbers[groups.codes == code]) for code in
                     range(len(groups.names))], axis=1)  # fmt: skip


def _group_means(measured: ExperimentResult, numbers: Floats) -> Floats:
    """Group means of scores (queries x permutations x columns): permutations x groups."""
    queries = measured.queries.groups
    if not measured.experiment.grouped:
        return defined.mean(numbers)
    assert queries is not None
    columns = queries.codes if measured.experiment.content == "group" else 0
    return by_code(numbers[np.arange(len(numbers)), :, columns], queries)


def _units(
    measured: ExperimentResult,
    numbers: Floats,
    null_means: Floats,
    item_standing: Floats,
    rows: Ints | slice,
) -> ResamplingUnits:
    """Units of scores (queries x columns), with the items' part in them (query groups x items).

    `item_standing` is scaled so that a group's score is the mean over its items, which are `rows`.
    """
    queries, items = measured.queries.groups, measured.items.groups
    if measured.experiment.grouped and measured.experiment.content == "valence":
        assert queries is not None
        # error from the choice of items: the spread of group means under permuted labels
        other = np.cov(null_means.T) if len(null_means) > 1 else np.zeros((len(queries.names),) * 2)
        return ResamplingUnits(
            numbers[:, 0], queries, null_means, other, max(len(null_means) - 1.0, 1.0)
        )
    assert items is not None
    of_items = items[rows]
    if measured.experiment.grouped:
        assert queries is not None
        own_scores = numbers[np.arange(len(numbers)), queries.codes]
        parts = [row[of_items.codes == code] for code, row in enumerate(item_standing)]
        other = np.diag([part.var(ddof=1) / len(part) if len(part) > 1 else 0.0 for part in parts])
        freedom = max(min(len(part) for part in parts) - 1.0, 1.0)
        return ResamplingUnits(own_scores, queries, null_means, other, freedom)
    complete = numbers[~np.isnan(numbers).any(axis=1)]
    other = np.atleast_2d(np.cov(complete.T)) / len(complete)
    return ResamplingUnits(item_standing[0], of_items, null_means, other, len(complete) - 1.0)


def _intrinsic(measured: ExperimentResult, null_means: Floats) -> ResamplingUnits:
    item_standing = np.zeros((1, 0)) if measured.pull is None else measured.pull
    rows = slice(0) if measured.members is None else measured.members
    return _units(measured, measured.intrinsic[:, 0], null_means, item_standing, rows)


def _extrinsic(measured: ExperimentResult, k_index: int, null_means: Floats) -> ResamplingUnits:
    groups, reach = measured.items.groups, measured.reach[k_index]
    if groups is not None:  # a group's share is a sum over its items; scaled, it is a mean
        reach = reach * groups.counts[groups.codes]
    return _units(measured, measured.extrinsic[:, k_index, 0], null_means, reach, slice(None))


class GroupMeans(NamedTuple):
    """Mean and squared standard error of each group, over its units."""

    mean: Floats
    error: Floats
    sizes: Ints
    undefined: int  # units without a value


def _between(
    units: ResamplingUnits, metric: str, constants: dict[str, Any], note: str | None
) -> Iterator[pa.Table]:
    """Group means, the difference of each pair, and a test of any difference."""
    known = ~np.isnan(units.scores)
    scores, groups = units.scores[known], units.groups[known]
    parts = [scores[groups.codes == code] for code in range(len(groups.names))]
    means = GroupMeans(
        np.array([part.mean() if len(part) else np.nan for part in parts]),
        np.array([part.var(ddof=1) / len(part) if len(part) > 1 else np.nan for part in parts]),
        groups.counts,
        int((~known).sum()),
    )
    statistics = _student_columns(  # not tested: a group mean need not be 0
        units,
        means.mean,
        means.error[:, None],
        np.diag(units.other_cov),
        (means.sizes - 1.0)[:, None],
        units.null_means,
    )
    yield rows(
        len(groups.names),
        **constants,
        **statistics,
        metric=metric,
        group=list(groups.names),
        n=len(scores),
        n_group=means.sizes,
        n_undefined=means.undefined,
        note=[note if np.isfinite(m) else "no unit of this group has a value" for m in means.mean],
    )
    yield _difference_rows(units, means, metric, constants, note)
    yield rows(
        1,
        **constants,
        metric=f"{metric}_range",
        ideal=0.0,
        **columns(np.ptp(means.mean), p=_p_of_any_difference(units, means), side="greater"),
        n=len(scores),
        n_undefined=means.undefined,
        note=note if np.isfinite(means.mean).all() else "a group has no value",
    )


def _difference_rows(
    units: ResamplingUnits,
    means: GroupMeans,
    metric: str,
    constants: dict[str, Any],
    note: str | None,
) -> pa.Table:
    """The difference of each pair of groups."""
    names, (mean, error, count, _) = units.groups.names, means
    pairs = list(itertools.combinations(range(len(names)), 2))
    a, b = np.array(pairs).T
    diagonal = np.diag(units.other_cov)
    statistics = _student_columns(
        units,
        mean[a] - mean[b],
        np.column_stack([error[a], error[b]]),
        diagonal[a] + diagonal[b] - 2 * units.other_cov[a, b],
        np.column_stack([count[a] - 1.0, count[b] - 1.0]),
        units.null_means[:, a] - units.null_means[:, b],
        side="two",
        family="holm",
    )
    return rows(
        len(pairs),
        **constants,
        **statistics,
        metric=f"{metric}_difference",
        group=[names[code] for code in a],
        target=[names[code] for code in b],
        ideal=0.0,
        n=(count[a] + count[b]).tolist(),
        n_group=count[a].tolist(),
        n_undefined=means.undefined,
        note=[note if np.isfinite(v) else "a group has no value" for v in statistics["value"]],
    )


def _student_columns(
    units: ResamplingUnits,
    value: Floats,
    own_variance: Floats,
    other_variance: Floats,
    freedom: Floats,
    null: Floats,
    **test: Any,
) -> dict[str, Any]:
    variances = np.column_stack([own_variance, other_variance])
    limits = np.column_stack([freedom, np.full(len(value), units.freedom)])
    low, high, p = student(value, variances, limits)
    statistics = columns(value, null=null, p=p, **test, interval=Interval(edges=(low, high)))
    return {**statistics, "ci_method": "Student, over queries and items"}


def _p_of_any_difference(units: ResamplingUnits, means: GroupMeans) -> float:
    cov = np.diag(means.error) + units.other_cov
    if not np.isfinite(cov).all():
        return float("nan")
    variances = np.append(means.error, np.trace(units.other_cov) / len(means.mean))
    return wald(means.mean, cov, _freedom(variances, np.append(means.sizes - 1.0, units.freedom)))


def student(value: Floats, variances: Floats, freedom: Floats) -> tuple[Floats, Floats, Floats]:
    """Interval and two-sided p of values whose variance is a sum of parts (rows x parts)."""
    from scipy.special import stdtr, stdtrit

    error = np.sqrt(variances.sum(axis=1))
    df = np.array([_freedom(*parts) for parts in zip(variances, freedom, strict=True)])
    half = stdtrit(df, 0.975) * error
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(error > 0, 2 * stdtr(df, -np.abs(value / error)), np.nan)
    return value - half, value + half, p


def _freedom(variances: Floats, freedom: Floats) -> float:
    """Welch's degrees of freedom of a sum of variances."""
    positive = variances > 0
    if not positive.any() or np.isnan(variances).any():
        return float("nan")
    return float(variances.sum() ** 2 / (variances[positive] ** 2 / freedom[positive]).sum())
