"""The gate: whether a run passes, and the reasons if not."""

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

#: What fails a gate: a significant deterioration, or only limits.
FAIL_ON = (WORSE, "never")
NAMED = 3  # words listed in a reason
LABEL = 60  # characters of a label in a reason

Row = dict[str, Any]
#: The last failed gates, for the pytest plugin, which clears them.
SHUT: deque[Gate] = deque(maxlen=20)


@dataclass(frozen=True, eq=False)
class Gate:
    """Decision of a gate: true if the run passed; `reasons` say why not, one line each."""

    reasons: tuple[str, ...]
    comparison: Comparison | None = None
    limits: tuple[Limit, ...] = field(default=())
    untested: bool = False  # whether the only reason is that nothing was tested

    @property
    def passed(self) -> bool:
        return not self.reasons

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return f"<Gate failed: {'; '.join(self.reasons)}>" if self.reasons else "<Gate passed>"


def gate(
    run: Run,
    before: Run | str | os.PathLike[str] | Comparison | None = None,
    *,
    fail_on: str = WORSE,
    max: Sequence[str | Limit] = (),
    **compare_options: Any,
) -> Gate:
    """Decide whether a run passes: nothing is worse than before, and every limit is kept.

    A run with a failed probe does not pass, nor does a comparison that tested nothing.

    Parameters
    ----------
    run : Run
        The run to decide on.
    before : Run, path or Comparison, optional
        The run to compare with, its directory, or a comparison already made. None: limits only.
    fail_on : {"worse", "never"}
        `never` leaves the decision to the limits.
    max : sequence of str or Limit
        Limits such as `max_skew@1000[gender] < 0.15`.
    **compare_options
        Options of `compare`: margin, swaps, bootstraps, seed, store.

    Returns
    -------
    Gate

    Raises
    ------
    InputError
        If there is neither a run to compare with nor a limit, or if a limit cannot be read.
    UnknownNameError
        If `fail_on` is unknown, or if a limit names an unknown metric, attribute or word.
    """
    if fail_on not in FAIL_ON:
        raise UnknownNameError("value of --fail-on", fail_on, FAIL_ON)
    limits = tuple(Limit.parse(limit) if isinstance(limit, str) else limit
                   for limit in ([max] if isinstance(max, str) else max))  # fmt: skip
    if before is None and not limits:
        raise InputError(
            "a gate needs a run to compare with, or limits: run.gate(before, max=[...])"
        )
    reasons = [line for limit in limits for line in limit.violations(run)]
    comparison, untested = None, False
    if before is not None:
        if isinstance(before, Comparison):
            comparison = before
        else:
            other = before if isinstance(before, Run) else Run.load(Path(before))
            comparison = compare(other, run, **compare_options)
        if fail_on == WORSE:
            failed = [
                f"{name} failed: {reason}" for name, reason in run.meta.get("failed", {}).items()
            ]
            reasons = [*failed, *worse_in_words(comparison), *reasons]
        if not comparison.tested and (fail_on == WORSE or not limits):
            untested = not reasons
            reasons.append(f"nothing was tested: {comparison.untested}")
    decision = Gate(tuple(reasons), comparison, limits, untested)
    if not decision:
        SHUT.append(decision)
    return decision


def worse_in_words(comparison: Comparison) -> list[str]:
    """One line for each attribute with a significant deterioration, and for each utility."""
    worse: list[Row] = comparison.worse.to_pylist()
    lines = []
    bias_rows = [row for row in worse if row["metric"] not in UTILITY]
    for attribute in dict.fromkeys(row["attribute"] for row in bias_rows):
        of_attribute = [row for row in bias_rows if row["attribute"] == attribute]
        words = sorted(worst_by_word(of_attribute), key=lambda row: -row["excess"])
        over_words = [row for row in of_attribute if not row["concept"] and row["group"] is None]
        changes = [
            f"{metric_label(row)} {row['before']:.2f} to {row['after']:.2f}" for row in over_words
        ]
        if words:
            examples = ", ".join(_short(row["concept"]) for row in words[:NAMED])
            more = " ..." if len(words) > NAMED else ""
            changes.append(
                f"{len(words)} {'word' if len(words) == 1 else 'words'} ({examples}{more})"
            )
        if not changes:  # only single groups, over all words
            changes = [
                f"{_short(row['group'])}: {metric_label(row)} "
                f"{row['before']:.2f} to {row['after']:.2f}"
                for row in of_attribute[:NAMED]
            ]
        lines.append(f"{_short(attribute or 'all')} is worse: {'; '.join(changes)}")
    for row in worse:
        if row["metric"] in UTILITY:
            lines.append(
                f"utility is worse: {metric_label(row)} {row['before']:.3f} to {row['after']:.3f}"
            )
    return lines


def worst_by_word(rows: Sequence[Row]) -> list[Row]:
    """For each word the row with the largest change."""
    worst: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["concept"]:
            key = (row["attribute"], row["concept"], row["category"])
            if key not in worst or abs(row["excess"]) > abs(worst[key]["excess"]):
                worst[key] = row
    return list(worst.values())


def metric_label(row: Row) -> str:
    """The metric's name for readers."""
    names = {"c_asc": "C-ASC", "mean_abs_c_asc": "mean |C-ASC|", "max_skew": "MaxSkew",
             "gaps": "gap of harm"}  # fmt: skip
    k = f"@{row['k']}" if row["k"] and row["metric"] != "accuracy" else ""
    direction = f", {row['experiment']}" if row["metric"] == "recall" and row["experiment"] else ""
    target = f" ({row['target']})" if row["metric"] == "gaps" and row["target"] else ""
    return f"{names.get(row['metric'], row['metric'])}{k}{direction}{target}"


def _short(label: str) -> str:
    """The label, truncated: a reason is one line."""
    return label if len(label) <= LABEL else f"{label[: LABEL - 1]}…"
