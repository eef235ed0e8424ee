"""Several models or datasets together: ranks, and what all of them share."""

from __future__ import annotations

from tiltmeter.judge.panel import SIGN_AGREEMENT
from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.model import Section, table_of
from tiltmeter.pages.plots import charts
from tiltmeter.pages.selection import by
from tiltmeter.papers import sobit
from tiltmeter.results import Run

LEAD = (
    "What several models, datasets or wordings have in common, and how far they spread. Rank 1 is "
    "the least biased; its interval shows how much the order depends on the choice of words."
)


def section(run: Run, probe: str) -> Section:
    """The section of a run of several models."""
    parts = by(run.where(probe=probe), "experiment")
    parts[SIGN_AGREEMENT] = sobit.without_mirrors(parts.get(SIGN_AGREEMENT, []))
    rows = [row for mine in parts.values() for row in mine]
    ranks = [r for r in rows if r["experiment"] == "rank among models" and r["value"] is not None]
    smallest = min((row["k"] for row in ranks if row["k"]), default=None)
    figures = []
    for (attribute, metric, k), mine in by(ranks, "attribute", "metric", "k").items():
        if metric not in ("ndkl", "max_skew") or k not in (None, smallest):
            continue
        mine = [{**r, "ideal": None} for r in sorted(mine, key=lambda r: (r["value"], r["model"]))]
        figures.append(
            charts.line_plot(
                text.slug("rank", attribute, metric, k),
                f"Rank of the models by {text.metric_name(metric, k)} ({text.short(attribute)})",
                "Mark: rank of the mean over words, 1 the least biased. Line: 95% interval over "
                "words.",
                mine,
                [row["model"] for row in mine],
                "rank",
                says="Ranks: ", digits=1, most=44, domain=(0.5, len(mine) + 0.5),
            )
        )  # fmt: skip
    lead = (("experiment", "what"), "attribute", col.METRIC, "model",
            "group", ("concept", "word"))  # fmt: skip
    table = table_of("panel", "Over models, datasets and wordings", rows, *lead, folded=True)
    return Section(probe, "Several models together", LEAD, [], figures, [table])
