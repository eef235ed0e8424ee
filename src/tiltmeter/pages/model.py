"""What a page or a screen is made of, as plain data: sections, findings, tables and plots.

What makes them selects and sorts rows of results (`sections/`, `terminal/`); what shows them lays
them out and computes nothing: `html/`, `terminal/layout.py` and `markdown.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiltmeter.pages.columns import STATISTICS, VALUE, Column, Head, Row, columns_of
from tiltmeter.stats.lift_verdict import ASSOCIATED

__all__ = ["Column", "Finding", "Paragraph", "Part", "Plot", "Row", "Section", "Table", "table",
           "table_of"]  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Rows under a caption. `name` is that of its files and of its place on the page."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    folded: bool = False  # shown when asked for

    def cells(self, many: int | None = None) -> list[list[str]]:
        return [[column.cell(row) for column in self.columns] for row in self.rows[:many]]

    def merged_cells(self) -> list[list[str]]:
        """The same, where merged columns repeat nothing."""
        cells = self.cells()
        return [
            ["" if column.merged and at and cell == cells[at - 1][place] else cell
             for place, (column, cell) in enumerate(zip(self.columns, line, strict=True))]
            for at, line in enumerate(cells)
        ]  # fmt: skip

    def tone(self, at: int) -> str:
        """How a row is set off: by its own `tone`, else as strong where it is associated."""
        row = self.rows[at]
        return str(row.get("tone", "strong" if row.get("verdict") == ASSOCIATED else ""))


@dataclass(frozen=True)
class Paragraph:
    """A line of text. `tone`: strong, weak, good, bad, or none."""

    text: str
    tone: str = ""


Part = Table | Paragraph | str


@dataclass(frozen=True)
class Plot:
    """A chart, what it shows in words, and how to draw it: nothing is drawn before it is needed.

    `description` gives the main values in words, for readers who do not see the chart.
    """

    name: str
    title: str
    caption: str
    description: str
    chart: Callable[[], Any]
    folded: bool = False  # shown when asked for


@dataclass(frozen=True)
class Finding:
    """One sentence, and the numbers behind it. `verdict` as in results, None where there is none.

    The text is Markup made by `text.shown`, or plain text: neither can carry a label's own tags.
    """

    text: str
    numbers: str
    verdict: str | None = None
    weight: float = 0.0  # how far from its null: the strongest of a unit are shown first
    unit: str = ""  # what `weight` is in: sizes in different units are never compared


@dataclass(frozen=True)
class Section:
    """What one probe found, for one model on one dataset."""

    name: str
    title: str
    lead: str
    findings: list[Finding] = field(default_factory=list)
    figures: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    verdicts: dict[str, int] = field(default_factory=dict)  # how many associations have which


def table_of(
    name: str,
    caption: str,
    rows: Sequence[Row],
    *lead: Head,
    digits: int = 3,
    kind: str = "value",
    folded: bool = False,
) -> Table:
    """A table with the columns `lead` (or keys and headings), then all statistics there are.

    Statistics that no row has are left out, and `n_undefined` where it is 0 throughout.
    """
    shown = columns_of(lead)
    taken = {column.keys for column in shown}
    for column in STATISTICS:
        filled = [row[column.names[0]] for row in rows if row.get(column.names[0]) is not None]
        empty = not filled or (column.keys == "n_undefined" and not any(filled))
        if column.keys in taken or (empty and column is not VALUE):
            continue
        of = kind if column.kind == "value" else column.kind
        if kind == "percent":  # the interval in the unit of its value
            of = {"span": "percents", "null": "null_percents"}.get(of, of)
        shown.append(Column(column.head, column.keys, of, digits))
    return Table(name, caption, shown, rows, folded)


def table(title: str, rows: Sequence[Row], *given: Head) -> Table:
    """A table of exactly the given columns, without a place of its own on a page."""
    return Table("", title, columns_of(given), rows)
