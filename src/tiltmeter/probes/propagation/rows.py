"""What the two numbers of each query say: rho by group, and how far groups lie apart.

A rho needs a reference, because both numbers read the same vectors. Bias proper is a difference
between groups, of the mean intrinsic and of the mean extrinsic number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tiltmeter.metrics.propagation import spearman, spearman_draws, spearman_rows
from tiltmeter.probes.propagation.experiments import ExperimentResult, PropagationConfig, permuted
from tiltmeter.results import combined, rows
from tiltmeter.stats import defined
from tiltmeter.stats.bootstrap import interval
from tiltmeter.stats.null import NullBand, band_of, p_of_draws
from tiltmeter.stats.resampling import Resampling
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Floats, Groups, Ints


class Analysis(NamedTuple):
    """One rho: some queries, and the column of their numbers."""

    group: str | None
    rows: Ints
    column: int


def analyses(measured: ExperimentResult) -> list[Analysis]:
    """A group's own queries where queries have groups, else all queries for each target group."""
    whole = np.arange(len(measured.queries))
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
        return [Analysis(name, whole, code) for code, name in enumerate(of_items.names)]
    return [Analysis(None, whole, 0)]


class References(NamedTuple):
    """What each permutation of the labels gives: every rho, and the means of the groups."""

    rho: Floats  # permutations x k x analyses
    intrinsic: Floats  # permutations x groups
    extrinsic: Floats  # permutations x k x groups


def references(
    measured: ExperimentResult,
    choices: PropagationConfig,
    permutations: int,
    rng: np.random.Generator,
) -> References:
    """Of some permutations at a time only what the rows need is kept."""
    found, ks = analyses(measured), len(measured.k)
    groups = len(measured.groups.names) if measured.groups is not None else 0
    again = References(
        np.empty((permutations, ks, len(found))),
        np.empty((permutations, groups)),
        np.empty((permutations, ks, groups)),
    )
    start = 0
    for part in permuted(measured, choices, permutations, rng):
        ways = slice(start, start := start + part.intrinsic.shape[1])
        for row, one in enumerate(found):
            x = part.intrinsic[one.rows, :, one.column].T
            for at in range(ks):
                y = part.extrinsic[one.rows, at, :, one.column].T
                again.rho[ways, at, row] = spearman_rows(x, y)
        if groups:
            again.intrinsic[ways] = _group_means(part, part.intrinsic)
            for at in range(ks):
                again.extrinsic[ways, at] = _group_means(part, part.extrinsic[:, at])
    return again


def tabulate(
    measured: ExperimentResult,
    choices: PropagationConfig,
    resampling: Resampling,
    rng: np.random.Generator,
    constants: dict[str, Any],
) -> pa.Table:
    """All rows of one experiment."""
    note = "; ".join(measured.notes) or None
    again = references(measured, choices, resampling.permutations, rng)
    tables: list[pa.Table] = []
    for at, k in enumerate(measured.k):
        tables += _rhos(
            measured, at, again.rho[:, at], resampling, rng, {**constants, "k": k}, note
        )
    if measured.groups is not None:
        tables += _between(_intrinsic(measured, again.intrinsic), "intrinsic", constants, note)
        for at, k in enumerate(measured.k):
            units = _extrinsic(measured, at, again.extrinsic[:, at])
            tables += _between(units, "extrinsic", {**constants, "k": k}, note)
    return combined(tables)


def _rhos(
    measured: ExperimentResult,
    at: int,
    again: Floats,
    resampling: Resampling,
    rng: np.random.Generator,
    constants: dict[str, Any],
    note: str | None,
) -> Iterator[pa.Table]:
    """Spearman's rho of each analysis, beside those with permuted labels (`again`)."""
    found = analyses(measured)
    value, low, high, p = (np.full(len(found), np.nan) for _ in range(4))
    null, notes = np.full((3, len(found)), np.nan), [note] * len(found)
    undefined, boots = np.zeros(len(found), int), []
    weights: dict[bytes, Floats] = {}  # the same queries are drawn for all groups that share them
    for row, one in enumerate(found):
        x = measured.intrinsic[one.rows, 0, one.column]
        y = measured.extrinsic[one.rows, at, 0, one.column]
        there = ~np.isnan(x)
        undefined[row] = (~there).sum()
        x, y = x[there], y[there]
        if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
            why = "fewer than two queries" if len(x) < 2 else "one of the two does not vary"
            notes[row] = "; ".join(filter(None, [f"no rho: {why}", note]))
            continue
        value[row] = spearman(x, y)[0]
        if not np.isnan(again[:, row]).all():
            null[:, row] = band_of(again[:, row])
            p[row] = p_of_draws(value[row], again[:, row], "greater")
        if resampling.bootstraps:
            key = there.tobytes() + one.rows.tobytes()
            if key not in weights:
                even = np.full(len(x), 1 / len(x))
                weights[key] = rng.multinomial(len(x), even, resampling.bootstraps)
            boot = spearman_draws(x, y, weights[key])
            low[row], high[row] = interval(boot, value[row])
            boots.append(boot)
    yield rows(
        len(found),
        **constants,
        metric="rho",
        group=[one.group for one in found],
        **columns(
            value,
            null=NullBand(*null),
            p=p,
            side="greater",
            family="holm",
            interval=Interval(edges=(low, high), method="bootstrap over queries"),
        ),
        n=[len(one.rows) for one in found],
        n_group=[len(one.rows) for one in found],
        n_undefined=undefined,
        note=notes,
    )
    if len(found) > 1 and len(boots) == len(found):
        shared = len(weights) == 1
        yield _do_rhos_differ(value, np.stack(boots), shared, constants, len(measured.queries))


