"""Methods and strengths of correction: bias against utility, and what each still leaks."""

from __future__ import annotations

from functools import partial

from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.model import Plot, Row, Section, table_of
from tiltmeter.pages.plots import charts, scatter
from tiltmeter.pages.selection import by
from tiltmeter.results import Run

LEAD = (
    "Every method at every strength, fitted on one part of the images, chosen on a second and "
    "reported on a third. A correction should lower the bias and leave the utility unchanged."
)
CANDIDATES = 40  # drawn in one plot
ORDER = ("mean_abs_lift", "max_skew")


def section(run: Run, probe: str) -> Section:
    """The section of a run of `tiltmeter frontier`."""
    rows = run.where(probe=probe)
    tested = [row for row in rows if row["split"] == "test" and row["value"] is not None]
    useful = [r for r in tested if r["ideal"] == 1.0 and not r["metric"].startswith("leakage")]
    metric = next((row["metric"] for row in useful), "")
    utility = {row["experiment"]: row["value"] for row in useful if row["metric"] == metric}
    figures: list[Plot] = []
    biased = by([row for row in tested if row["metric"] in ORDER and not row["category"]],
                "metric", "dataset", "attribute")  # fmt: skip
    for (measure, data, attribute), mine in sorted(
        biased.items(), key=lambda one: ORDER.index(one[0][0])
    ):
        name = f"{text.metric_name(measure, mine[0]['k'])} by {text.short(attribute)}"
        points = [
            {
                "x": utility[row["experiment"]],
                "y": row["value"],
                "text": text.short(row["experiment"]),
            }
            for row in mine
            if row["experiment"] in utility
        ][:CANDIDATES]
        if len(points) > 1:
            figures.append(
                front(text.slug("front", measure, data, attribute), points, text.short(metric),
                      name, "One point per method and strength, on held-out images.")
            )  # fmt: skip
        if measure != "max_skew":  # has no null
            continue
        mine = sorted(mine, key=lambda row: (row["value"], row["experiment"]))[:CANDIDATES]
        figures.append(
            charts.line_plot(
                text.slug("candidates", data, attribute),
                f"{name}, least first",
                "Mark: the mean over words. Line: 95% interval. Grey band: without bias.",
                mine,
                [row["experiment"] for row in mine],
                text.metric_name("max_skew", mine[0]["k"]),
                most=44,
            )
        )
    lead = (("experiment", "method"), ("split", "part"), ("dataset", "data"), col.METRIC,
            "attribute")  # fmt: skip
    table = table_of("frontier", "All results of every candidate", rows, *lead)
    return Section(probe, "Bias against utility", LEAD, [], figures, [table])


def front(name: str, points: list[Row], useful: str, biased: str, about: str) -> Plot:
    """Bias and utility, point by point, with the Pareto front."""
    sentence = "; ".join(
        f"{p['text']}: utility {text.number(p['x'])}, bias {text.number(p['y'])}" for p in points
    )
    return Plot(
        name,
        f"Bias against utility: {biased}",
        f"{about} Lower is less biased, farther right more useful. The dashed line is the Pareto "
        "front: no point beats those on it in both.",
        f"{sentence}.",
        partial(scatter.front, points, useful, biased),
    )
