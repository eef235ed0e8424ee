"""The captions a model learned from: which words stand beside which groups."""

from __future__ import annotations

from functools import partial

from markupsafe import Markup

from tiltmeter.pages import text
from tiltmeter.pages.parts import Finding, Plot, Row, Section
from tiltmeter.pages.plots import charts
from tiltmeter.pages.tables import table_of
from tiltmeter.results import Run

LEAD = (
    "How often words stand in captions that name women, and in captions that name men. Log-odds "
    "above 0 lean to women, below 0 to men; this is about the texts, not about a model."
)
ENDS = 10
NAMED = 3


def section(run: Run, probe: str) -> Section:
    """The section of an audit of captions."""
    rows = [row for row in run.where(probe=probe) if row["metric"] != "spearman"]
    odds = {
        r["concept"]: r for r in rows if r["metric"] == "log_odds" and r["experiment"] == "noun"
    }
    sure = [row for row in odds.values() if _sure(row)]
    women = sorted((r for r in sure if r["value"] > 0), key=lambda r: (-r["ci_low"], r["concept"]))
    men = sorted((r for r in sure if r["value"] < 0), key=lambda r: (r["ci_high"], r["concept"]))
    ends = [*women[:ENDS], *reversed(men[:ENDS])]
    findings = [_finding(row) for row in (*women[:NAMED], *men[:NAMED])]
    figures = []
    if ends:
        labels = charts.distinct([row["concept"] for row in ends])
        points = [charts.point(row, label) for row, label in zip(ends, labels, strict=True)]
        said = "; ".join(f"{p['label']} {text.number(p['value'], 2, signed=True)}" for p in points)
        figures.append(
            Plot(
                "captions",
                "Words that lean most in the captions",
                "Mark: log-odds beside nouns for women against nouns for men. Line: 95% interval.",
                f"Log-odds: {said}.",
                partial(charts.lines, points, "log-odds: men below 0, women above"),
            )
        )
    lead = (("metric", "measure"), ("experiment", "by"), ("concept", "word"), ("group", "group"))
    tables = [table_of("caption-words", "Every word of the captions", rows, *lead)]
    explained = run.where(probe=probe, metric="spearman")
    if explained:
        tables.insert(
            0, table_of("explained", "Does the data explain the model?", explained,
                        ("experiment", "corpus ~ model"), ("group", "group"), kind="signed")
        )  # fmt: skip
    return Section(probe, "Words in the captions", LEAD, findings, figures, tables)


def _sure(row: Row) -> bool:
    if row["value"] is None or row["ci_low"] is None:
        return False
    return bool(row["ci_low"] > 0 or row["ci_high"] < 0)


def _finding(row: Row) -> Finding:
    said = Markup("{} stands more often beside {}.").format(
        text.shown(f"“{text.clean(row['concept'])}”", 60), "women" if row["value"] > 0 else "men"
    )
    numbers = (
        f"log-odds {text.number(row['value'], 2, signed=True)}, 95% interval "
        f"{text.span(row['ci_low'], row['ci_high'], 2)}; n = {text.count(row['n'])} captions"
    )
    return Finding(said, numbers, None, abs(row["value"]), "log-odds")
