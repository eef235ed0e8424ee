"""The end of an audit: its main results in short, and the path of the report."""

from __future__ import annotations

from pathlib import Path

from tiltmeter.pages import measured, text
from tiltmeter.pages.lift_findings import finding, lift_classes
from tiltmeter.pages.model import Column, Paragraph, Part, Table, table
from tiltmeter.pages.sections.harms import apart_beyond_chance
from tiltmeter.pages.terminal.layout import show
from tiltmeter.results import Run
from tiltmeter.stats.lift_verdict import CLEAR, WEAK


def closing(run: Run, report: Path | None, reason: str) -> None:
    """Verdicts by attribute, harmful classes by group, and the path of the report."""
    show(*lift_summary(run), *(table for table in [harms_summary(run)] if table.rows))
    if report is not None:
        reported(report)
    elif reason:
        show(f"No report was written: {reason}", soft_wrap=True)


def reported(report: Path) -> None:
    """Where the report is."""
    show(f"Report: {report}", soft_wrap=True)


def harms_summary(run: Run) -> Table:
    """A line for each harmful category whose rates differ: its highest and its lowest group."""
    found = apart_beyond_chance(run.where(probe="harms"))
    rows = [
        {**gap, "most": f"{text.short(most['group'], 15)} {text.percent(most['value'])}",
         "n_most": most["n_group"], "least": f"{text.short(least['group'], 15)} "
         f"{text.percent(least['value'])}", "n_least": least["n_group"]}
        for gap, most, least in sorted(found, key=lambda three: -three[0]["value"])
    ]  # fmt: skip
    several = len({row["model"] for row in rows}) > 1
    return table("summary: rates of harmful classes that differ by group", rows,
                 *[Column("model", "model", width=22)] * several,
                 Column("by", "attribute", width=22), Column("classified as", "category", width=22),
                 Column("most often", "most", width=22), Column("n", "n_most", "count"),
                 Column("least often", "least", width=22),
                 Column("n", "n_least", "count"))  # fmt: skip


def lift_summary(run: Run) -> list[Part]:
    """A sentence per attribute and class of words, with the largest word below."""
    found = [finding(one) for one in lift_classes(run.table.to_pylist())]
    if not found and "lift" in dict(measured.not_run(run)):
        return [f"\n{measured.no_lift(run)}"]
    lines: list[Part] = [Paragraph("\nsummary: words and groups", "strong")] * bool(found)
    for one in found:
        tone = {CLEAR: "strong", WEAK: "strong"}.get(str(one.verdict), "")
        lines += [Paragraph(text.plain(one.text), tone), text.plain(f"  {one.numbers}")]
    return lines
