"""What a page or a screen is made of, as plain data: sections, findings, tables and plots.

What makes them selects and sorts rows of results (`sections/`, `terminal/`); what shows them lays
them out and computes nothing: `html/`, `terminal/layout.py` and `markdown.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiltmeter.pages import text
from tiltmeter.stats.placebo import ESTABLISHED

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A heading, the values of a row that it shows, and their kind: a key of `text.FORMATS`."""

    head: str
    keys: str | tuple[str, ...]
    kind: str = "text"
    digits: int = 3
    width: int | None = None  # most characters in a terminal; longer text is folded
    merged: bool = False  # left empty where the row above has the same

    @property
    def names(self) -> tuple[str, ...]:
        return (self.keys,) if isinstance(self.keys, str) else self.keys

    @property
    def is_text(self) -> bool:
        return self.kind in ("text", "long", "verdict", "metric")

    def cell(self, row: Row) -> str:
        """What is shown of a row: plain text, not yet escaped."""
        return text.FORMATS[self.kind](*(row.get(key) for key in self.names), self.digits)


VALUE = Column("value", "value", "value")
INTERVAL = Column("95% interval", ("ci_low", "ci_high"), "span")
NULL = Column("without bias", ("null_mean", "null_lo", "null_hi"), "null")
PLANTED = Column("planted", "truth", "value")
N = Column("n", "n", "count")
P = Column("p", "p", "p")
P_ADJUSTED = Column("p adjusted", "p_fwer", "p")
P_NEUTRAL = Column("p, neutral words", "p_placebo", "p")
#: What every table of the report shows of a row, where any row has it.
STATISTICS = (
    VALUE,
    INTERVAL,
    NULL,
    PLANTED,
    Column("published", "published", "value"),
    N,
    P_ADJUSTED,
    P_NEUTRAL,
    Column("verdict", "verdict", "verdict"),
    P,
    Column("q", "p_bh", "p"),
    Column("n of group", "n_group", "count"),
    Column("undefined", "n_undefined", "count"),
    Column("note", "note"),
)
METRIC = Column("measure", ("metric", "k"), "metric")


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
        return str(row.get("tone", "strong" if row.get("verdict") == ESTABLISHED else ""))


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
    *lead: Column | tuple[str, str],
    digits: int = 3,
    kind: str = "value",
    folded: bool = False,
) -> Table:
    """A table with the columns `lead` (or keys and headings), then all statistics there are.

    Statistics that no row has are left out, and `n_undefined` where it is 0 throughout.
    """
    columns = [one if isinstance(one, Column) else Column(one[1], one[0]) for one in lead]
    shown = {column.keys for column in columns}
    for column in STATISTICS:
        filled = [row[column.names[0]] for row in rows if row.get(column.names[0]) is not None]
        empty = not filled or (column.keys == "n_undefined" and not any(filled))
        if column.keys in shown or (empty and column is not VALUE):
            continue
        of = kind if column.kind == "value" else column.kind
        columns.append(Column(column.head, column.keys, of, digits))
    return Table(name, caption, columns, rows, folded)
