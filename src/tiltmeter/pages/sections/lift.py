"""How many times as high the model scores words with one group as with the others."""

from __future__ import annotations

import math

from tiltmeter.pages.model import Section, table_of
from tiltmeter.pages.plots import charts
from tiltmeter.results import Run

LEAD = (
    "Lift is a difference of logits, in nats: +0.69 means that the model scores a word 2.0x as "
    "high with a group as with the others, compared with neutral words. A word is associated if "
    "its lift is beyond that of neutral words and significantly above 1.25x. Intervals cover the "
    "sample of images."
)
SHOWN = 12  # words of a plot


def section(run: Run, probe: str) -> Section:
    """The section of the probe `lift`."""
    rows = run.where(probe=probe)
    words = [row for row in rows if row["metric"] == "lift" and row["concept"] and row["verdict"]]
    words.sort(key=lambda row: -abs(row["value"]))
    shown = words[:SHOWN]
    plot = charts.line_plot(
        "lift",
        "Words with the largest lift",
        "Mark: lift in nats. Line: 95% interval, images only. Grey band: 95% of neutral words.",
        shown,
        [f"{row['concept']}, {row['group']} ({math.exp(row['value']):.2f}x)" for row in shown],
        "lift (nats)",
        signed=True,
    )
    lead = (("metric", "measure"), ("experiment", "class"), "attribute", "group",
            ("concept", "word"), "category")  # fmt: skip
    of_classes = [row for row in rows if row["metric"] in ("words_beyond", "lift_size")]
    of_categories = [row for row in rows if row["metric"] == "lift" and not row["concept"]]
    return Section(
        probe,
        "Lift",
        LEAD,
        [],
        [plot] * bool(shown),
        [
            table_of("lift-classes", "By attribute and class of words", of_classes, *lead[:3]),
            table_of("lift-words", "Every word, with the group it is judged by", words, *lead,
                     folded=True),
            table_of("lift-categories", "Categories of words", of_categories, *lead, folded=True),
        ],
    )  # fmt: skip
