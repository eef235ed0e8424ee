"""Utility: what the model is good for, and what a correction may cost."""

from __future__ import annotations

from dataclasses import replace

from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.model import Section, table_of
from tiltmeter.pages.plots import charts
from tiltmeter.results import Run

NAMES = {"retrieval": "retrieval", "zero_shot": "zero-shot classification"}
PLOTS = {"retrieval": "Share of queries with a correct result among the first k",
         "zero_shot": "Share of images given the correct class"}  # fmt: skip
LEAD = "Not bias, but what the model is used for: a correction should leave it unchanged."


def section(run: Run, probe: str) -> Section:
    """The section of the probes `retrieval` and `zero_shot`."""
    rows = run.where(probe=probe)
    drawn = [{**row, "ideal": row["null_mean"]} for row in rows
             if row["target"] is None and row["value"] is not None]  # fmt: skip
    plot = charts.line_plot(
        text.slug("utility", probe),
        PLOTS.get(probe, "Utility"),
        "Bar: the value. Line: 95% interval. Tick: by chance.",
        drawn,
        [f"{text.metric_name(r['metric'], r['k'])} {r['experiment'] or ''}".strip() for r in drawn],
        "share",
        bars=True,
        domain=(0, 1),
    )
    plot = replace(plot, folded=True)  # the verdict has its main numbers
    caption = f"Results of {NAMES.get(probe, probe)}"
    table = table_of(text.slug("utility", probe, "table"), caption, rows, col.METRIC,
                     ("experiment", "direction"), ("target", "class"), folded=True)  # fmt: skip
    return Section(probe, "Utility", LEAD, [], [plot] * bool(drawn), [table])