def _do_rhos_differ(
    value: Floats, boots: Floats, shared: bool, constants: dict[str, Any], n: int
) -> pa.Table:
    """The largest rho less the smallest; p of Wald's test that all are equal, as Fisher's z."""
    z, drawn = (np.arctanh(np.clip(x, -1 + 1e-9, 1 - 1e-9)) for x in (value, boots))
    usable = ~np.isnan(drawn).any(axis=0)
    cov = np.atleast_2d(np.cov(drawn[:, usable]))
    p = wald(z, cov if shared else np.diag(np.diag(cov)), int(usable.sum()) - 1)
    mirror = "the groups' rho are one and the same number, seen from either side"
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
    """p of Hotelling's test that all means are equal; NaN where no difference has any error.

    >>> round(wald(np.array([0.0, 1.96]), np.diag([0.5, 0.5]), 10**6), 3)
    0.05
    """
    from scipy.stats import f

    contrast = np.eye(len(means))[1:] - np.eye(len(means))[:-1]
    gaps, spread = contrast @ means, contrast @ cov @ contrast.T
    size, axes = np.linalg.eigh(spread)
    kept = size > 1e-10 * max(float(np.trace(cov)), 1e-300)
    rank = int(kept.sum())
    left = freedom - rank + 1
    if rank == 0 or left < 1:
        return float("nan")
    t2 = float((((axes.T @ gaps)[kept]) ** 2 / size[kept]).sum())
    return float(f.sf(t2 * left / (freedom * rank), rank, left))


@dataclass(frozen=True, eq=False)
class ResamplingUnits:
    """What group means are taken over: queries, or items where only these have groups.

    The units are one source of error. The other is the other side of the experiment: `other` is
    what it adds to the covariance of the group means, with `freedom`. `again` are the group means
    with the items' labels permuted, permutations x groups.
    """

    scores: Floats
    groups: Groups
    again: Floats
    other: Floats
    freedom: float


def by_code(numbers: Floats, groups: Groups) -> Floats:
    """Means of the rows of each group: columns x groups."""
    return np.stack([defined.mean(numbers[groups.codes == code]) for code in
                     range(len(groups.names))], axis=1)  # fmt: skip


def _group_means(measured: ExperimentResult, numbers: Floats) -> Floats:
    """Of numbers (queries x ways x columns), ways x groups."""
    queries = measured.queries.groups
    if not measured.experiment.grouped:
        return defined.mean(numbers)
    assert queries is not None
    columns = queries.codes if measured.experiment.content == "group" else 0
    return by_code(numbers[np.arange(len(numbers)), :, columns], queries)


def _units(
    measured: ExperimentResult, numbers: Floats, again: Floats, standing: Floats, rows: Ints | slice
) -> ResamplingUnits:
    """Of the numbers (queries x columns) and the items' part in them (query groups x items).

    `standing` is scaled so that a group's number is the mean over its items, which are `rows`.
    """
    queries, items = measured.queries.groups, measured.items.groups
    if measured.experiment.grouped and measured.experiment.content == "valence":
        assert queries is not None
        # which items are called pleasant: as far as groups lie apart when these are others
        other = np.cov(again.T) if len(again) > 1 else np.zeros((len(queries.names),) * 2)
        return ResamplingUnits(numbers[:, 0], queries, again, other, max(len(again) - 1.0, 1.0))
    assert items is not None
    of_items = items[rows]
    if measured.experiment.grouped:
        assert queries is not None
        own = numbers[np.arange(len(numbers)), queries.codes]
        parts = [row[of_items.codes == code] for code, row in enumerate(standing)]
        other = np.diag([part.var(ddof=1) / len(part) if len(part) > 1 else 0.0 for part in parts])
        freedom = max(min(len(part) for part in parts) - 1.0, 1.0)
        return ResamplingUnits(own, queries, again, other, freedom)
    there = numbers[~np.isnan(numbers).any(axis=1)]
    other = np.atleast_2d(np.cov(there.T)) / len(there)
    return ResamplingUnits(standing[0], of_items, again, other, len(there) - 1.0)


