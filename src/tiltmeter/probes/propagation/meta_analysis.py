"""Pooled correlations of the probe `propagation`, over analyses and models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import factorial
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.errors import InputError
from tiltmeter.metrics.propagation import spearman, z_scores
from tiltmeter.probes.propagation.estimates import z_interval
from tiltmeter.probes.propagation.experiments import BANDS
from tiltmeter.results import Run, combined, rows
from tiltmeter.stats.intervals import Z
from tiltmeter.stats.paired import paired_test
from tiltmeter.stats.significance import Interval, columns

Row = dict[str, Any]


@dataclass(frozen=True)
class PooledCorrelation:
    """The pooled correlation of several analyses."""

    analyses: int
    mean: float
    sd: float  # n - 1
    fisher: float  # tanh of the mean of Fisher's z
    ci_low: float  # of `fisher`, Student's over analyses
    ci_high: float
    reference: float | None = None  # mean rho under permuted labels


def pooled(rhos: Sequence[float]) -> PooledCorrelation:
    """Mean and standard deviation of rhos, and their mean by Fisher's z with its interval.

    The interval treats analyses as independent, which those of one model are not: it describes how
    much the analyses differ.

    >>> together = pooled([0.8, 0.9])
    >>> round(together.mean, 3), round(together.fisher, 4)
    (0.85, 0.8579)
    """
    from scipy.special import stdtrit

    x = np.asarray(rhos, dtype=float)
    x = x[~np.isnan(x)]
    if len(x) == 0:
        raise InputError("there is no defined rho to pool")
    z = np.arctanh(np.clip(x, -1 + 1e-12, 1 - 1e-12))
    low = high = sd = float("nan")
    if len(x) > 1:
        sd = float(x.std(ddof=1))
        half = stdtrit(len(x) - 1, 0.975) * z.std(ddof=1) / np.sqrt(len(x))
        low, high = float(np.tanh(z.mean() - half)), float(np.tanh(z.mean() + half))
    return PooledCorrelation(len(x), float(x.mean()), sd, float(np.tanh(z.mean())), low, high)


def reference(analyses: Sequence[Row]) -> float | None:
    """The mean of the analyses' rhos under permuted labels; None if they have none."""
    means = [row["null_mean"] for row in analyses if row["null_mean"] is not None]
    return float(np.mean(means)) if means else None


def analyses_of(runs: Iterable[Run], k: int | None = None) -> list[Row]:
    """Rows of every rho of the runs, at `k` or each experiment's largest k.

    For M models and G groups, with all data, there are 2 M + 6 M G: 114 for three models and six
    groups.
    """
    analyses = []
    for run in runs:
        rhos = [row for row in run.where(probe="propagation", metric="rho") if row["k"]]
        for name in dict.fromkeys(row["experiment"] for row in rhos):
            of_experiment = [row for row in rhos if row["experiment"] == name]
            chosen_k = k or max(row["k"] for row in of_experiment)
            analyses += [
                row for row in of_experiment if row["k"] == chosen_k and row["value"] is not None
            ]
    if not analyses:
        raise InputError("these runs have no results of the probe propagation: audit with --probe "
                         "propagation first")  # fmt: skip
    return analyses


def meta_analysis(runs: Iterable[Run], k: int | None = None) -> dict[str | None, PooledCorrelation]:
    """Pooled correlation by experiment, and over all of them (key None).

    Parameters
    ----------
    runs : iterable of Run
        Runs of the probe `propagation`, one per model.
    k : int, optional
        Number of retrieved items. Defaults to each experiment's largest.

    Returns
    -------
    dict
        A `PooledCorrelation` for each experiment, and for None.

    Raises
    ------
    InputError
        If the runs have no results of the probe.
    """
    analyses = analyses_of(runs, k)
    names = list(dict.fromkeys(row["experiment"] for row in analyses))
    by_name: dict[str | None, PooledCorrelation] = {
        name: _pooled([row for row in analyses if row["experiment"] == name]) for name in names
    }
    return {**by_name, None: _pooled(analyses)}


def _pooled(analyses: Sequence[Row]) -> PooledCorrelation:
    return replace(pooled([row["value"] for row in analyses]), reference=reference(analyses))


#: Figures 6 and 7: the experiments that each pools, and the metric of group means.
FIGURES = (
    (("1-a", "1-b"), "intrinsic", (None,)),
    (("2-a", "2-b"), "intrinsic_by_valence", BANDS),
)


def pooled_z(tables: Iterable[pa.Table], constants: dict[str, Any]) -> Iterator[pa.Table]:
    """Mean intrinsic effect of each group over experiments and models, as z-scores over groups.

    Figure 6 of the paper pools 1-a and 1-b, Figure 7 pools 2-a and 2-b for pleasant and for
    unpleasant queries. The interval has the errors of the single means, taken as independent.
    """
    rows_listed = [row for table in tables for row in table.to_pylist()]
    for experiments, metric, bands in FIGURES:
        for band in bands:
            chosen = [
                row
                for row in rows_listed
                if row["metric"] == metric and row["category"] == band and row["value"] is not None
                and (row["experiment"] or "").partition(" ")[0] in experiments
            ]  # fmt: skip
            cells: dict[tuple[str, str], dict[str, Row]] = {}
            for row in chosen:
                cells.setdefault((row["model"], row["experiment"]), {})[row["group"]] = row
            names = list(dict.fromkeys(row["group"] for row in chosen))
            complete = [cell for cell in cells.values() if set(cell) == set(names)]
            if len(names) < 3 or not complete:  # of two groups both are 1 and -1
                continue
            means = np.mean([[cell[name]["value"] for name in names] for cell in complete], axis=0)
            errors = np.array([[_error(cell[name]) for name in names] for cell in complete])
            z, interval = z_scores(means), None
            if np.isfinite(errors).all() and np.isfinite(z).all():
                variance = (errors**2).sum(axis=0) / len(complete) ** 2
                interval = Interval(edges=z_interval(means, np.diag(variance)),
                                    method="normal errors of means")  # fmt: skip
            yield rows(
                len(names),
                **constants,
                metric="intrinsic_z",
                experiment=" + ".join(experiments),
                group=names,
                category=band,
                **columns(z, interval=interval),
                n=len(complete),
                note=f"mean of {len(complete)} experiments and models",
            )


