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

from tiltmeter.metrics.propagation import (
    spearman,
    spearman_resamples,
    spearman_rows,
    spearman_without_each,
)
from tiltmeter.probes.propagation.experiments import (
    ExperimentInput,
    ExperimentResult,
    PropagationConfig,
    permuted,
)
from tiltmeter.results import combined, rows
from tiltmeter.stats import defined
from tiltmeter.stats.bootstrap import interval
from tiltmeter.stats.clustered import Clusters, MeanError, group_covariance, mean_error
from tiltmeter.stats.null import NullBand, null_band, p_from_null_draws
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
            for k_index in range(ks):
                under_null.rho[drawn, k_index, row] = np.mean(
                    [
                        spearman_rows(
                            intrinsic[analysis.rows, :, analysis.column].T,
                            extrinsic[analysis.rows, k_index, :, analysis.column].T,
                        )
                        for intrinsic, extrinsic in part.rho_scores
                    ],
                    axis=0,
                )
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
    undefined, methods = np.zeros(len(planned), int), [""] * len(planned)
    errors: list[RhoError] = []
    weights: dict[bytes, Floats] = {}  # groups that share queries share their resamples
    for row, analysis in enumerate(planned):
        pairs = [
            (intrinsic[analysis.rows, 0, analysis.column],
             extrinsic[analysis.rows, k_index, 0, analysis.column])
            for intrinsic, extrinsic in measured.rho_scores
        ]  # fmt: skip
        known = ~np.isnan([x for x, _ in pairs]).any(axis=0)
        undefined[row] = (~known).sum()
        pairs = [(x[known], y[known]) for x, y in pairs]
        if reason := _no_rho(pairs):
            notes[row] = "; ".join(filter(None, [f"no rho: {reason}", note]))
            continue
        value[row] = np.mean([spearman(x, y)[0] for x, y in pairs])
        if not np.isnan(null_rhos[:, row]).all():
            null[:, row] = null_band(null_rhos[:, row])
            p[row] = p_from_null_draws(value[row], null_rhos[:, row], "greater")
        if not resampling.bootstraps:
            continue
        if measured.queries.clusters:
            clusters = [measured.queries.clusters[query] for query in analysis.rows[known]]
            error = clustered_rho_error(pairs, value[row], clusters)
            low[row], high[row] = error.interval(value[row])
            methods[row] = "jackknife over queries, clustered"
        else:
            key = known.tobytes() + analysis.rows.tobytes()
            if key not in weights:
                n = len(pairs[0][0])
                weights[key] = rng.multinomial(n, np.full(n, 1 / n), resampling.bootstraps)
            boot = np.mean([spearman_resamples(x, y, weights[key]) for x, y in pairs], axis=0)
            low[row], high[row] = interval(boot, value[row])
            methods[row] = "bootstrap over queries"
            error = RhoError(float(np.nanvar(_fisher(boot), ddof=1)), len(boot) - 1.0, boot)
        errors.append(error)
    statistics = columns(
        value,
        null=NullBand(*null),
        p=p,
        side="greater",
        family="holm",
        interval=Interval(edges=(low, high)),
    )
    yield rows(
        len(planned),
        **constants,
        metric="rho",
        group=[analysis.group for analysis in planned],
        **{**statistics, "ci_method": [method or None for method in methods]},
        n=[len(analysis.rows) for analysis in planned],
        n_group=[len(analysis.rows) for analysis in planned],
        n_undefined=undefined,
        note=notes,
    )
    if len(planned) > 1 and len(errors) == len(planned):
        yield _do_rhos_differ(value, errors, len(weights) == 1, constants, len(measured.queries))


def _no_rho(pairs: list[tuple[Floats, Floats]]) -> str | None:
    """Why there is no rho, or None."""
    if len(pairs[0][0]) < 2:
        return "fewer than two queries"
    if any(np.ptp(values) == 0 for pair in pairs for values in pair):
        return "one of the two scores does not vary"
    return None


class RhoError(NamedTuple):
    """The variance of Fisher's z of a rho, its degrees of freedom, and its resamples, if any."""

    variance: float
    freedom: float
    resamples: Floats | None = None

    def interval(self, rho: float) -> tuple[float, float]:
        """Student's interval of Fisher's z, as correlations."""
        from scipy.special import stdtrit

        z, half = _fisher(rho), stdtrit(self.freedom, 0.975) * np.sqrt(self.variance)
        return float(np.tanh(z - half)), float(np.tanh(z + half))


def clustered_rho_error(
    pairs: list[tuple[Floats, Floats]], rho: float, clusters: Clusters
) -> RhoError:
    """The error of a rho, or of a mean of rhos, over queries that share clusters.

    Each query is left out in turn; the changes of rho are errors of a mean over queries.
    """
    without = np.mean([spearman_without_each(x, y) for x, y in pairs], axis=0)
    changes = (len(without) - 1) * (rho - without)
    usable = ~np.isnan(changes)
    kept = [names for names, use in zip(clusters, usable, strict=True) if use]
    error = mean_error(changes[usable], kept)
    slope = 1 / (1 - min(rho**2, 1 - 1e-9))  # of Fisher's z
    return RhoError(error.variance * slope**2, error.freedom)


def _fisher(rho: Any) -> Any:
    return np.arctanh(np.clip(rho, -1 + 1e-9, 1 - 1e-9))