def _intrinsic(measured: ExperimentResult, again: Floats) -> ResamplingUnits:
    standing = np.zeros((1, 0)) if measured.pull is None else measured.pull
    rows = slice(0) if measured.members is None else measured.members
    return _units(measured, measured.intrinsic[:, 0], again, standing, rows)


def _extrinsic(measured: ExperimentResult, at: int, again: Floats) -> ResamplingUnits:
    groups, reach = measured.items.groups, measured.reach[at]
    if groups is not None:  # a group's share is the sum over its items: the mean of so many times
        reach = reach * groups.counts[groups.codes]
    return _units(measured, measured.extrinsic[:, at, 0], again, reach, slice(None))


def _between(
    units: ResamplingUnits, metric: str, constants: dict[str, Any], note: str | None
) -> Iterator[pa.Table]:
    """Group means, the difference of each pair, and whether there is any."""
    there = ~np.isnan(units.scores)
    scores, groups = units.scores[there], units.groups[there]
    names, count, undefined = groups.names, groups.counts, int((~there).sum())
    parts = [scores[groups.codes == code] for code in range(len(names))]
    mean = np.array([part.mean() if len(part) else np.nan for part in parts])
    error = np.array([part.var(ddof=1) / len(part) if len(part) > 1 else np.nan for part in parts])
    pairs = list(itertools.combinations(range(len(names)), 2))
    a, b = np.array(pairs).T

    def beside(
        value: Floats, own: Floats, other: Floats, freedom: Floats, null: Floats, **test: Any
    ) -> dict[str, Any]:
        variances = np.column_stack([own, other])
        limits = np.column_stack([freedom, np.full(len(value), units.freedom)])
        low, high, p = student(value, variances, limits)
        found = columns(value, null=null, p=p, **test, interval=Interval(edges=(low, high)))
        return {**found, "ci_method": "Student, over queries and items"}

    found = beside(  # not tested: a mean need not be 0
        mean, error[:, None], np.diag(units.other), (count - 1.0)[:, None], units.again
    )
    yield rows(
        len(names),
        **constants,
        **found,
        metric=metric,
        group=list(names),
        n=len(scores),
        n_group=count,
        n_undefined=undefined,
        note=[note if np.isfinite(m) else "no value for any of this group" for m in mean],
    )
    diagonal = np.diag(units.other)
    found = beside(
        mean[a] - mean[b],
        np.column_stack([error[a], error[b]]),
        diagonal[a] + diagonal[b] - 2 * units.other[a, b],
        np.column_stack([count[a] - 1.0, count[b] - 1.0]),
        units.again[:, a] - units.again[:, b],
        side="two",
        family="holm",
    )
    yield rows(
        len(pairs),
        **constants,
        **found,
        metric=f"{metric}_difference",
        group=[names[one] for one in a],
        target=[names[one] for one in b],
        ideal=0.0,
        n=(count[a] + count[b]).tolist(),
        n_group=count[a].tolist(),
        n_undefined=undefined,
        note=[note if np.isfinite(v) else "a group has no value" for v in found["value"]],
    )
    cov, p = np.diag(error) + units.other, float("nan")
    if np.isfinite(cov).all():
        sizes = np.append(error, np.trace(units.other) / len(names))
        p = wald(mean, cov, _freedom(sizes, np.append(count - 1.0, units.freedom)))
    yield rows(
        1,
        **constants,
        metric=f"{metric}_range",
        ideal=0.0,
        **columns(np.ptp(mean), p=p, side="greater"),
        n=len(scores),
        n_undefined=undefined,
        note=note if np.isfinite(mean).all() else "a group has no value",
    )


def student(value: Floats, variances: Floats, freedom: Floats) -> tuple[Floats, Floats, Floats]:
    """Interval and two-sided p of values whose variance has parts (rows x parts)."""
    from scipy.special import stdtr, stdtrit

    error = np.sqrt(variances.sum(axis=1))
    df = np.array([_freedom(*one) for one in zip(variances, freedom, strict=True)])
    half = stdtrit(df, 0.975) * error
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(error > 0, 2 * stdtr(df, -np.abs(value / error)), np.nan)
    return value - half, value + half, p


def _freedom(variances: Floats, freedom: Floats) -> float:
    """Welch's degrees of freedom of a sum of variances."""
    told = variances > 0
    if not told.any() or np.isnan(variances).any():
        return float("nan")
    return float(variances.sum() ** 2 / (variances[told] ** 2 / freedom[told]).sum())
