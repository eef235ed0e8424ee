"""A table of results: for the page, for a spreadsheet, for a Markdown file."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiltmeter.pages import text
from tiltmeter.stats.placebo import ESTABLISHED

Row = dict[str, Any]
#: What every table shows of a row, where any row has it: heading, columns of results, kind.
STATISTICS = (
    ("value", ("value",), "value"),
    ("95% interval", ("ci_low", "ci_high"), "span"),
    ("without tilt", ("null_mean", "null_lo", "null_hi"), "null"),
    ("planted", ("truth",), "value"),
    ("published", ("published",), "value"),
    ("n", ("n",), "count"),
    ("p adjusted", ("p_fwer",), "p"),
    ("p, neutral words", ("p_placebo",), "p"),
    ("verdict", ("verdict",), "verdict"),
    ("p", ("p",), "p"),
    ("q", ("p_bh",), "p"),
    ("n of group", ("n_group",), "count"),
    ("undefined", ("n_undefined",), "count"),
    ("note", ("note",), "text"),
)
#: Those that start a formula in a spreadsheet.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Column:
    """A heading, the columns of the row that it shows, and how."""

    head: str
    keys: tuple[str, ...]
    kind: str  # text, value, signed, span, null, p, count, percent, verdict
    digits: int = 3

    @property
    def is_text(self) -> bool:
        return self.kind in ("text", "verdict")

    def cell(self, row: Row, most: int = text.IN_TABLE) -> str:
        """What stands in the table: plain text, not yet escaped."""
        first = row.get(self.keys[0])
        if self.kind == "span":
            return text.span(first, row.get(self.keys[1]), self.digits)
        if self.kind == "null":
            if row.get(self.keys[1]) is None:
                return text.number(first, self.digits)
            return text.span(row[self.keys[1]], row[self.keys[2]], self.digits)
        if first is None:
            return text.NONE
        if self.kind == "verdict":
            return text.VERDICTS.get(first, text.short(first, most))
        if self.kind == "text":
            return text.short(first, most)
        if self.kind in ("value", "signed"):
            return text.number(first, self.digits, signed=self.kind == "signed")
        writers = {"p": text.p_value, "count": text.count, "percent": text.percent}
        return writers[self.kind](first)


@dataclass(frozen=True)
class Table:
    """Rows of results under a caption. `name` is that of its files and of its place on the page."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    folded: bool = False  # shown when asked for

    def cells(self, many: int | None = None) -> list[list[str]]:
        return [[column.cell(row) for column in self.columns] for row in self.rows[:many]]

    def established(self, at: int) -> bool:
        return bool(self.rows[at].get("verdict") == ESTABLISHED)

    def csv(self) -> str:
        """All rows with all digits. A label that a spreadsheet would run as a formula gets a '."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        keys = [(key, column.is_text) for column in self.columns for key in column.keys]
        writer.writerow([key for key, _ in keys])
        for row in self.rows:
            writer.writerow([_raw(row.get(key), is_text) for key, is_text in keys])
        return out.getvalue()

    def markdown(self) -> str:
        """The table as the page shows it, all rows."""
        head = [column.head for column in self.columns]
        rule = ["---" if column.is_text else "---:" for column in self.columns]
        body = [[escaped(cell) for cell in row] for row in self.cells()]
        lines = ["| " + " | ".join(row) + " |" for row in (head, rule, *body)]
        return f"{escaped(self.caption)}\n\n" + "\n".join(lines) + "\n"


def table_of(
    name: str,
    caption: str,
    rows: Sequence[Row],
    *lead: tuple[str, str],
    digits: int = 3,
    kind: str = "value",
    folded: bool = False,
) -> Table:
    """A table with the columns `lead` (of results, and their headings), then all statistics there.

    Columns that no row fills are left out, and `n_undefined` where it is 0 throughout.
    """
    columns = [Column(head, (key,), "text") for key, head in lead]
    for head, keys, of in STATISTICS:
        filled = [row[keys[0]] for row in rows if row.get(keys[0]) is not None]
        empty = not filled or (keys == ("n_undefined",) and not any(filled))
        if keys[0] in dict(lead) or (empty and keys != ("value",)):
            continue
        shown = kind if of == "value" else of
        columns.append(Column(head, keys, shown, digits))
    return Table(name, caption, columns, rows, folded)


def _raw(value: Any, is_text: bool) -> Any:
    if is_text and isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return value


def escaped(cell: str) -> str:
    """Text that Markdown shows as it is."""
    for sign in "\\`*_[]|~#":
        cell = cell.replace(sign, f"\\{sign}")
    return cell.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