def _do_rhos_differ(
    value: Floats, errors: list[RhoError], shared: bool, constants: dict[str, Any], n: int
) -> pa.Table:
    """Largest minus smallest rho; p of Wald's test on Fisher's z that all are equal."""
    cov = np.diag([error.variance for error in errors])
    freedom = min(error.freedom for error in errors)
    boots = [error.resamples for error in errors if error.resamples is not None]
    if shared and len(boots) == len(errors):
        z_draws = _fisher(np.stack(boots))
        usable = ~np.isnan(z_draws).any(axis=0)
        cov, freedom = np.atleast_2d(np.cov(z_draws[:, usable])), usable.sum() - 1.0
    p = equal_means_p(_fisher(value), cov, freedom) if np.isfinite(cov).all() else float("nan")
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


def equal_means_p(means: Floats, cov: Floats, freedom: float) -> float:
    """p of Hotelling's test that all means are equal; NaN if no difference has any variance.

    >>> round(equal_means_p(np.array([0.0, 1.96]), np.diag([0.5, 0.5]), 10**6), 3)
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
    clusters: tuple[tuple[str, ...], ...] = ()


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
            numbers[:, 0], queries, null_means, other, max(len(null_means) - 1.0, 1.0),
            measured.queries.clusters,
        )  # fmt: skip
    assert items is not None
    of_items, shared = items[rows], clusters_of(measured.items, rows)
    if measured.experiment.grouped:
        assert queries is not None
        own_scores = numbers[np.arange(len(numbers)), queries.codes]
        errors = [
            group_error(row, of_items, code, shared) for code, row in enumerate(item_standing)
        ]
        other = np.diag(np.nan_to_num([error.variance for error in errors]))
        freedom = max(float(np.nanmin([error.freedom for error in errors])), 1.0)
        return ResamplingUnits(
            own_scores, queries, null_means, other, freedom, measured.queries.clusters
        )
    complete = numbers[~np.isnan(numbers).any(axis=1)]
    other = np.atleast_2d(np.cov(complete.T)) / len(complete)
    return ResamplingUnits(
        item_standing[0], of_items, null_means, other, len(complete) - 1.0, shared
    )


def clusters_of(side: ExperimentInput, rows: Ints | slice) -> tuple[tuple[str, ...], ...]:
    """Clusters of the given rows; empty if the side has none."""
    if not side.clusters:
        return ()
    at = np.arange(len(side))[rows]
    return tuple(side.clusters[row] for row in at)


def group_error(scores: Floats, groups: Groups, code: int, clusters: Clusters) -> MeanError:
    """The error of the mean score of one group."""
    rows = np.flatnonzero(groups.codes == code)
    return mean_error(scores[rows], [clusters[row] for row in rows.tolist()] if clusters else ())


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
    """Mean of each group and their covariance, over units."""

    mean: Floats
    covariance: Floats  # of the means, from the units
    freedom: Floats
    sizes: Ints
    undefined: int  # units without a value

    @classmethod
    def of(cls, units: ResamplingUnits) -> GroupMeans:
        known = np.flatnonzero(~np.isnan(units.scores))
        scores, groups = units.scores[known], units.groups[known]
        clusters = [units.clusters[row] for row in known] if units.clusters else ()
        codes = range(len(groups.names))
        errors = [group_error(scores, groups, code, clusters) for code in codes]
        return cls(
            np.array([scores[groups.codes == code].mean() if (groups.codes == code).any()
                      else np.nan for code in codes]),
            group_covariance(scores, groups, clusters),
            np.array([error.freedom for error in errors]),
            groups.counts,
            len(units.scores) - len(known),
        )  # fmt: skip


def _between(
    units: ResamplingUnits, metric: str, constants: dict[str, Any], note: str | None
) -> Iterator[pa.Table]:
    """Group means, the difference of each pair, and a test of any difference."""
    means, groups = GroupMeans.of(units), units.groups
    n = int(means.sizes.sum())
    statistics = _student_columns(  # not tested: a group mean need not be 0
        units,
        means.mean,
        np.diag(means.covariance)[:, None],
        np.diag(units.other_cov),
        means.freedom[:, None],
        units.null_means,
    )
    yield rows(
        len(groups.names),
        **constants,
        **statistics,
        metric=metric,
        group=list(groups.names),
        n=n,
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
        n=n,
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
    names, mean, count = units.groups.names, means.mean, means.sizes
    covariance = means.covariance
    pairs = list(itertools.combinations(range(len(names)), 2))
    a, b = np.array(pairs).T
    diagonal, variance = np.diag(units.other_cov), np.diag(covariance)
    own = np.column_stack([variance[a], variance[b]])
    freedom = np.column_stack([means.freedom[a], means.freedom[b]])
    if units.clusters:  # one variance: groups may share clusters
        own = (variance[a] + variance[b] - 2 * covariance[a, b])[:, None]
        freedom = freedom.min(axis=1, keepdims=True)
    statistics = _student_columns(
        units,
        mean[a] - mean[b],
        own,
        diagonal[a] + diagonal[b] - 2 * units.other_cov[a, b],
        freedom,
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
    clustered = ", clustered" if units.clusters else ""
    return {**statistics, "ci_method": f"Student, over queries and items{clustered}"}


def _p_of_any_difference(units: ResamplingUnits, means: GroupMeans) -> float:
    cov = means.covariance + units.other_cov
    if not np.isfinite(cov).all():
        return float("nan")
    variances = np.append(np.diag(means.covariance), np.trace(units.other_cov) / len(means.mean))
    return equal_means_p(
        means.mean, cov, _freedom(variances, np.append(means.freedom, units.freedom))
    )


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
