"""What a page is made of: sections, with findings in words, figures and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from tiltmeter.pages.tables import Table
from tiltmeter.stats.placebo import ESTABLISHED, LEVEL, NOT_ESTABLISHED, PERMUTATION_ONLY

Row = dict[str, Any]


@dataclass(frozen=True)
class Plot:
    """A picture, what it shows in words, and how to draw it: nothing is drawn before it is asked.

    `description` is for who does not see the picture: its main values in words.
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
    """What one probe found, for one model on one data set."""

    name: str
    title: str
    lead: str
    findings: list[Finding] = field(default_factory=list)
    figures: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    verdicts: dict[str, int] = field(default_factory=dict)  # how many associations have which


def by(rows: list[Row], *columns: str) -> dict[Any, list[Row]]:
    """Rows that share what stands in some columns, in order."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        key = row[columns[0]] if len(columns) == 1 else tuple(row[name] for name in columns)
        found.setdefault(key, []).append(row)
    return found


def strongest(rows: list[Row], many: int | None = None) -> list[Row]:
    """Established ones first, then by distance from the ideal; those without a value are last."""
    order = {ESTABLISHED: 0, PERMUTATION_ONLY: 1, NOT_ESTABLISHED: 2}

    def key(row: Row) -> tuple[int, float, str, str]:
        away = -abs(row["value"] - (row["ideal"] or 0.0)) if row["value"] is not None else 1.0
        return (order.get(row["verdict"], 3), away, str(row["concept"]), str(row["group"]))

    return sorted(rows, key=key)[:many]


def by_unit(findings: Iterable[Finding]) -> list[Finding]:
    """The strongest of each unit, then the second of each, and so on; units as they come.

    >>> found = [Finding("a", "", None, 0.1, "valence"), Finding("b", "", None, 3.0, "share"),
    ...          Finding("c", "", None, 2.0, "share"), Finding("d", "", None, 0.2, "valence")]
    >>> [one.text for one in by_unit(found)]
    ['d', 'b', 'a', 'c']
    """
    units: dict[str, list[Finding]] = {}
    for one in findings:
        units.setdefault(one.unit, []).append(one)
    ranked = [sorted(mine, key=lambda one: -one.weight) for mine in units.values()]
    return [one for place in zip_longest(*ranked) for one in place if one is not None]


def beats(row: Row, column: str = "p_fwer") -> bool:
    """Whether a p-value is there, and at most .05; one may be 0 by rounding."""
    return row[column] is not None and bool(row[column] <= LEVEL)


def slug(*names: Any) -> str:
    """A name for a file and for a place on the page: letters, digits and dashes.

    >>> slug("top-k", "race*gender", "<b>")
    'top-k-race-gender-b'
    """
    text = "-".join(str(name) for name in names if name is not None)
    kept = "".join(sign.lower() if sign.isascii() and sign.isalnum() else "-" for sign in text)
    return "-".join(part for part in kept.split("-") if part)[:60] or "part"
