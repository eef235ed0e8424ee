"""The gate: whether a run may pass, and a short reason why not."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.judge.gate.comparison import UTILITY, WORSE, Comparison, compare
from tiltmeter.judge.gate.limits import Limit
from tiltmeter.results import Run

#: What may fail a gate: something worse, or nothing but limits.
FAIL_ON = (WORSE, "never")
NAMED = 3  # findings that a reason names
LABEL = 60  # letters of a label in a reason

Row = dict[str, Any]
#: The last gates that did not open, for a test runner to tell of; it takes them away itself.
SHUT: deque[Gate] = deque(maxlen=20)


@dataclass(frozen=True, eq=False)
class Gate:
    """True where the run may pass; `reasons` say why not, one line each."""

    reasons: tuple[str, ...]
    comparison: Comparison | None = None
    limits: tuple[Limit, ...] = field(default=())
    untested: bool = False  # the only reason is that nothing was tested

    @property
    def passed(self) -> bool:
        return not self.reasons

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return f"<gate shut: {'; '.join(self.reasons)}>" if self.reasons else "<gate open>"


def gate(
    run: Run,
    before: Run | str | os.PathLike[str] | Comparison | None = None,
    *,
    fail_on: str = WORSE,
    max: Sequence[str | Limit] = (),
    **how: Any,
) -> Gate:
    """Whether `run` may pass: nothing is worse than `before`, and every limit of `max` is kept.

    A run with a probe that failed is not known to be no worse, so it does not pass.

    `before` is a run, where it lies, or a comparison that is made already; without it only limits
    count. A comparison that tested nothing does not pass, unless `fail_on="never"` leaves the
    decision to limits. `how` goes to `compare`: margin, swaps, bootstraps, seed, store.
    """
    if fail_on not in FAIL_ON:
        raise UnknownNameError("reason to fail (--fail-on)", fail_on, FAIL_ON)
    limits = tuple(Limit.parse(one) if isinstance(one, str) else one
                   for one in ([max] if isinstance(max, str) else max))  # fmt: skip
    if before is None and not limits:
        raise InputError("a gate takes a run to compare with, or limits: run.gate(before, max=[])")
    reasons = [line for limit in limits for line in limit.broken(run)]
    comparison, untested = None, False
    if before is not None:
        if isinstance(before, Comparison):
            comparison = before
        else:
            other = before if isinstance(before, Run) else Run.load(Path(before))
            comparison = compare(other, run, **how)
        if fail_on == WORSE:
            failed = [f"{name} failed: {why}" for name, why in run.meta.get("failed", {}).items()]
            reasons = [*failed, *worse_in_words(comparison), *reasons]
        if not comparison.tested and (fail_on == WORSE or not limits):
            untested = not reasons
            reasons.append(f"nothing was tested: {comparison.untested}")
    found = Gate(tuple(reasons), comparison, limits, untested)
    if not found:
        SHUT.append(found)
    return found


def worse_in_words(comparison: Comparison) -> list[str]:
    """One line for each attribute with something worse, and one for utility."""
    worse: list[Row] = comparison.worse.to_pylist()
    told = []
    tilts = [row for row in worse if row["metric"] not in UTILITY]
    for attribute in dict.fromkeys(row["attribute"] for row in tilts):
        mine = [row for row in tilts if row["attribute"] == attribute]
        words = sorted(worst_by_word(mine), key=lambda row: -row["excess"])
        whole = [row for row in mine if not row["concept"] and row["group"] is None]
        said = [f"{measure(row)} {row['before']:.2f} to {row['after']:.2f}" for row in whole]
        if words:
            some = ", ".join(_short(row["concept"]) for row in words[:NAMED])
            more = " ..." if len(words) > NAMED else ""
            said.append(f"{len(words)} {'word' if len(words) == 1 else 'words'} ({some}{more})")
        if not said:  # only a group, over all words
            said = [
                f"{_short(row['group'])}: {measure(row)} {row['before']:.2f} to {row['after']:.2f}"
                for row in mine[:NAMED]
            ]
        told.append(f"{_short(attribute or 'all')} is worse: {'; '.join(said)}")
    for row in worse:
        if row["metric"] in UTILITY:
            told.append(
                f"usefulness is worse: {measure(row)} {row['before']:.3f} to {row['after']:.3f}"
            )
    return told


def worst_by_word(rows: Sequence[Row]) -> list[Row]:
    """Of each word the row that moved most."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["concept"]:
            key = (row["attribute"], row["concept"], row["category"])
            if key not in found or abs(row["excess"]) > abs(found[key]["excess"]):
                found[key] = row
    return list(found.values())


def measure(row: Row) -> str:
    """What was measured, as a reader knows it."""
    names = {"c_asc": "C-ASC", "mean_abs_c_asc": "mean |C-ASC|", "max_skew": "MaxSkew",
             "gaps": "gap of harm"}  # fmt: skip
    k = f"@{row['k']}" if row["k"] and row["metric"] != "accuracy" else ""
    way = f", {row['experiment']}" if row["metric"] == "recall" and row["experiment"] else ""
    what = f" ({row['target']})" if row["metric"] == "gaps" and row["target"] else ""
    return f"{names.get(row['metric'], row['metric'])}{k}{way}{what}"


def _short(label: str) -> str:
    """The label, or its beginning: a reason is one line."""
    return label if len(label) <= LABEL else f"{label[: LABEL - 1]}…"
