"""The numbers of a ranking, once more, from counts and moments; and where they differ.

The figures are made by the functions that the audit used, on the same levels (prompt, word,
category, all words), without its draws. So what came from draws is not recomputed: intervals,
p-values by relabelling, and the null of MaxSkew, MinSkew and entropy.
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
from tiltmeter.probes.ranking.tabulate import RowLayout, means, tabulate
from tiltmeter.results import combined
from tiltmeter.stats.estimate import MetricEstimate
from tiltmeter.stats.multiplicity import benjamini_hochberg
from tiltmeter.stats.null import NullBand, top_count_null, top_count_p
from tiltmeter.stats.placebo import FEWEST_PLACEBOS, verdict
from tiltmeter.types import Floats, Groups, Ints, Prompt

#: What is recomputed of a row; the last three where they are exact.
COLUMNS = ("value", "ideal", "n", "n_group", "n_undefined", "p_placebo", "p", "null_lo", "null_hi")
METRICS = ("c_asc", "skew", "max_skew", "min_skew", "normalized_entropy")
KEY = ("model", "dataset", "attribute", "metric", "k", "group", "concept", "category", "template")
MOST_K = 10**6
NEUTRAL = -1  # the level of neutral words
EXACT = 1e-9  # how far apart two numbers may be, beside 1 + their size

Row = dict[str, Any]


class ValueMismatch(NamedTuple):
    """A number of the results that is not what the counts give."""

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
    """How many numbers were compared, those that differ, and rows that could not be compared."""

    compared: Counter[str] = field(default_factory=Counter)  # by metric
    exact_p: int = 0
    differences: list[ValueMismatch] = field(default_factory=list)
    left: Counter[tuple[str, str]] = field(default_factory=Counter)  # rows, by probe and metric
    overall: list[Row] = field(default_factory=list)  # over all words: reported and recomputed
    placebos: bool = False


def recompute(results: pa.Table, counts: pa.Table, convention: Convention) -> RecomputationResult:
    """Compares every row of `results` that `counts` have the numbers of."""
    found = RecomputationResult(placebos="placebo" in set(counts["role"].to_pylist()))
    mine = figures_rows(counts, convention)
    plain = pc.equal(results["probe"], "ranking")
    plain = pc.and_(plain, pc.is_in(results["metric"], pa.array(METRICS)))
    for name in ("experiment", "factor", "target"):
        plain = pc.and_(plain, pc.is_null(results[name]))
    plain = pc.fill_null(plain, False)
    others = results.filter(pc.invert(plain)).select(["probe", "metric", "factor"])
    for row in others.to_pylist():
        what = "shares of variance" if row["factor"] else row["metric"]
        found.left[row["probe"] or "?", what or "?"] += 1
    columns = [*KEY, *COLUMNS, "p_fwer", "p_bh", "verdict"]
    theirs = _keyed(results.filter(plain).select(columns).to_pylist())
    known_models = set(zip(counts["model"].to_pylist(), counts["dataset"].to_pylist(), strict=True))
    for key, row in theirs.items():
        if key not in mine:
            placebo = row["category"] == "placebo" and not found.placebos
            if placebo or (row["model"], row["dataset"]) not in known_models:
                found.left["ranking", "neutral words" if placebo else row["metric"]] += 1
            else:
                found.differences.append(_difference(row, "row", "there", "not called for"))
    families: dict[tuple[Any, ...], list[tuple[Row, Row]]] = {}
    for key, again in mine.items():
        if key not in theirs:
            found.differences.append(_difference(again, "row", "missing", again["value"]))
            continue
        row = theirs[key]
        _compare(row, again, found)
        level = (*(row[name] for name in ("model", "dataset", "attribute", "metric", "k")),
                 again["level"])  # fmt: skip
        families.setdefault(level, []).append((row, again))
    for family in families.values():
        _compare_family(family, found)
    return found


def figures_rows(counts: pa.Table, convention: Convention) -> dict[tuple[Any, ...], Row]:
    """The rows that the counts call for, by key."""
    whole: dict[tuple[Any, ...], list[Row]] = {}
    for row in counts.to_pylist():
        whole.setdefault((row["model"], row["dataset"], row["attribute"]), []).append(row)
    found: dict[tuple[Any, ...], Row] = {}
    rng = np.random.default_rng(0)  # of which nothing is drawn
    for (model, dataset, _), rows in whole.items():
        prompts = [Prompt("", row["concept"], row["template"], row["category"] or "", row["role"],
                          row["pos"] or "") for row in rows]  # fmt: skip
        layout = RowLayout.of(prompts)
        constants: dict[str, object] = {"model": model, "dataset": dataset}
        for figure in _figures(rows, convention):
            table = combined([tabulate(figure, layout, rng=rng, constants=constants)])
            listed = table.select([*KEY, *COLUMNS]).to_pylist()
            for row, told in zip(listed, _told(figure, layout), strict=True):
                row["level"], row["placebos"] = told
            found.update(_keyed(listed))
    return found


def _told(figure: MetricEstimate, layout: RowLayout) -> Iterator[tuple[int, Floats | None]]:
    """Of each row that `tabulate` makes: its level, and the placebos that it is compared with."""
    columns = range(figure.values.shape[1])
    pools = {kind: means(figure.values, level) for kind, level in layout.kinds.items() if level}
    for number, (level, kinds) in enumerate(zip(layout.levels, layout.kind_of, strict=True)):
        for at in range(len(level)):
            pool = pools.get(kinds[at]) if kinds else None
            yield from ((number, None if pool is None else pool[:, column]) for column in columns)
    for kind in layout.shown:
        yield from [(NEUTRAL, None)] * (len(layout.kinds[kind]) * len(columns))


class SizedGroups(Groups):
    """Groups of which only the sizes are known: a few bytes may claim millions of images."""

    def __init__(self, sizes: Ints, names: tuple[str, ...], attribute: str) -> None:
        super().__init__(np.zeros(0, np.int64), names, attribute)
        self.__dict__["counts"] = sizes

    def __len__(self) -> int:
        return int(self.counts.sum())


def _figures(rows: Sequence[Row], convention: Convention) -> Iterator[MetricEstimate]:
    first = rows[0]
    sizes = np.array(first["sizes"], np.int64)
    if any(row["sizes"] != first["sizes"] or row["groups"] != first["groups"] for row in rows):
        raise InputError(f"the counts of {first['attribute']!r} do not agree on its groups")
    if sizes.shape != (len(first["groups"]),) or (sizes < 0).any() or sizes.max() > 10**12:
        raise InputError(f"the counts of {first['attribute']!r} have no sizes of groups")
    if any(row["k"] != sorted(convention.k) for row in rows) or max(convention.k) > MOST_K:
        raise InputError(f"the counts of {first['attribute']!r} are not of the convention's k")
    groups = SizedGroups(sizes, tuple(first["groups"]), first["attribute"])
    if first["mean"] is not None:
        mean, m2 = (np.array([row[name] for row in rows], float) for name in ("mean", "m2"))
        if not (np.isfinite(mean).all() and np.isfinite(m2).all() and (m2 >= 0).all()):
            raise InputError(f"the moments of {first['attribute']!r} are no numbers")
        values = np.asarray(c_asc_of_moments(Moments(sizes.astype(float), mean, m2)))
        yield MetricEstimate("c_asc", groups, values, side="two", ideal=0.0, undefined="undefined")
    q = target_shares(convention.target, groups)
    for at, k in enumerate(first["k"]):
        top = np.array([row["top"][at] for row in rows], float)
        whole = (np.abs(top.sum(axis=1) - k) <= EXACT * k).all()
        if not (whole and (top >= 0).all() and (top <= sizes * (1 + EXACT)).all()):
            raise InputError(f"the counts of {first['attribute']!r} in the top {k} are not {k}")
        yield from _of_top(top, groups, q, k, convention)


def _of_top(
    top: Floats, groups: Groups, q: Floats, k: int, convention: Convention
) -> Iterator[MetricEstimate]:
    def skew(shares: Floats) -> Floats:
        return np.asarray(skew_of_shares(shares, q, k=k, empty=convention.empty))

    skews, null = skew(top / k), top_count_null(groups.counts, k)
    nothing = np.full(len(groups.names), np.nan)
    told: dict[str, Any] = {"k": k, "undefined": "undefined"}
    yield MetricEstimate(
        "skew",
        groups,
        skews,
        side="two",
        ideal=0.0,
        exact_null=NullBand(nothing, skew(null.lo / k), skew(null.hi / k)),
        exact_p=top_count_p(top, groups.counts, k),
        **told,
    )
    entropy = float(entropy_of_shares(groups.shares))
    for name, values, ideal in (
        ("max_skew", largest_skew(skews, convention.skew), 0.0),
        ("min_skew", -max_of(-skews), 0.0),
        ("normalized_entropy", entropy_of_shares(top / k), entropy),
    ):
        one = np.asarray(values)[:, None]
        yield MetricEstimate(name, groups, one, side="two", ideal=ideal, by_group=False, **told)


def _keyed(rows: Sequence[Row]) -> dict[tuple[Any, ...], Row]:
    """Rows by what they speak of; of those that look alike, the first, the second and so on."""
    alike: Counter[tuple[Any, ...]] = Counter()
    found = {}
    for row in rows:
        key = tuple(row[name] for name in KEY)
        found[(*key, alike[key])] = row
        alike[key] += 1
    return found


def _compare(row: Row, again: Row, found: RecomputationResult) -> None:
    found.compared[row["metric"]] += 1
    for column in COLUMNS:
        if column == "p_placebo":
            if again["placebos"] is not None and not _as_ties_allow(row, again):
                found.differences.append(_difference(row, column, row[column], again[column]))
            continue
        exact = column in ("p", "null_lo", "null_hi")
        if exact and again["p"] is None:
            continue
        found.exact_p += column == "p"
        if not _same(row[column], again[column], EXACT):
            found.differences.append(_difference(row, column, row[column], again[column]))
    if row["concept"] is None and row["category"] is None and row["group"] is None:
        found.overall.append({**row, "recomputed": again["value"]})


def _compare_family(family: list[tuple[Row, Row]], found: RecomputationResult) -> None:
    """What follows from other columns of the results: corrected p-values, and verdicts."""
    if family[0][1]["level"] == NEUTRAL:
        return  # neutral words are no family
    p = np.array([np.nan if row["p"] is None else row["p"] for row, _ in family], float)
    for (row, _), corrected in zip(family, benjamini_hochberg(p), strict=True):
        if not _same(row["p_bh"], None if np.isnan(corrected) else float(corrected), EXACT):
            found.differences.append(_difference(row, "p_bh", row["p_bh"], float(corrected)))
        if row["concept"] is not None:
            ps = [np.nan if row[name] is None else row[name] for name in ("p_fwer", "p_placebo")]
            said = verdict(ps[0], ps[1])
            if said != row["verdict"]:
                found.differences.append(_difference(row, "verdict", row["verdict"], said))


def _as_ties_allow(row: Row, again: Row) -> bool:
    """Whether p_placebo is right; another machine may see a tie where one saw none."""
    pool = again["placebos"][~np.isnan(again["placebos"])]
    if row["p_placebo"] is None or again["value"] is None or len(pool) < FEWEST_PLACEBOS:
        return row["p_placebo"] is again["p_placebo"]
    value, slack = again["value"], EXACT * (1 + abs(again["value"]))
    surely = min((pool > value + slack).sum(), (pool < value - slack).sum())
    perhaps = min((pool >= value - slack).sum(), (pool <= value + slack).sum())
    low, high = (min(1.0, 2 * (int(many) + 1) / (len(pool) + 1)) for many in (surely, perhaps))
    return bool(low - EXACT <= row["p_placebo"] <= high + EXACT)


def _same(one: float | None, other: float | None, slack: float) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= slack * (1 + abs(other))


def _difference(row: Row, column: str, reported: Any, recomputed: Any) -> ValueMismatch:
    names = ("metric", "k", "attribute", "group", "concept", "category", "template")
    told = {name: row[name] for name in names}
    return ValueMismatch(**told, column=column, reported=reported, recomputed=recomputed)
