"""Limits that a run must keep: `max_skew@1000[gender] < 0.15`.

    METRIC[@K][[ATTRIBUTE[, WORD]]] < NUMBER          also <=, and > or >= for utility

Without a word the limit is on the mean over words; with `*` for the word, on every single one.
Where a figure may be negative (C-ASC, skew), `<` is about its size. Every row that fits must keep
the limit: all groups of a figure that is by group, both ways of recall.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.results import PLACEBO, Run, over_templates

_FORM = re.compile(
    r"""\s*(?P<metric>[a-z_][a-z0-9_]*)      # max_skew
    \s*(?:@\s*(?P<k>\d+))?                   # @1000
    \s*(?:\[\s*(?P<attribute>[^\],]+?)\s*(?:,\s*(?P<word>[^\]]+?)\s*)?\])?   # [gender, nurse]
    \s*(?P<sign><=|>=|<|>)\s*
    (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*""",
    re.VERBOSE,
)
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
}  # fmt: skip
EXAMPLE = "max_skew@1000[gender] < 0.15"
EVERY = "*"

Row = dict[str, Any]


@dataclass(frozen=True)
class Limit:
    """A metric, of an attribute and a word where that is given, and the number it must keep."""

    metric: str
    k: int | None
    attribute: str | None
    word: str | None
    sign: str
    number: float

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Reads a limit.

        >>> Limit.parse("max_skew@1000[gender] < 0.15")
        Limit(metric='max_skew', k=1000, attribute='gender', word=None, sign='<', number=0.15)
        """
        found = _FORM.fullmatch(text)
        if found is None:
            raise InputError(f"cannot read the limit {text!r}: {_wrong(text)}, as in {EXAMPLE!r}")
        part = found.groupdict()
        return cls(
            part["metric"],
            None if part["k"] is None else int(part["k"]),
            part["attribute"],
            part["word"],
            part["sign"],
            float(part["number"]),
        )

    def __str__(self) -> str:
        k = "" if self.k is None else f"@{self.k}"
        inside = ", ".join(x for x in (self.attribute, self.word) if x)
        return f"{self.metric}{k}{f'[{inside}]' if inside else ''} {self.sign} {self.number:g}"

    def broken(self, run: Run) -> list[str]:
        """What in a run does not keep the limit, one line each."""
        told = []
        for row in self._rows(run):
            value = row["value"]
            if value is None:
                told.append(f"{self}: undefined{_of(row)} ({row['note']})")
                continue
            size = abs(value) if self.sign.startswith("<") else value
            if not _SIGNS[self.sign](size, self.number):
                told.append(f"{self}: it is {value:.3f}{_of(row)}")
        return told

    def _rows(self, run: Run) -> list[Row]:
        """The rows that the limit is about; there is at least one."""
        table: list[Row] = [
            row
            for row in run.table.to_pylist()
            if row["factor"] is None and row["category"] != PLACEBO
        ]
        if self.metric not in (known := {row["metric"] for row in table}):
            raise UnknownNameError(f"metric in the limit '{self}':", self.metric, known)
        mine = [row for row in table if row["metric"] == self.metric]
        mine = self._narrowed(mine, "k", self.k)
        mine = self._narrowed(mine, "attribute", self.attribute)
        if self.word is None:
            whole = [row for row in mine if not (row["concept"] or row["category"])]
            # accuracy is there by class too, and harm by pairs of groups
            whole = [row for row in whole if row["metric"] != "accuracy" or not row["target"]]
            single = {row["concept"] for row in mine}
            # a run of one word has no mean over words
            mine = whole or (mine if len(single) == 1 else [])
        else:
            mine, _ = over_templates(row for row in mine if row["concept"])
            if self.word != EVERY:
                if self.word not in (known := {row["concept"] for row in mine}):
                    raise UnknownNameError(f"word in the limit '{self}':", self.word, known)
                mine = [row for row in mine if row["concept"] == self.word]
        if not mine:
            raise InputError(f"the run has no figure that the limit '{self}' is about")
        return mine

    def _narrowed(self, rows: list[Row], column: str, wanted: Any) -> list[Row]:
        known = sorted({row[column] for row in rows if row[column] is not None})
        if wanted is None and (column == "k" and len(known) > 1):
            named = ", ".join(f"{self.metric}@{one}" for one in known)
            raise InputError(f"the limit '{self}' must say which: {named}")
        if wanted is None:
            return rows
        if wanted not in known:
            if column == "k":
                said = ", ".join(map(str, known)) or "none"
                raise InputError(
                    f"{self.metric} was not measured at k = {wanted} (limit '{self}'); k: {said}"
                )
            raise UnknownNameError(f"attribute in the limit '{self}':", wanted, known)
        return [row for row in rows if row[column] == wanted]


def _wrong(text: str) -> str:
    """What a limit that cannot be read lacks."""
    if not re.search(r"[<>]", text):
        return "expected <, <=, > or >= and a number"
    if re.search(r"==|!=|=<|=>|<>", text) or len(re.findall(r"[<>]=?", text)) > 1:
        return "expected one of <, <=, >, >="
    if text.count("[") != text.count("]"):
        return "expected a closing ] after the attribute"
    if not re.search(r"[<>]=?\s*[-+]?\.?\d[\d.eE+-]*\s*$", text):
        return "expected a number at its end"
    return "expected METRIC@K[ATTRIBUTE] < NUMBER"


def _of(row: Row) -> str:
    """Which row it is, where the limit does not say."""
    said = [row[name] for name in ("attribute", "group", "concept", "experiment") if row[name]]
    return f" for {', '.join(said)}" if said else ""
