"""Choosing and ordering: which rows and findings are shown, and in which order."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

from tiltmeter.pages.model import Finding, Row
from tiltmeter.stats.placebo import LEVEL


def by(rows: Iterable[Row], *columns: str) -> dict[Any, list[Row]]:
    """Rows that share their values in some columns, in order."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        key = row[columns[0]] if len(columns) == 1 else tuple(row[name] for name in columns)
        found.setdefault(key, []).append(row)
    return found


def present(row: Row) -> Row:
    """A row without its empty columns."""
    return {name: value for name, value in row.items() if value is not None}


def beats(row: Row, column: str = "p_fwer") -> bool:
    """Whether a p-value is there, and at most .05; one may be 0 by rounding."""
    return row[column] is not None and bool(row[column] <= LEVEL)


def strongest(rows: list[Row], many: int | None = None) -> list[Row]:
    """By distance from the ideal; those without a value are last."""

    def key(row: Row) -> tuple[float, str, str]:
        away = -abs(row["value"] - (row["ideal"] or 0.0)) if row["value"] is not None else 1.0
        return (away, str(row["concept"]), str(row["group"]))

    return sorted(rows, key=key)[:many]


def ends(rows: list[Row], many: int) -> list[Row]:
    """The first and the last `many`."""
    return rows if len(rows) <= 2 * many else [*rows[:many], *rows[-many:]]


def by_unit(findings: Iterable[Finding]) -> list[Finding]:
    """The strongest of each unit, then the second of each, and so on; units as they come.

    >>> found = [Finding("a", "", None, 0.1, "valence"), Finding("b", "", None, 3.0, "share"),
    ...          Finding("c", "", None, 2.0, "share"), Finding("d", "", None, 0.2, "valence")]
    >>> [finding.text for finding in by_unit(found)]
    ['d', 'b', 'a', 'c']
    """
    units: dict[str, list[Finding]] = {}
    for finding in findings:
        units.setdefault(finding.unit, []).append(finding)
    ranked = [sorted(mine, key=lambda finding: -finding.weight) for mine in units.values()]
    return [finding for place in zip_longest(*ranked) for finding in place if finding is not None]
