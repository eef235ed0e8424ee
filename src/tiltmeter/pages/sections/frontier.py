"""Methods and strengths of correction: bias against usefulness, and what each still leaks."""

from __future__ import annotations

from functools import partial

from tiltmeter.pages import text
from tiltmeter.pages.parts import Plot, Row, Section, by, slug
from tiltmeter.pages.plots import charts, scatter
from tiltmeter.pages.tables import table_of
from tiltmeter.results import Run

LEAD = (
    "Every method at every strength, fitted on one part of the images, chosen on a second and "
    "reported on a third. A correction should lower the bias and leave the usefulness where it was."
)
CANDIDATES = 40  # drawn in one figure


def section(run: Run, probe: str) -> Section:
    """The section of a run of `tiltmeter frontier`."""
    rows = run.where(probe=probe)
    tested = [row for row in rows if row["split"] == "test" and row["value"] is not None]
    biased = [row for row in tested if row["metric"] == "max_skew"]
    useful = [r for r in tested if r["ideal"] == 1.0 and not r["metric"].startswith("leakage")]
    figures: list[Plot] = []
    for (data, attribute), mine in by(biased, "dataset", "attribute").items():
        figures += _front(data, attribute, mine, useful)
        figures.append(_bias(data, attribute, mine))
    lead = (("experiment", "method"), ("split", "part"), ("dataset", "data"),
            ("metric", "measure"), ("attribute", "attribute"))  # fmt: skip
    named = [{**row, "metric": text.metric_name(row["metric"], row["k"])} for row in rows]
    table = table_of("frontier", "Every figure of every candidate", named, *lead)
    return Section(probe, "Bias against usefulness", LEAD, [], figures, [table])


def _front(data: str, attribute: str, rows: list[Row], useful: list[Row]) -> list[Plot]:
    """Bias and the first figure of usefulness, candidate by candidate."""
    metric = next((row["metric"] for row in useful), None)
    found = {row["experiment"]: row["value"] for row in useful if row["metric"] == metric}
    points = [
        {"x": found[row["experiment"]], "y": row["value"], "text": text.short(row["experiment"])}
        for row in rows
        if row["experiment"] in found
    ][:CANDIDATES]
    if metric is None or len(points) < 2:
        return []
    said = "; ".join(
        f"{p['text']}: usefulness {text.number(p['x'])}, bias {text.number(p['y'])}" for p in points
    )
    name = f"{text.metric_name('max_skew', rows[0]['k'])} by {text.short(attribute)}"
    return [
        Plot(
            slug("front", data, attribute),
            f"Bias against usefulness: {name}",
            "One point a method and strength, on the part that was kept for this. Lower is less "
            "tilted, farther right more useful. The dashed line is the Pareto front: nothing beats "
            "what is on it.",
            f"{said}.",
            partial(scatter.front, points, text.short(metric), name),
        )
    ]


def _bias(data: str, attribute: str, rows: list[Row]) -> Plot:
    rows = sorted(rows, key=lambda row: (row["value"], row["experiment"]))[:CANDIDATES]
    labels = charts.distinct([row["experiment"] for row in rows], 44)
    points = [charts.point(row, label) for row, label in zip(rows, labels, strict=True)]
    said = "; ".join(f"{p['label']} {text.number(p['value'])}" for p in points)
    name = text.metric_name("max_skew", rows[0]["k"])
    return Plot(
        slug("candidates", data, attribute),
        f"{name} by {text.short(attribute)}, least first",
        "Mark: the mean over words. Line: 95% interval. Grey band: without tilt.",
        f"{said}.",
        partial(charts.lines, points, name),
    )
