"""Whether a caption says anything of these images at all."""

from __future__ import annotations

from functools import partial

from tiltmeter.pages.parts import Plot, Section
from tiltmeter.pages.plots import charts
from tiltmeter.pages.tables import table_of
from tiltmeter.results import Run

LEAD = (
    "The strength of a caption is its percentile among frequent words in the same template. A weak "
    "caption makes the figures above doubtful: its top images are the least unlike of many unlike."
)
ENDS = 8  # strongest, and weakest


def section(run: Run, probe: str) -> Section:
    """The section of the probe `strength`."""
    rows = run.where(probe=probe)
    whole = [
        row
        for row in rows
        if row["metric"] == "strength" and row["attribute"] is None and row["value"] is not None
    ]
    whole.sort(key=lambda row: (-row["value"], str(row["target"])))
    ends = whole if len(whole) <= 2 * ENDS else [*whole[:ENDS], *whole[-ENDS:]]
    labels = charts.distinct([row["target"] for row in ends])
    # without their bands: 95% of frequent words lie between the percentiles 2.5 and 97.5
    points = [charts.point({**row, "ideal": None, "null_lo": None}, label)
              for row, label in zip(ends, labels, strict=True)]  # fmt: skip
    figures = []
    if points:
        said = "; ".join(f"{p['label']} {p['value']:.0%}" for p in points)
        figures.append(
            Plot(
                "strength",
                "Captions that say most, and least, of these images",
                "Bar: percentile among frequent words. Line: 95% interval (Wilson).",
                f"Percentiles: {said}.",
                partial(charts.lines, points, "percentile", bars=True, domain=(0, 1), format="%"),
            )
        )
    lead = (("metric", "measure"), ("target", "word"), ("attribute", "attribute"),
            ("group", "group"), ("template", "template"))  # fmt: skip
    rows.sort(key=lambda row: (row["attribute"] is not None, -(row["value"] or 0.0)))
    table = table_of("strengths", "Strength of every caption", rows, *lead, folded=bool(figures))
    return Section(probe, "Strength of captions", LEAD, [], figures, [table])