def _error(row: Row) -> float:
    """Standard error of a mean, from its interval."""
    if row["ci_low"] is None:
        return float("nan")
    return float(row["ci_high"] - row["ci_low"]) / (2 * Z)


@dataclass(frozen=True)
class SizeTrend:
    """Models sorted by size, and whether rho increases with size."""

    models: list[dict[str, Any]]  # model, parameters, by experiment, mean, sd, analyses
    #: Two models: mean increase of rho over shared analyses, with a sign-flip p. More models:
    #: Spearman's correlation of size and mean rho, with a permutation p.
    trend: float
    p: float
    method: str


def by_size(
    runs: Sequence[Run],
    sizes: Mapping[str, float] | None = None,
    *,
    k: int | None = None,
    seed: int = 0,
) -> SizeTrend:
    """Test whether larger models propagate more bias.

    Parameters
    ----------
    runs : sequence of Run
        Runs of the probe `propagation`, one per model, at least two.
    sizes : mapping, optional
        Number of parameters by model name, if not recorded in the run.
    k : int, optional
        Number of retrieved items. Defaults to each experiment's largest.
    seed : int
        Seed of the permutations.

    Returns
    -------
    SizeTrend

    Raises
    ------
    InputError
        If a size is unknown, or if there are fewer than two runs.
    """
    table: list[dict[str, Any]] = []
    values: list[dict[tuple[Any, ...], float]] = []
    for run in runs:
        analyses = analyses_of([run], k)
        name = analyses[0]["model"]
        [size] = run.where(probe="propagation", metric="parameters") or [{"value": None}]
        count = (sizes or {}).get(name, size["value"])
        if count is None:
            raise InputError(f"the size of {name} is unknown: pass sizes={{{name!r}: PARAMETERS}}")
        by_experiment = meta_analysis([run], k)
        overall = by_experiment.pop(None)
        table.append(
            {
                "model": name,
                "parameters": count,
                "mean": overall.mean,
                "sd": overall.sd,
                "analyses": overall.analyses,
                **{str(name): pooled_rho.mean for name, pooled_rho in by_experiment.items()},
            }
        )
        values.append({(row["experiment"], row["group"]): row["value"] for row in analyses})
    order = np.argsort([entry["parameters"] for entry in table], kind="stable")
    table, values = [table[row] for row in order], [values[row] for row in order]
    if len(table) < 2:
        raise InputError("a trend over model sizes needs at least two runs; got one")
    if len({entry["parameters"] for entry in table}) < 2:
        raise InputError("a trend over model sizes needs models of different sizes")
    if len(table) == 2:
        both = [key for key in values[0] if key in values[1]]
        change = paired_test(
            np.array([values[0][key] for key in both]),
            np.array([values[1][key] for key in both]),
            rng=np.random.default_rng(seed),
        )
        method = f"mean rise over {len(both)} analyses, sign flips"
        return SizeTrend(table, change.mean, change.p, method)
    parameters, means = ([entry[name] for entry in table] for name in ("parameters", "mean"))
    trend, p, method = _trend(parameters, means, np.random.default_rng(seed))
    return SizeTrend(table, trend, p, f"Spearman over {len(table)} models, {method}")


def _trend(
    sizes: Sequence[float], means: Sequence[float], rng: np.random.Generator
) -> tuple[float, float, str]:
    """Spearman's rho and its two-sided permutation p, exact for few models."""
    x, y = np.array(sizes, float), np.array(means, float)
    observed = float(spearman(x, y)[0])
    exact = factorial(len(x)) <= 50_000
    orders: Iterable[Any] = (
        permutations(range(len(x))) if exact else (rng.permutation(len(x)) for _ in range(9999))
    )
    permuted = np.array([spearman(x, y[list(order)])[0] for order in orders])
    hits = (np.abs(permuted) >= abs(observed) - 1e-9).sum()
    p = hits / len(permuted) if exact else (hits + 1) / (len(permuted) + 1)
    return observed, float(p), "all orders" if exact else "random orders"


def pooled_rows(table: pa.Table, constants: dict[str, Any]) -> pa.Table:
    """One model's mean and standard deviation of rho, by experiment and k, and over all."""
    rhos = [row for row in table.to_pylist() if row["metric"] == "rho" and row["k"]]
    rhos = [row for row in rhos if row["value"] is not None]
    units: dict[tuple[str | None, int | None], list[Row]] = {}
    for row in rhos:
        units.setdefault((row["experiment"], row["k"]), []).append(row)
    last = {row["experiment"]: row["k"] for row in rhos}  # each experiment's largest k
    if len(last) > 1:
        units[None, None] = [row for row in rhos if row["k"] == last[row["experiment"]]]
    tables = []
    for (name, k), analyses in units.items():
        row = _pooled(analyses)
        shared = {**constants, "experiment": name, "k": k, "n": row.analyses}
        tables.append(
            rows(1, **shared, metric="rho_mean", null_mean=row.reference,
                 **columns(row.mean, interval=Interval(edges=(row.ci_low, row.ci_high),
                                                       method="Fisher z over analyses")))
        )  # fmt: skip
        if row.analyses > 1:
            tables.append(rows(1, **shared, metric="rho_sd", value=row.sd))
    return combined(tables)
