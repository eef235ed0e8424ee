"""Propagation over analyses and over models: means, Fisher's z, and does size matter?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import factorial
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.errors import InputError
from tiltmeter.metrics.propagation import spearman
from tiltmeter.results import Run, combined, rows
from tiltmeter.stats.paired import paired_test
from tiltmeter.stats.significance import Interval, columns


@dataclass(frozen=True)
class PooledCorrelation:
    """Some analyses together."""

    analyses: int
    mean: float
    sd: float  # n - 1
    fisher: float  # tanh of the mean of Fisher's z
    ci_low: float  # of `fisher`, Student's over analyses
    ci_high: float


def pooled(rhos: Sequence[float]) -> PooledCorrelation:
    """Mean and standard deviation of rhos, and their mean by Fisher's z with its interval.

    The interval takes analyses for independent, which those of one model are not: read it as how
    far analyses differ.

    >>> found = pooled([0.8, 0.9])
    >>> round(found.mean, 3), round(found.fisher, 4)
    (0.85, 0.8579)
    """
    from scipy.special import stdtrit

    x = np.asarray(rhos, dtype=float)
    x = x[~np.isnan(x)]
    if len(x) == 0:
        raise InputError("there is no rho to pool")
    z = np.arctanh(np.clip(x, -1 + 1e-12, 1 - 1e-12))
    low = high = sd = float("nan")
    if len(x) > 1:
        sd = float(x.std(ddof=1))
        half = stdtrit(len(x) - 1, 0.975) * z.std(ddof=1) / np.sqrt(len(x))
        low, high = float(np.tanh(z.mean() - half)), float(np.tanh(z.mean() + half))
    return PooledCorrelation(len(x), float(x.mean()), sd, float(np.tanh(z.mean())), low, high)


def analyses_of(runs: Iterable[Run], k: int | None = None) -> list[dict[str, Any]]:
    """Every rho of some runs: model, experiment, group, value. Without `k`, at the largest.

    For M models, all data and G groups these are 2 M + 6 M G: 114 for three models and six groups.
    """
    found = []
    for run in runs:
        mine = [one for one in run.where(probe="propagation", metric="rho") if one["k"]]
        for name in dict.fromkeys(one["experiment"] for one in mine):
            some = [one for one in mine if one["experiment"] == name]
            wanted = k or max(one["k"] for one in some)
            found += [one for one in some if one["k"] == wanted and one["value"] is not None]
    if not found:
        raise InputError("these runs hold no rho of the probe propagation: audit with --probe "
                         "propagation first")  # fmt: skip
    return found


def meta_analysis(runs: Iterable[Run], k: int | None = None) -> dict[str | None, PooledCorrelation]:
    """Analyses of all models together: by experiment, and (None) all of them."""
    found = analyses_of(runs, k)
    names = list(dict.fromkeys(one["experiment"] for one in found))
    by_name: dict[str | None, PooledCorrelation] = {
        name: pooled([one["value"] for one in found if one["experiment"] == name]) for name in names
    }
    return {**by_name, None: pooled([one["value"] for one in found])}


@dataclass(frozen=True)
class SizeTrend:
    """Models from small to large, and whether rho rises with size."""

    models: list[dict[str, Any]]  # model, parameters, by experiment, mean, sd, analyses
    #: Two models: mean rise of rho over the analyses that both have, and its sign-flip p. More:
    #: Spearman's rho of size and mean rho, and the share of orders that give as much.
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
    """A table over models with their sizes: do larger ones propagate more?

    `sizes` are parameters by model name, where a run does not tell them itself.
    """
    table = []
    values: list[dict[tuple[Any, ...], float]] = []
    for run in runs:
        found = analyses_of([run], k)
        name = found[0]["model"]
        [size] = run.where(probe="propagation", metric="parameters") or [{"value": None}]
        count = (sizes or {}).get(name, size["value"])
        if count is None:
            raise InputError(
                f"the size of {name} is not known: pass sizes={{{name!r}: PARAMETERS}}"
            )
        every = meta_analysis([run], k)
        table.append(
            {"model": name, "parameters": count, "mean": every[None].mean, "sd": every[None].sd,
             "analyses": every[None].analyses,
             **{one: part.mean for one, part in every.items() if one is not None}}
        )  # fmt: skip
        values.append({(one["experiment"], one["group"]): one["value"] for one in found})
    order = np.argsort([one["parameters"] for one in table], kind="stable")
    table, values = [table[at] for at in order], [values[at] for at in order]
    if len(table) < 2:
        raise InputError("one model has no trend over sizes: pass at least two runs")
    if len(table) == 2:
        both = [key for key in values[0] if key in values[1]]
        change = paired_test(
            np.array([values[0][key] for key in both]),
            np.array([values[1][key] for key in both]),
            rng=np.random.default_rng(seed),
        )
        told = f"mean rise over {len(both)} analyses, sign flips"
        return SizeTrend(table, change.mean, change.p, told)
    trend, p, way = _trend([one["parameters"] for one in table], [one["mean"] for one in table],
                           np.random.default_rng(seed))  # fmt: skip
    return SizeTrend(table, trend, p, f"Spearman over {len(table)} models, {way}")


def _trend(
    sizes: Sequence[float], means: Sequence[float], rng: np.random.Generator
) -> tuple[float, float, str]:
    """Spearman's rho and its two-sided p over orders: all of them, or many."""
    x, y = np.array(sizes, float), np.array(means, float)
    seen = float(spearman(x, y)[0])
    exact = factorial(len(x)) <= 50_000
    orders: Iterable[Any] = (
        permutations(range(len(x))) if exact else (rng.permutation(len(x)) for _ in range(9999))
    )
    drawn = np.array([spearman(x, y[list(one)])[0] for one in orders])
    hits = (np.abs(drawn) >= abs(seen) - 1e-9).sum()
    p = hits / len(drawn) if exact else (hits + 1) / (len(drawn) + 1)
    return seen, float(p), "all orders" if exact else "random orders"


def pooled_rows(table: pa.Table, constants: dict[str, Any]) -> pa.Table:
    """One model's mean rho by experiment and over all, at each k; sd beside it."""
    found = [one for one in table.to_pylist() if one["metric"] == "rho" and one["k"]]
    found = [one for one in found if one["value"] is not None]
    units: dict[tuple[str | None, int | None], list[float]] = {}
    for one in found:
        units.setdefault((one["experiment"], one["k"]), []).append(one["value"])
    last = {one["experiment"]: one["k"] for one in found}  # each experiment's largest k
    if len(last) > 1:
        units[None, None] = [one["value"] for one in found if one["k"] == last[one["experiment"]]]
    tables = []
    for (name, k), values in units.items():
        one = pooled(values)
        shared = {**constants, "experiment": name, "k": k, "n": one.analyses}
        tables.append(
            rows(1, **shared, metric="rho_mean",
                 **columns(one.mean, interval=Interval(edges=(one.ci_low, one.ci_high),
                                                       method="Fisher z over analyses")))
        )  # fmt: skip
        if one.analyses > 1:
            tables.append(rows(1, **shared, metric="rho_sd", value=one.sd))
    return combined(tables)
