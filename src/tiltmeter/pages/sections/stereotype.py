"""Which caption is chosen where the picture denies the stereotype (VLStereoSet)."""

from __future__ import annotations

from functools import partial

import pyarrow.compute as pc
from markupsafe import Markup

from tiltmeter.pages import text
from tiltmeter.pages.parts import Finding, Plot, Row, Section, beats, by, slug
from tiltmeter.pages.plots import charts, scatter
from tiltmeter.pages.tables import table_of
from tiltmeter.results import Run

LEAD = (
    "Each picture has three captions: the stereotype, its opposite, and one beside the point. vlbs "
    "is the percentage of pictures against the stereotype for which the stereotype is chosen; the "
    "excess takes off the errors the other way, so that a model that merely sees badly has 0."
)
NAMES = {
    "vlrs": "vlrs: not the irrelevant one",
    "vlbs": "vlbs: the stereotype",
    "vlbs_excess": "vlbs excess",
    "ivlas": "ivlas: both together",
}
SHIFTS = {"lmss": "what the words add (lmss)", "vlss": "what the picture adds (vlss)"}
PANELS = 6


def section(run: Run, probe: str) -> Section:
    """The section of the probe `stereotype`."""
    rows = run.where(probe=probe)
    whole = [row for row in rows if row["category"] is None and row["value"] is not None]
    figures = _choices(whole) + _shifts(run)
    findings = [_finding(row) for row in whole
                if row["metric"] == "vlbs_excess" and beats(row)
                and "picture" not in row["experiment"]]  # fmt: skip
    lead = (("experiment", "reading"), ("metric", "measure"), ("split", "cases"),
            ("category", "category"))  # fmt: skip
    kept = [{**row, "category": row["category"] or "all", "metric": text.metric_name(row["metric"])}
            for row in rows]  # fmt: skip
    tables = [table_of("stereotype", "Every figure of caption choice", kept, *lead, digits=2)]
    notes = [
        "Of matching and contrastive models the sign of lmss may be turned round: see the "
        "documents of this probe."
    ]
    return Section(probe, "Choice of captions", LEAD, findings, figures, tables, notes)


def _choices(rows: list[Row]) -> list[Plot]:
    found = []
    for experiment, mine in by(rows, "experiment").items():
        drawn = [row for row in mine if row["metric"] in NAMES]
        if not drawn or "picture" in experiment:
            continue
        points = [charts.point(row, NAMES[row["metric"]]) for row in drawn]
        said = "; ".join(f"{p['label']} {text.number(p['value'], 1)}" for p in points)
        planted = any(p["truth"] is not None for p in points)
        found.append(
            Plot(
                slug("choices", experiment),
                f"What is chosen ({text.short(experiment, 50)})",
                "Bar: per cent. Line: 95% interval. Grey band: without tilt (of vlrs and ivlas: "
                "chosen at random). Tick: ideal."
                + (" Cross: a perfect model of this world." if planted else ""),
                f"Per cent: {said}.",
                partial(charts.lines, points, "per cent", bars=True),
            )
        )
    return found


def _shifts(run: Run) -> list[Plot]:
    """Histograms of the shift scores, case by case (VLStereoSet, Figures 4 and 5)."""
    table = run.instances.get("stereotype")
    if table is None:
        return []
    found = []
    for shift, title in SHIFTS.items():
        mine = table.filter(pc.equal(table["concept"], shift))
        panels = []
        for experiment in dict.fromkeys(mine["experiment"].to_pylist()):
            of = mine.filter(pc.equal(mine["experiment"], experiment))["score"].drop_null()
            if len(of):
                panels.append((experiment, of.to_pylist()))
        if not panels:
            continue
        said = "; ".join(
            f"{text.short(name)}: mean {text.number(sum(v) / len(v), 2, signed=True)}, "
            f"{sum(x > 0 for x in v) / len(v):.0%} above 0, n = {len(v):,}"
            for name, v in panels
        )
        found.append(
            Plot(
                slug("shifts", shift),
                f"Shift scores: {title}",
                f"Pictures against the stereotype, counted by score. Above 0 (black line): towards "
                f"the stereotype. Dashed: the mean. {said}."
                + (f" The first {PANELS} of {len(panels)} are drawn." if len(panels) > PANELS
                   else ""),
                f"Histograms. {said}.",
                partial(scatter.histograms, panels[:PANELS], f"{shift} (log ratio)"),
            )
        )  # fmt: skip
    return found


def _finding(row: Row) -> Finding:
    said = Markup("The stereotype is chosen more often than errors explain ({}).").format(
        text.shown(row["experiment"], 60)
    )
    numbers = (
        f"vlbs excess {text.number(row['value'], 1, signed=True)} points, 95% interval "
        f"{text.span(row['ci_low'], row['ci_high'], 1)}; without tilt "
        f"{text.span(row['null_lo'], row['null_hi'], 1)}; adjusted p "
        f"{text.p_value(row['p_fwer'])}; n = {text.count(row['n'])}"
    )
    return Finding(said, numbers, None, abs(row["value"]), "points of vlbs excess")
