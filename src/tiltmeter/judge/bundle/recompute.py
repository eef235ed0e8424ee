"""Recompute ranking metrics from counts and moments, and compare them with the results.

The same functions as in the audit compute the estimates, on the same levels (prompt, word,
category, all words), without random draws. Not recomputed is what comes from draws: intervals,
permutation p-values, and the nulls of MaxSkew, MinSkew and entropy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltmeter.errors import InputError
from tiltmeter.metrics.association import c_asc_of_moments
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.ranking import (
    entropy_of_shares,
    largest_skew,
    max_of,
    skew_of_shares,
    target_shares,
)
from tiltmeter.metrics.summary import Moments
from tiltmeter.probes.ranking.levels import AggregationLevels
from tiltmeter.probes.ranking.tabulate import means, tabulate, under_convention
from tiltmeter.results import combined
from tiltmeter.stats.estimate import MetricEstimate
from tiltmeter.stats.multiplicity import benjamini_hochberg
from tiltmeter.stats.null import NullBand, top_count_null, top_count_p
from tiltmeter.stats.placebo import FEWEST_PLACEBOS, verdict
from tiltmeter.types import Floats, Groups, Ints, Prompt

#: Columns that are recomputed; the last three where they are exact.
COLUMNS = (
    "value",
    "ideal",
    "n",
    "n_group",
    "n_undefined",
    "p_placebo",
    "p",
    "null_low",
    "null_high",
)
METRICS = ("c_asc", "skew", "max_skew", "min_skew", "normalized_entropy")
KEY = ("model", "dataset", "attribute", "metric", "k", "group", "concept", "category", "template")
MOST_K = 10**6
NEUTRAL = -1  # the level of neutral words
EXACT = 1e-9  # tolerance, relative to 1 + absolute value

Row = dict[str, Any]


class ValueMismatch(NamedTuple):
    """A value of the results that differs from the recomputed one."""

    metric: str
    k: int | None
    attribute: str
    group: str | None
    concept: str | None
    category: str | None
    template: str | None
    column: str
    reported: Any
    recomputed: Any


@dataclass
class RecomputationResult:
    """Number of compared rows, values that differ, and rows that cannot be recomputed."""

    compared: Counter[str] = field(default_factory=Counter)  # by metric
    exact_p: int = 0
    differences: list[ValueMismatch] = field(default_factory=list)
    not_recomputed: Counter[tuple[str, str]] = field(
        default_factory=Counter
    )  # rows, by probe and metric
    overall: list[Row] = field(default_factory=list)  # over all words: reported and recomputed
    placebos: bool = False


def recompute(results: pa.Table, counts: pa.Table, convention: Convention) -> RecomputationResult:
    """Compare every row of `results` that can be recomputed from `counts`."""
    result = RecomputationResult(placebos="placebo" in set(counts["role"].to_pylist()))
    recomputed = recomputed_rows(counts, convention)
    comparable = pc.equal(results["probe"], "ranking")
    comparable = pc.and_(comparable, pc.is_in(results["metric"], pa.array(METRICS)))
    for name in ("experiment", "factor", "target"):
        comparable = pc.and_(comparable, pc.is_null(results[name]))
    comparable = pc.fill_null(comparable, False)
    not_comparable = results.filter(pc.invert(comparable)).select(["probe", "metric", "factor"])
    for row in not_comparable.to_pylist():
        label = "shares of variance" if row["factor"] else row["metric"]
        result.not_recomputed[row["probe"] or "?", label or "?"] += 1
    columns = [*KEY, *COLUMNS, "p_fwer", "p_bh", "verdict"]
    reported = _keyed(results.filter(comparable).select(columns).to_pylist())
    known_models = set(zip(counts["model"].to_pylist(), counts["dataset"].to_pylist(), strict=True))
    for key, row in reported.items():
        if key not in recomputed:
            placebo = row["category"] == "placebo" and not result.placebos
            if placebo or (row["model"], row["dataset"]) not in known_models:
                result.not_recomputed["ranking", "neutral words" if placebo else row["metric"]] += 1
            else:
                result.differences.append(_difference(row, "row", "present", "not expected"))
    families: dict[tuple[Any, ...], list[tuple[Row, Row]]] = {}
    for key, recomputed_row in recomputed.items():
        if key not in reported:
            result.differences.append(
                _difference(recomputed_row, "row", "missing", recomputed_row["value"])
            )
            continue
        row = reported[key]
        _compare(row, recomputed_row, result)
        level = (*(row[name] for name in ("model", "dataset", "attribute", "metric", "k")),
                 recomputed_row["level"])  # fmt: skip
        families.setdefault(level, []).append((row, recomputed_row))
    for family in families.values():
        _compare_family(family, result)
    return result


def recomputed_rows(counts: pa.Table, convention: Convention) -> dict[tuple[Any, ...], Row]:
    """The rows that follow from the counts, by key."""
    by_attribute: dict[tuple[Any, ...], list[Row]] = {}
    for row in counts.to_pylist():
        by_attribute.setdefault((row["model"], row["dataset"], row["attribute"]), []).append(row)
    rows_by_key: dict[tuple[Any, ...], Row] = {}
    rng = np.random.default_rng(0)  # required, but not used
    for (model, dataset, _), rows in by_attribute.items():
        prompts = [Prompt("", row["concept"], row["template"], row["category"] or "", row["role"],
                          row["pos"] or "") for row in rows]  # fmt: skip
        layout = AggregationLevels.of(prompts)
        constants: dict[str, object] = {"model": model, "dataset": dataset}
        for estimate in _estimates(rows, convention):
            estimate = under_convention(estimate, convention)
            table = combined([tabulate(estimate, layout, rng=rng, constants=constants)])
            row_list = table.select([*KEY, *COLUMNS]).to_pylist()
            for row, details in zip(row_list, _row_details(estimate, layout), strict=True):
                row["level"], row["placebos"] = details
            rows_by_key.update(_keyed(row_list))
    return rows_by_key


def _row_details(
    estimate: MetricEstimate, layout: AggregationLevels
) -> Iterator[tuple[int, Floats | None]]:
    """Level of each row of `tabulate`, and the values of the neutral words it is compared with."""
    columns = range(estimate.values.shape[1])
    pools = {kind: means(estimate.values, level) for kind, level in layout.kinds.items() if level}
    for number, (level, units_of) in enumerate(zip(layout.levels, layout.units_of, strict=True)):
        kind_of = {int(unit): kind for kind, units in units_of.items() for unit in units}
        for index in range(len(level)):
            pool = pools.get(kind_of[index]) if kind_of else None
            yield from ((number, None if pool is None else pool[:, column]) for column in columns)
    for kind in layout.shown:
        yield from [(NEUTRAL, None)] * (len(layout.kinds[kind]) * len(columns))


class SizedGroups(Groups):
    """Groups with known sizes only, without an array of labels: sizes are untrusted."""

    def __init__(self, sizes: Ints, names: tuple[str, ...], attribute: str) -> None:
        super().__init__(np.zeros(0, np.int64), names, attribute)
        self.__dict__["counts"] = sizes

    def __len__(self) -> int:
        return int(self.counts.sum())


def _estimates(rows: Sequence[Row], convention: Convention) -> Iterator[MetricEstimate]:
    first = rows[0]
    sizes = np.array(first["sizes"], np.int64)
    if any(row["sizes"] != first["sizes"] or row["groups"] != first["groups"] for row in rows):
        raise InputError(f"the counts of {first['attribute']!r} do not agree on its groups")
    if sizes.shape != (len(first["groups"]),) or (sizes < 0).any() or sizes.max() > 10**12:
        raise InputError(f"the counts of {first['attribute']!r} have no valid group sizes")
    if any(row["k"] != sorted(convention.k) for row in rows) or max(convention.k) > MOST_K:
        raise InputError(f"the counts of {first['attribute']!r} have other k than the convention")
    groups = SizedGroups(sizes, tuple(first["groups"]), first["attribute"])
    if first["mean"] is not None:
        mean, m2 = (np.array([row[name] for row in rows], float) for name in ("mean", "m2"))
        if not (np.isfinite(mean).all() and np.isfinite(m2).all() and (m2 >= 0).all()):
            raise InputError(f"the moments of {first['attribute']!r} are not finite numbers")
        values = np.asarray(c_asc_of_moments(Moments(sizes.astype(float), mean, m2)))
        yield MetricEstimate("c_asc", groups, values, side="two", ideal=0.0, undefined="undefined")
    q = target_shares(convention.target, groups)
    for index, k in enumerate(first["k"]):
        top = np.array([row["top"][index] for row in rows], float)
        complete = (np.abs(top.sum(axis=1) - k) <= EXACT * k).all()
        if not (complete and (top >= 0).all() and (top <= sizes * (1 + EXACT)).all()):
            raise InputError(
                f"the counts of {first['attribute']!r} in the top {k} do not sum to {k}"
            )
        yield from _top_estimates(top, groups, q, k, convention)


def _top_estimates(
    top: Floats, groups: Groups, q: Floats, k: int, convention: Convention
) -> Iterator[MetricEstimate]:
    def skew(shares: Floats) -> Floats:
        return np.asarray(skew_of_shares(shares, q, k=k, empty=convention.empty))

    skews, null = skew(top / k), top_count_null(groups.counts, k)
    undefined = np.full(len(groups.names), np.nan)
    constants: dict[str, Any] = {"k": k, "undefined": "undefined"}
    yield MetricEstimate(
        "skew",
        groups,
        skews,
        side="two",
        ideal=0.0,
        exact_null=NullBand(undefined, skew(null.low / k), skew(null.high / k)),
        exact_p=top_count_p(top, groups.counts, k),
        **constants,
    )
    entropy = float(entropy_of_shares(groups.shares))
    for name, values, ideal in (
        ("max_skew", largest_skew(skews, convention.skew), 0.0),
        ("min_skew", -max_of(-skews), 0.0),
        ("normalized_entropy", entropy_of_shares(top / k), entropy),
    ):
        column = np.asarray(values)[:, None]
        yield MetricEstimate(
            name, groups, column, side="two", ideal=ideal, by_group=False, **constants
        )


def _keyed(rows: Sequence[Row]) -> dict[tuple[Any, ...], Row]:
    """Rows by key; rows with the same key are numbered."""
    repeats: Counter[tuple[Any, ...]] = Counter()
    by_key = {}
    for row in rows:
        key = tuple(row[name] for name in KEY)
        by_key[(*key, repeats[key])] = row
        repeats[key] += 1
    return by_key


def _compare(row: Row, recomputed: Row, result: RecomputationResult) -> None:
    result.compared[row["metric"]] += 1
    for column in COLUMNS:
        if column == "p_placebo":
            if recomputed["placebos"] is not None and not _as_ties_allow(row, recomputed):
                result.differences.append(_difference(row, column, row[column], recomputed[column]))
            continue
        exact = column in ("p", "null_low", "null_high")
        if exact and recomputed["p"] is None:
            continue
        result.exact_p += column == "p"
        if not _same(row[column], recomputed[column], EXACT):
            result.differences.append(_difference(row, column, row[column], recomputed[column]))
    if row["concept"] is None and row["category"] is None and row["group"] is None:
        result.overall.append({**row, "recomputed": recomputed["value"]})


def _compare_family(family: list[tuple[Row, Row]], result: RecomputationResult) -> None:
    """Check columns that follow from others: adjusted p-values and verdicts."""
    if family[0][1]["level"] == NEUTRAL:
        return  # neutral words are not a family
    p = np.array([np.nan if row["p"] is None else row["p"] for row, _ in family], float)
    for (row, _), corrected in zip(family, benjamini_hochberg(p), strict=True):
        if not _same(row["p_bh"], None if np.isnan(corrected) else float(corrected), EXACT):
            result.differences.append(_difference(row, "p_bh", row["p_bh"], float(corrected)))
        if row["concept"] is not None:
            ps = [np.nan if row[name] is None else row[name] for name in ("p_fwer", "p_placebo")]
            expected = verdict(ps[0], ps[1])
            if expected != row["verdict"]:
                result.differences.append(_difference(row, "verdict", row["verdict"], expected))


def _as_ties_allow(row: Row, recomputed: Row) -> bool:
    """Whether p_placebo is correct up to ties, which may differ between machines."""
    pool = recomputed["placebos"][~np.isnan(recomputed["placebos"])]
    if row["p_placebo"] is None or recomputed["value"] is None or len(pool) < FEWEST_PLACEBOS:
        return row["p_placebo"] is recomputed["p_placebo"]
    value, slack = recomputed["value"], EXACT * (1 + abs(recomputed["value"]))
    certain = min((pool > value + slack).sum(), (pool < value - slack).sum())
    possible = min((pool >= value - slack).sum(), (pool <= value + slack).sum())
    low, high = (min(1.0, 2 * (int(count) + 1) / (len(pool) + 1)) for count in (certain, possible))
    return bool(low - EXACT <= row["p_placebo"] <= high + EXACT)


def _same(first: float | None, second: float | None, slack: float) -> bool:
    if first is None or second is None:
        return first is second
    return abs(first - second) <= slack * (1 + abs(second))


def _difference(row: Row, column: str, reported: Any, recomputed: Any) -> ValueMismatch:
    names = ("metric", "k", "attribute", "group", "concept", "category", "template")
    labels = {name: row[name] for name in names}
    return ValueMismatch(**labels, column=column, reported=reported, recomputed=recomputed)
