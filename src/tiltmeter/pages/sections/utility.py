"""What the model is good for: the price of a correction shows here."""

from __future__ import annotations

from functools import partial

from tiltmeter.pages import text
from tiltmeter.pages.parts import Plot, Section, slug
from tiltmeter.pages.plots import charts
from tiltmeter.pages.tables import table_of
from tiltmeter.results import Run

TITLES = {"retrieval": "Usefulness: retrieval", "zero_shot": "Usefulness: zero-shot classes"}
FIGURES = {"retrieval": "How often the right one is among the first k",
           "zero_shot": "How often the right class is named"}  # fmt: skip
LEAD = "Not bias, but what the model is for: a correction that destroys this is no correction."


def section(run: Run, probe: str) -> Section:
    """The section of the probes `retrieval` and `zero_shot`."""
    rows = run.where(probe=probe)
    whole = [row for row in rows if row["target"] is None and row["value"] is not None]
    names = [f"{text.metric_name(row['metric'], row['k'])} {row['experiment'] or ''}".strip()
             for row in whole]  # fmt: skip
    points = [charts.point({**row, "ideal": row["null_mean"]}, label)
              for row, label in zip(whole, charts.distinct(names), strict=True)]  # fmt: skip
    figures = []
    if points:
        said = "; ".join(f"{p['label']} {text.number(p['value'])}" for p in points)
        figures.append(
            Plot(
                slug("utility", probe),
                FIGURES.get(probe, "Figures"),
                "Bar: the figure. Line: 95% interval. Tick: by chance.",
                f"{said}.",
                partial(charts.lines, points, "share", bars=True, domain=(0, 1)),
            )
        )
    lead = (("metric", "figure"), ("experiment", "way"), ("target", "class"))
    shown = [{**row, "metric": text.metric_name(row["metric"], row["k"])} for row in rows]
    table = table_of(slug("utility", probe, "table"), "Every figure", shown, *lead, folded=True)
    return Section(probe, TITLES.get(probe, "Usefulness"), LEAD, [], figures, [table])
