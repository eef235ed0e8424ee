"""The captions a model learned from: which words occur with which groups."""

from __future__ import annotations

from markupsafe import Markup

from tiltmeter.pages import text
from tiltmeter.pages.model import Finding, Row, Section, table_of
from tiltmeter.pages.plots import charts
from tiltmeter.pages.selection import farthest_words
from tiltmeter.results import Run

LEAD = (
    "How often words occur in captions that name women, and in captions that name men. Log-odds "
    "above 0: more often with women; below 0: with men. This is about the texts, not a model."
)
ENDS = 10
NAMED = 3


def section(run: Run, probe: str) -> Section:
    """The section of an audit of captions."""
    rows = [row for row in run.where(probe=probe) if row["metric"] != "spearman"]
    words = farthest_words(rows)
    women, men = ([row for row in words if (row["value"] > 0) == above] for above in (True, False))
    drawn = [*women[:ENDS], *reversed(men[:ENDS])]
    plot = charts.line_plot(
        "captions",
        "Words most associated with a gender in the captions",
        "Mark: log-odds with nouns for women against nouns for men. Line: 95% interval.",
        drawn,
        [row["concept"] for row in drawn],
        "log-odds: men below 0, women above",
        says="Log-odds: ", digits=2, signed=True,
    )  # fmt: skip
    lead = (("metric", "measure"), ("experiment", "by"), ("concept", "word"), "group")
    tables = [table_of("caption-words", "Every word of the captions", rows, *lead)]
    if explained := run.where(probe=probe, metric="spearman"):
        tables.insert(
            0, table_of("explained", "Does the data explain the model?", explained,
                        ("experiment", "corpus ~ model"), "group", kind="signed")
        )  # fmt: skip
    findings = [_finding(row) for row in (*women[:NAMED], *men[:NAMED])]
    return Section(probe, "Words in the captions", LEAD, findings, [plot] * bool(drawn), tables)


def _finding(row: Row) -> Finding:
    sentence = Markup("{} occurs more often with {}.").format(
        text.shown(f"“{text.clean(row['concept'])}”", 60), "women" if row["value"] > 0 else "men"
    )
    numbers = text.estimate(row, "log-odds", 2, signed=True, null=False, adjusted=False)
    return Finding(sentence, f"{numbers} captions", None, abs(row["value"]), "log-odds")
