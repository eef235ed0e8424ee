"""Several models or data sets together: ranks, and what all of them share."""

from __future__ import annotations

from functools import partial

from tiltmeter.judge.panel import LEANING
from tiltmeter.pages import text
from tiltmeter.pages.parts import Plot, Section, by, slug
from tiltmeter.pages.plots import charts
from tiltmeter.pages.tables import table_of
from tiltmeter.papers import sobit
from tiltmeter.results import Run

LEAD = (
    "What several models, data sets or wordings have in common, and how far they spread. Rank 1 is "
    "the least tilted; its interval says how sure that order is over other words."
)


def section(run: Run, probe: str) -> Section:
    """The section of a run of several models."""
    parts = by(run.where(probe=probe), "experiment")
    parts[LEANING] = sobit.without_mirrors(parts.get(LEANING, []))
    rows = [row for mine in parts.values() for row in mine]
    ranks = [r for r in rows if r["experiment"] == "rank among models" and r["value"] is not None]
    figures = []
    smallest = min((row["k"] for row in ranks if row["k"]), default=None)
    for (attribute, metric, k), mine in by(ranks, "attribute", "metric", "k").items():
        if metric not in ("ndkl", "max_skew") or k not in (None, smallest):
            continue
        mine = sorted(mine, key=lambda row: (row["value"], row["model"]))
        labels = charts.distinct([row["model"] for row in mine], 44)
        points = [charts.point({**row, "ideal": None}, label)
                  for row, label in zip(mine, labels, strict=True)]  # fmt: skip
        said = "; ".join(f"{p['label']} {p['value']:g}" for p in points)
        name = text.metric_name(metric, k)
        figures.append(
            Plot(
                slug("rank", attribute, metric, k),
                f"Rank of the models by {name} ({text.short(attribute)})",
                "Mark: rank of the mean over words, 1 the least tilted. Line: 95% interval over "
                "words.",
                f"Ranks: {said}.",
                partial(charts.lines, points, "rank", domain=(0.5, len(mine) + 0.5)),
            )
        )
    lead = (("experiment", "what"), ("attribute", "attribute"), ("metric", "measure"),
            ("model", "model"), ("group", "group"), ("concept", "word"))  # fmt: skip
    named = [{**row, "metric": text.metric_name(row["metric"], row["k"])} for row in rows]
    table = table_of("panel", "Over models, data sets and wordings", named, *lead, folded=True)
    return Section(probe, "Several models together", LEAD, [], figures, [table])
