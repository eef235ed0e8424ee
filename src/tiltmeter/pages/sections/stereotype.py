"""Which caption is chosen where the image contradicts the stereotype (VLStereoSet)."""

from __future__ import annotations

from functools import partial

import pyarrow.compute as pc
from markupsafe import Markup

from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.model import Finding, Plot, Row, Section, table_of
from tiltmeter.pages.plots import charts, scatter
from tiltmeter.pages.selection import beats, by
from tiltmeter.results import Run

LEAD = (
    "Each image has three captions: the stereotype, its opposite, and an irrelevant one. vlbs is "
    "the percentage of images against the stereotype for which the stereotype is chosen; the "
    "excess subtracts the errors the other way, so that a model that merely sees badly has 0."
)
NAMES = {
    "vlrs": "vlrs: not the irrelevant one",
    "vlbs": "vlbs: the stereotype",
    "vlbs_excess": "vlbs excess",
    "ivlas": "ivlas: both together",
}
SHIFTS = {"lmss": "what the words add (lmss)", "vlss": "what the image adds (vlss)"}
PANELS = 6


def section(run: Run, probe: str) -> Section:
    """The section of the probe `stereotype`."""
    rows = run.where(probe=probe)
    whole = [row for row in rows if row["category"] is None and row["value"] is not None]
    figures = _choices(whole) + _shifts(run)
    findings = [_finding(row) for row in whole
                if row["metric"] == "vlbs_excess" and beats(row)
                and "image" not in row["experiment"]]  # fmt: skip
    lead = (("experiment", "reading"), col.METRIC, ("split", "cases"), "category")
    kept = [{**row, "category": row["category"] or "all"} for row in rows]
    tables = [
        table_of("stereotype", "All results of caption choice", kept, *lead, digits=2, folded=True)
    ]
    notes = ["The sign of lmss may be reversed for matching and contrastive models: see the "
             "documentation of this probe."]  # fmt: skip
    return Section(probe, "Choice of captions", LEAD, findings, figures, tables, notes)


def _choices(rows: list[Row]) -> list[Plot]:
    found = []
    for experiment, mine in by(rows, "experiment").items():
        drawn = [row for row in mine if row["metric"] in NAMES]
        if not drawn or "image" in experiment:
            continue
        planted = any(row["truth"] is not None for row in drawn)
        found.append(
            charts.line_plot(
                text.slug("choices", experiment),
                f"What is chosen ({text.short(experiment, 50)})",
                "Bar: per cent. Line: 95% interval. Grey band: without bias (of vlrs and ivlas: "
                "chosen at random). Tick: ideal."
                + (" Cross: a perfect model of this world." if planted else ""),
                drawn,
                [NAMES[row["metric"]] for row in drawn],
                "per cent",
                says="Per cent: ", digits=1, bars=True,
            )
        )  # fmt: skip
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
        sentence = "; ".join(
            f"{text.short(name)}: mean {text.number(sum(v) / len(v), 2, signed=True)}, "
            f"{sum(x > 0 for x in v) / len(v):.0%} above 0, n = {len(v):,}"
            for name, v in panels
        )
        found.append(
            Plot(
                text.slug("shifts", shift),
                f"Shift scores: {title}",
                f"Images against the stereotype, counted by score. Above 0 (black line): towards "
                f"the stereotype. Dashed: the mean. {sentence}."
                + (f" The first {PANELS} of {len(panels)} are drawn." if len(panels) > PANELS
                   else ""),
                f"Histograms. {sentence}.",
                partial(scatter.histograms, panels[:PANELS], f"{shift} (log ratio)"),
            )
        )  # fmt: skip
    return found


def _finding(row: Row) -> Finding:
    sentence = Markup("The stereotype is chosen more often than errors explain ({}).").format(
        text.shown(row["experiment"], 60)
    )
    numbers = text.estimate(row, "vlbs excess", 1, signed=True, of=" points")
    return Finding(sentence, numbers, None, abs(row["value"]), "points of vlbs excess")
