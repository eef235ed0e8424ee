"""The end of an audit: short tables of the main results, and the path of the report."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Row, Table, table
from tiltmeter.pages.sections.harms import apart_beyond_chance
from tiltmeter.pages.selection import strongest
from tiltmeter.pages.terminal.layout import show
from tiltmeter.papers import sobit
from tiltmeter.results import Run
from tiltmeter.stats.placebo import ESTABLISHED, PERMUTATION_ONLY


def closing(run: Run, report: Path | None, reason: str) -> None:
    """Harmful classes by group, associations by attribute, and the path of the report."""
    show(*(table for table in (harms_summary(run), words_summary(run)) if table.rows))
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


def words_summary(run: Run) -> Table:
    """A line per attribute: how many words are associated, and the strongest of them."""
    rows: list[Row] = []
    for attribute in sobit.attributes(run):
        mine = sobit.without_mirrors(sobit.word_rows(run, "c_asc", attribute))
        count = Counter(row["verdict"] for row in mine)
        if not any(count):  # no verdict is not a finding of none
            continue
        named = "none"
        for row in strongest([row for row in mine if row["verdict"] == ESTABLISHED], 1):
            word, group = text.short(row["concept"], 16), text.short(row["group"], 18)
            named = f"{word} · {group} {text.number(row['value'], 2, signed=True)}"
        rows.append({"attribute": text.short(attribute), "pairs": len(mine), "named": named,
                     "sure": count[ESTABLISHED], "weak": count[PERMUTATION_ONLY]})  # fmt: skip
    return table("summary: words associated with groups", rows,
                 Column("by", "attribute", width=14), Column("pairs", "pairs", "count"),
                 Column("associated", "sure", "count"), Column("as neutral", "weak", "count"),
                 Column("strongest association", "named", width=34))  # fmt: skip
