"""Limits on the results of a run: `lift[gender] < 1.25`, `max_skew@1000[gender] < 0.15`.

    METRIC[@K][[ATTRIBUTE[, WORD]]] < NUMBER          also <=, and > or >= for utility

Without a word the limit applies to the mean over words; with `*` for the word, to every word. For a
metric that may be negative (C-ASC, skew), `<` applies to its absolute value. Every matching row
must keep the limit: all groups of a metric by group, both directions of recall.

Lift is read as a ratio: `lift[gender] < 1.25` is a limit on `lift_size`, the size of the bias of
all words, and `lift[gender, nurse] < 1.5` on a word, which may score neither 1.5x as high with a
group nor 1/1.5 as high.
"""

from __future__ import annotations

import math
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
LIFT, SIZE = "lift", "lift_size"  # both in nats; limits are ratios

Row = dict[str, Any]


@dataclass(frozen=True)
class Limit:
    """An upper or lower limit on a metric, optionally of an attribute and a word."""

    metric: str
    k: int | None
    attribute: str | None
    word: str | None
    sign: str
    number: float

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Parse a limit, or raise `InputError`.

        >>> Limit.parse("max_skew@1000[gender] < 0.15")
        Limit(metric='max_skew', k=1000, attribute='gender', word=None, sign='<', number=0.15)
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise InputError(f"cannot read the limit {text!r}: {_problem(text)}, as in {EXAMPLE!r}")
        part = match.groupdict()
        limit = cls(
            part["metric"],
            None if part["k"] is None else int(part["k"]),
            part["attribute"],
            part["word"],
            part["sign"],
            float(part["number"]),
        )
        if limit.metric in (LIFT, SIZE) and not limit.number > 1:
            raise InputError(
                f"the limit '{limit}' is on a ratio, of which 1 is none: expected a number above "
                "1, as in 'lift[gender] < 1.25'",
                code="bad-option",
                value=text,
            )
        return limit

    def __str__(self) -> str:
        k = "" if self.k is None else f"@{self.k}"
        inside = ", ".join(x for x in (self.attribute, self.word) if x)
        return f"{self.metric}{k}{f'[{inside}]' if inside else ''} {self.sign} {self.number:g}"

    def violations(self, run: Run) -> list[str]:
        """Results of the run that break the limit, one line each."""
        broken_lines = []
        for row in self._rows(run):
            value = row["value"]
            if value is None:
                broken_lines.append(f"{self}: undefined{_row_label(row)} ({row['note']})")
                continue
            compared = abs(value) if self.sign.startswith("<") else value
            shown = f"{value:.3f}"
            if self.metric in (LIFT, SIZE):
                compared, shown = math.exp(abs(value)), f"{math.exp(value):.2f}x"
            if not _SIGNS[self.sign](compared, self.number):
                broken_lines.append(f"{self}: it is {shown}{_row_label(row)}")
        return broken_lines

    def _rows(self, run: Run) -> list[Row]:
        """The rows that the limit applies to; at least one."""
        table: list[Row] = [
            row for row in run.rows if row["factor"] is None and row["category"] != PLACEBO
        ]
        if self.metric not in (known := {row["metric"] for row in table}):
            raise UnknownNameError(f"metric in the limit '{self}':", self.metric, known)
        metric = SIZE if self.metric == LIFT and self.word is None else self.metric
        selected = [row for row in table if row["metric"] == metric]
        selected = self._filter(selected, "k", self.k)
        selected = self._filter(selected, "attribute", self.attribute)
        if self.word is None:
            over_words = [row for row in selected if not (row["concept"] or row["category"])]
            # accuracy also has rows by class
            over_words = [
                row for row in over_words if row["metric"] != "accuracy" or not row["target"]
            ]
            words = {row["concept"] for row in selected}
            # with one word there is no mean over words
            selected = over_words or (selected if len(words) == 1 else [])
        else:
            selected, _ = over_templates(row for row in selected if row["concept"])
            if self.word != EVERY:
                if self.word not in (known := {row["concept"] for row in selected}):
                    raise UnknownNameError(f"word in the limit '{self}':", self.word, known)
                selected = [row for row in selected if row["concept"] == self.word]
        if not selected:
            raise InputError(f"the run has no result that the limit '{self}' applies to")
        return selected

    def _filter(self, rows: list[Row], column: str, value: Any) -> list[Row]:
        values = sorted({row[column] for row in rows if row[column] is not None})
        if value is None and (column == "k" and len(values) > 1):
            choices = ", ".join(f"{self.metric}@{k}" for k in values)
            raise InputError(f"the limit '{self}' is ambiguous; expected one of {choices}")
        if value is None:
            return rows
        if value not in values:
            if column == "k":
                available = ", ".join(map(str, values)) or "none"
                raise InputError(
                    f"{self.metric} was not measured at k = {value} (limit '{self}'); "
                    f"expected one of {available}"
                )
            raise UnknownNameError(f"attribute in the limit '{self}':", value, values)
        return [row for row in rows if row[column] == value]


def _problem(text: str) -> str:
    """What is wrong with a limit that cannot be parsed."""
    if not re.search(r"[<>]", text):
        return "expected <, <=, > or >= and a number"
    if re.search(r"==|!=|=<|=>|<>", text) or len(re.findall(r"[<>]=?", text)) > 1:
        return "expected one of <, <=, >, >="
    if text.count("[") != text.count("]"):
        return "expected a closing ] after the attribute"
    if not re.search(r"[<>]=?\s*[-+]?\.?\d[\d.eE+-]*\s*$", text):
        return "expected a number at its end"
    return "expected METRIC@K[ATTRIBUTE] < NUMBER"


def _row_label(row: Row) -> str:
    """Attribute, group, word and experiment of a row, for a message."""
    labels = [row[name] for name in ("attribute", "group", "concept", "experiment") if row[name]]
    return f" for {', '.join(labels)}" if labels else ""
