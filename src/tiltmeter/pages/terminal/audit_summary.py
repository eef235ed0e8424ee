"""The end of an audit: short tables of what was found, and where to read on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.table import Table

from tiltmeter.pages import text
from tiltmeter.pages.parts import strongest
from tiltmeter.pages.sections.harms import apart_beyond_chance
from tiltmeter.pages.terminal.layout import Row, console_of, table_of
from tiltmeter.papers import sobit
from tiltmeter.results import Run
from tiltmeter.stats.placebo import ESTABLISHED, PERMUTATION_ONLY


def closing(run: Run, report: Path | None, reason: str) -> None:
    """In short: who is taken for what does harm, what is established; the path of the report."""
    console = console_of()
    for table in (harms_in_short(run), in_short(run)):
        if table.row_count:
            console.print(table)
    if report is not None:
        reported(report)
    elif reason:
        console_of(soft_wrap=True).print(f"No report was written: {reason}")


def reported(report: Path) -> None:
    """Where the page is."""
    console_of(soft_wrap=True).print(f"Report: {report}")


def harms_in_short(run: Run) -> Table:
    """A line for each harmful category whose rates lie apart: the two groups at its ends."""
    found = apart_beyond_chance(run.where(probe="harms"))
    several = len({gap["model"] for gap, *_ in found}) > 1
    table = table_of("in short: who is taken for what does harm", *["model"] * several, "by",
                     "taken for", "most often", "n", "least often", "n",
                     left=3 + several)  # fmt: skip
    for column in table.columns:
        column.max_width = 22
    for gap, *ends in sorted(found, key=lambda three: -three[0]["value"]):
        cells = [(f"{text.short(end['group'], 15)} {text.percent(end['value'])}",
                  text.count(end["n_group"])) for end in ends]  # fmt: skip
        table.add_row(*[gap["model"]] * several, gap["attribute"], gap["category"],
                      *(cell for pair in cells for cell in pair))  # fmt: skip
    return table


def in_short(run: Run) -> Table:
    """A line an attribute: how many associations are established, and the strongest of them."""
    table = table_of("in short: which words lean to which groups", "by", "pairs", "established",
                     "perm. only", "strongest established")  # fmt: skip
    table.columns[0].max_width = 14
    table.columns[-1].justify = "left"
    table.columns[-1].max_width = 34
    for attribute in sobit.attributes(run):
        rows = sobit.without_mirrors(sobit.word_rows(run, "c_asc", attribute))
        count = Counter(row["verdict"] for row in rows)
        if not any(count):  # no verdict is no finding of none
            continue
        sure = [row for row in rows if row["verdict"] == ESTABLISHED]
        table.add_row(
            text.short(attribute),
            f"{len(rows):,}",
            f"{count[ESTABLISHED]:,}",
            f"{count[PERMUTATION_ONLY]:,}",
            _told(strongest(sure)[0]) if sure else "none",
        )
    return table


def _told(row: Row) -> str:
    return f"{text.short(row['concept'], 16)} · {text.short(row['group'], 18)} {row['value']:+.2f}"
