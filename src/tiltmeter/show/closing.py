"""The end of an audit: one short table, and where to read on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.table import Table

from tiltmeter import sobit
from tiltmeter.report import text
from tiltmeter.results import Run
from tiltmeter.show.terminal import Row, console_of, table_of
from tiltmeter.stats.placebo import ESTABLISHED, PERMUTATION_ONLY


def closing(run: Run, report: Path | None, reason: str) -> None:
    """In short: what is established, by attribute; and the path of the report."""
    console = console_of()
    table = in_short(run)
    if table.row_count:
        console.print(table)
    if report is not None:
        reported(report)
    elif reason:
        console_of(soft_wrap=True).print(f"No report was written: {reason}")


def reported(report: Path) -> None:
    """Where the page is."""
    console_of(soft_wrap=True).print(f"Report: {report}")


def in_short(run: Run) -> Table:
    """A line an attribute: how many associations are established, and the strongest of them."""
    table = table_of("in short: which words lean to which groups", "by", "pairs", "established",
                     "perm. only", "strongest established")  # fmt: skip
    table.columns[0].max_width = 14
    table.columns[-1].justify = "left"
    table.columns[-1].max_width = 34
    for attribute in sobit.attributes(run):
        rows = sobit.word_rows(run, "c_asc", attribute)
        count = Counter(row["verdict"] for row in rows)
        if not any(count):  # no verdict is no finding of none
            continue
        sure = [row for row in rows if row["verdict"] == ESTABLISHED]
        table.add_row(
            text.short(attribute),
            f"{len(rows):,}",
            f"{count[ESTABLISHED]:,}",
            f"{count[PERMUTATION_ONLY]:,}",
            _told(max(sure, key=lambda row: (row["value"], row["concept"]))) if sure else "none",
        )
    return table


def _told(row: Row) -> str:
    return f"{text.short(row['concept'], 16)} → {text.short(row['group'], 18)} {row['value']:+.2f}"
