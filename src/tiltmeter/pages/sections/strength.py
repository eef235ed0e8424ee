"""Whether a caption says anything about these images at all."""

from __future__ import annotations

from tiltmeter.pages.model import Section, table_of
from tiltmeter.pages.plots import charts
from tiltmeter.pages.selection import ends
from tiltmeter.results import Run

LEAD = (
    "The strength of a caption is its percentile among frequent words in the same template. A weak "
    "caption makes the results above doubtful: its top images are the least dissimilar of many."
)
ENDS = 8  # strongest, and weakest


def section(run: Run, probe: str) -> Section:
    """The section of the probe `strength`."""
    rows = run.where(probe=probe)
    rows.sort(key=lambda row: (row["attribute"] is not None, -(row["value"] or 0.0)))
    whole = [
        # without their bands: 95% of frequent words are between the percentiles 2.5 and 97.5
        {**row, "ideal": None, "null_low": None}
        for row in rows
        if row["metric"] == "strength" and row["attribute"] is None and row["value"] is not None
    ]
    whole.sort(key=lambda row: (-row["value"], str(row["target"])))
    drawn = ends(whole, ENDS)
    plot = charts.line_plot(
        "strength",
        "Captions that fit these images best, and least",
        "Bar: percentile among frequent words. Line: 95% interval (Wilson).",
        drawn,
        [row["target"] for row in drawn],
        "percentile",
        says="Percentiles: ",
        bars=True,
        domain=(0, 1),
        format="%",
    )
    lead = (("metric", "measure"), ("target", "word"), "attribute",
            "group", "template")  # fmt: skip
    table = table_of("strengths", "Strength of every caption", rows, *lead, folded=bool(drawn))
    return Section(probe, "Strength of captions", LEAD, [], [plot] * bool(drawn), [table])
