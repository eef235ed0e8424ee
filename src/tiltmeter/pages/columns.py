"""Columns of tables: a heading, which values of a row it shows, and how they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiltmeter.pages import text

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


Head = Column | str | tuple[str, str]
VALUE = Column("value", "value", "value")
INTERVAL = Column("95% interval", ("ci_low", "ci_high"), "span")
NULL = Column("by chance", ("null_mean", "null_low", "null_high"), "null")
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


def columns_of(given: Sequence[Head]) -> list[Column]:
    """Columns, keys that are their own headings, or keys and headings."""
    return [
        one if isinstance(one, Column) else Column(one, one) if isinstance(one, str)
        else Column(one[1], one[0])
        for one in given
    ]  # fmt: skip
