"""How numbers and tables look in a terminal of 80 columns."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tiltmeter.pages.text import printable, short
from tiltmeter.stats.placebo import ESTABLISHED, NOT_ESTABLISHED, PERMUTATION_ONLY

STRONGEST = 8  # findings shown of a kind
LONGEST = 160  # letters of a cell
SHORT = {ESTABLISHED: "yes", PERMUTATION_ONLY: "perm.", NOT_ESTABLISHED: "no"}
LABELS = {"c_asc": "C-ASC", "max_skew": "MaxSkew", "min_skew": "MinSkew", "ndkl": "NDKL",
          "normalized_entropy": "entropy"}  # fmt: skip

Row = dict[str, Any]


class _Plain(Console):
    """A console whose text is text: no sign of a label moves the cursor or turns what follows."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


class _Short(Table):
    """A table whose cells are labels and numbers: a label of a thousand letters is cut."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(
            *(short(one, LONGEST) if isinstance(one, str) else one for one in cells), **options
        )


def console_of(**options: Any) -> Console:
    """What users name is printed as it is: brackets in a label are no markup."""
    return _Plain(markup=False, highlight=False, emoji=False, **options)


def table_of(title: str, *columns: str, left: int = 1) -> Table:
    """A table with a title; the first `left` columns hold words, the others numbers."""
    table = _Short(
        title=Text(f"\n{short(title, LONGEST)}", style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for position, name in enumerate(columns):
        table.add_column(name, justify="left" if position < left else "right")
    return table


def label(metric: str, k: int | None) -> str:
    """MaxSkew@100."""
    return LABELS.get(metric, metric) + (f"@{k}" if k else "")


def number(value: float | None) -> str:
    """Three places; what has no value is undefined."""
    return "undefined" if value is None else f"{value:.3f}"


def interval(low: float | None, high: float | None, digits: int = 3) -> str:
    """0.12…0.34."""
    if low is None or high is None:
        return "-"
    return f"{low:.{digits}f}…{high:.{digits}f}"


def p_value(p: float | None) -> str:
    """Three places, or <.001."""
    if p is None:
        return "-"
    return f"{p:.3f}" if p >= 0.001 else "<.001"


def percent(share: float | None) -> str:
    """A share in per cent."""
    return "undefined" if share is None else f"{100 * share:.1f}"


def percents(row: Row) -> str:
    """The interval of a share in per cent."""
    return f"{100 * row['ci_low']:.1f}…{100 * row['ci_high']:.1f}"


def present(row: Row) -> Row:
    """What a row has to say."""
    return {name: value for name, value in row.items() if value is not None}


def by(rows: list[Row], column: str) -> list[tuple[str, list[Row]]]:
    """Rows that share what stands in a column, in order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[column], []).append(row)
    return list(found.items())
