"""The terminal renderer: paragraphs and tables that fit 80 columns, in any encoding."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from tiltmeter.pages.model import Paragraph, Part, Table
from tiltmeter.pages.text import IN_TABLE, printable, short

STRONGEST = 8  # findings shown of a kind
STYLES = {"": "", "strong": "bold", "weak": "dim", "good": "green", "bad": "bold red",
          "passed": "bold green"}  # fmt: skip
SPANS = (
    "span",
    "null",
    "percents",
    "null_percents",
    "ratios",
)  # short on a narrow screen: 0.12…0.34
#: A minus that can be copied; and for terminals without Unicode the signs that we use ourselves.
MINUS = str.maketrans({"−": "-"})
ASCII = str.maketrans({"–": "-", "…": "...", "→": "->", "“": '"', "”": '"', "’": "'", "±": "+-",
                       "·": "-", "≤": "<=", "✓": "ok", "✗": "X"})  # fmt: skip


class _PlainConsole(Console):
    """A console whose text is text: no sign of a label moves the cursor or turns what follows."""

    def render_str(self, text: str, **options: Any) -> Text:
        text = printable(text).translate(MINUS)
        if not self.encoding.lower().startswith("utf"):
            text = text.translate(ASCII)
        return super().render_str(text, **options)


def console_of(**options: Any) -> Console:
    """What users name is printed as it is: brackets in a label are no markup."""
    return _PlainConsole(markup=False, highlight=False, emoji=False, **options)


def show(*parts: Part, console: Console | None = None, soft_wrap: bool = False) -> None:
    """Prints parts one below the other; `soft_wrap` leaves it to the terminal to wrap lines."""
    console = console or console_of(soft_wrap=soft_wrap)
    for part in parts:
        if isinstance(part, Table):
            console.print(_rich(part, console))
        else:
            part = Paragraph(part) if isinstance(part, str) else part
            console.print(part.text, style=STYLES[part.tone] or None)


def _rich(table: Table, console: Console) -> RichTable:
    title = console.render_str(f"\n{short(table.caption, IN_TABLE)}", style="bold")
    made = RichTable(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    rows = table.merged_cells()
    for place, column in enumerate(table.columns):
        if column.kind in SPANS:
            for cells in rows:
                cells[place] = cells[place].replace("x to ", "…").replace(" to ", "…")
        longest = max((len(cells[place]) for cells in rows), default=0)
        made.add_column(
            console.render_str(short(column.head, IN_TABLE)),
            justify="left" if column.is_text else "right",
            max_width=column.width,
            # names are folded before a number is cut, or a range: it would look like another one
            min_width=longest if column.kind in SPANS else None,
            no_wrap=not column.is_text,
            overflow="fold" if column.is_text else "ellipsis",
        )
    for at, cells in enumerate(rows):
        made.add_row(*cells, style=STYLES[table.tone(at)])
    return made
