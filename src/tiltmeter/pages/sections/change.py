"""Before and after: what a correction changed, and what it cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

from markupsafe import Markup

from tiltmeter.judge.gate import Comparison, compare
from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Finding, Plot, Row, Section, table
from tiltmeter.pages.plots import charts
from tiltmeter.pages.sections.frontier import front
from tiltmeter.pages.selection import by
from tiltmeter.results import Run

LEAD = (
    "The same measurements of the same images, before and after. Better: significantly nearer to "
    "the ideal; worse: significantly farther from it, allowing for all tests. A correction for one "
    "attribute may bias another, so every attribute is tested."
)
ARROWS = 16
WAYS = ("better", "equivalent", "no evidence", "worse")
ORDER = {"worse": 0, "better": 1, "equivalent": 2, "no evidence": 3}
USEFUL = ("recall", "accuracy")


def change(before: Run, after: Run) -> Section:
    """The section that compares a run with the one before it."""
    compared = compare(before, after)
    tests = [row for row in compared.tests.to_pylist() if row["verdict"] is not None]
    tests.sort(key=lambda row: (ORDER.get(row["verdict"], 4), -abs(row["excess"]),
                                str(row["concept"]), str(row["group"])))  # fmt: skip
    for row in tests:
        row["name"] = text.metric_name(row["metric"], row["k"])
    words = [row for row in tests if row["metric"] == "c_asc" and row["concept"]]
    figures = _counts(tests)
    figures += [_arrows(attribute, mine) for attribute, mine in by(words, "attribute").items()]
    figures += _fronts(before, after) + _cost(after)
    heads = {"attribute": "attribute", "concept": "word", "group": "group", "experiment": "between"}
    filled = [Column(head, key) for key, head in heads.items()
              if any(row[key] is not None for row in tests)]  # fmt: skip
    made = table("All tests, what got worse first", tests, col.METRIC, *filled,
                 Column("before", "before", "signed"), Column("after", "after", "signed"),
                 Column("farther from the ideal by", "excess", "signed"), col.INTERVAL,
                 col.P_ADJUSTED, "verdict", col.P, col.N)  # fmt: skip
    tables = [replace(made, name="changes")]
    return Section("change", "Before and after", LEAD, _findings(compared, tests), figures, tables,
                   _notes(compared))  # fmt: skip


def _notes(compared: Comparison) -> list[str]:
    if compared.untested is not None:
        return [f"Nothing was tested: {text.short(compared.untested, 400)}."]
    if compared.unpaired is None:
        return []
    return [
        "The images of the two runs are not paired, so their intervals are compared as if the "
        f"runs were independent, which detects less. Why: {text.short(compared.unpaired, 200)}."
    ]


def _findings(compared: Comparison, tests: list[Row]) -> list[Finding]:
    if not tests:
        return []
    ways = Counter(row["verdict"] for row in tests)
    before, after = (text.short(name, 60) for name in compared.names)
    found = [
        Finding(
            f"Of {text.plural(len(tests), 'test')}, {ways['better']:,} say better, "
            f"{ways['worse']:,} say worse"
            + (f", {ways['equivalent']:,} equivalent" if ways["equivalent"] else "")
            + f"; {ways['no evidence']:,} show no evidence.",
            f"{before} before, {after} after; {compared.method}; adjusted p at most .05",
            None,
        )
    ]
    for verdict, way in (("worse", "farther from"), ("better", "nearer to")):
        mine = [row for row in tests if row["verdict"] == verdict]
        singles = [row for row in mine if row["metric"] == "c_asc" and row["concept"]]
        for row in (singles or mine)[:1]:
            found.append(_one(row, way))
    return found


def _one(row: Row, way: str) -> Finding:
    what = f"“{text.clean(row['concept'])}”" if row["concept"] else row["name"]
    of = row["group"] or row["experiment"] or "all groups"
    sentence = Markup("{} moved {} its ideal by {} ({}).").format(
        text.shown(what, 60), way, text.shown(row["attribute"] or "all", 60), text.shown(of, 60)
    )
    low, high = row["ci_low"], row["ci_high"]
    if row["excess"] < 0:  # shown as what it is: so much nearer
        low, high = (None if one is None else -one for one in (high, low))
    numbers = (
        f"{row['name']} {text.number(row['before'], 2, signed=True)} before, "
        f"{text.number(row['after'], 2, signed=True)} after; {way} the ideal by "
        f"{text.number(abs(row['excess']), 2)}, 95% interval {text.span(low, high, 2)}; adjusted p "
        f"{text.p_value(row['p_fwer'])}; n = {text.count(row['n'])}"
    )
    return Finding(sentence, numbers, None)


def _counts(tests: list[Row]) -> list[Plot]:
    """How many tests say what, by measure and attribute."""
    ordered = sorted(tests, key=lambda row: (str(row["attribute"]), row["name"]))
    groups = by(ordered, "name", "attribute")
    if not groups:
        return []
    titles = charts.distinct([f"{name}, {attribute or 'all'}" for name, attribute in groups], 40)
    used = [way for way in WAYS if any(row["verdict"] == way for row in tests)]
    bars = {}
    for title, mine in zip(titles, groups.values(), strict=True):
        ways = Counter(row["verdict"] for row in mine)
        bars[title] = [(way, ways[way] / len(mine), f"{ways[way]:,}") for way in used]
    return [
        charts.stacked_plot(
            "change-counts",
            "What got better, and what got worse",
            "Share of the tests of each measure and attribute; the numbers count them.",
            bars,
            "share of tests",
        )
    ]


def _arrows(attribute: str, rows: list[Row]) -> Plot:
    rows = sorted(rows, key=lambda row: (-abs(row["difference"]), row["concept"], row["group"]))
    groups = {row["group"] for row in rows}
    if len(groups) == 2:  # one mirrors the other
        rows = [row for row in rows if row["group"] == min(groups)]
    rows = rows[:ARROWS]
    labels = charts.distinct([f"{row['concept']} · {row['group']}" for row in rows], 40)
    values = [
        {"label": label, "before": row["before"], "after": row["after"], "way": row["verdict"]}
        for row, label in zip(rows, labels, strict=True)
    ]
    sentence = "; ".join(
        f"{v['label']} from {text.number(v['before'], 2, signed=True)} to "
        f"{text.number(v['after'], 2, signed=True)}, {v['way']}"
        for v in values
    )
    return Plot(
        text.slug("arrows", attribute),
        f"Words that changed most, by {text.short(attribute)}",
        "Dot: C-ASC before. Arrow head: after. The line in the middle is the ideal.",
        f"C-ASC before and after: {sentence}.",
        partial(charts.arrows, values, "C-ASC"),
    )


def _fronts(before: Run, after: Run) -> list[Plot]:
    """Bias against utility, where both runs measured both."""
    places = [_places(run) for run in (before, after)]
    found = []
    for useful, biased in [key for key in places[0] if key in places[1]][:3]:
        points: list[Row] = [
            {"x": place[useful, biased][0], "y": place[useful, biased][1], "text": name}
            for name, place in zip(("before", "after"), places, strict=True)
        ]
        about = "A correction should move down and not left."
        found.append(front(text.slug("front", useful, biased), points, useful, biased, about))
    return found


def _places(run: Run) -> dict[tuple[str, str], tuple[float, float]]:
    """Utility and bias of a run, by their names."""
    rows = [row for row in run.where(concept=None, category=None, factor=None, target=None,
                                     group=None) if row["value"] is not None]  # fmt: skip
    useful: dict[str, Any] = {
        f"{text.metric_name(r['metric'], r['k'])} {r['experiment'] or ''}".strip(): r["value"]
        for r in rows
        if r["metric"] in USEFUL
    }
    biased = {
        f"{text.metric_name(r['metric'], r['k'])} by {text.short(r['attribute'])}": r["value"]
        for r in rows
        if r["metric"] == "max_skew"
    }
    return {(use, name): (useful[use], value) for use in list(useful)[:1]
            for name, value in biased.items()}  # fmt: skip


def _cost(after: Run) -> list[Plot]:
    """The utility cost of the correction, as measured when it was made."""
    costs = (after.meta.get("model", {}).get("debiaser") or {}).get("price") or []
    rows = [{"value": one["change"], "ci_low": one["change_low"], "ci_high": one["change_high"],
             "ideal": 0.0} for one in costs]  # fmt: skip
    plot = charts.line_plot(
        "utility-cost",
        "Utility cost of the correction",
        "Mark: change of utility on held-out data. Line: 95% interval.",
        rows,
        [one["metric"] for one in costs],
        "change",
        says="Changes: ",
        signed=True,
    )
    return [plot] * bool(rows)
