"""The gate: whether a run passes, and the reasons if not."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.judge.gate.change_verdict import BIAS, QUESTIONS, WORSE
from tiltmeter.judge.gate.comparison import Comparison, compare
from tiltmeter.judge.gate.limits import Limit
from tiltmeter.results import PLACEBO, Run

#: What fails a gate: anything worse, one question, or only limits.
FAIL_ON = (WORSE, *QUESTIONS, "never")
LIFTS = ("mean_abs_lift", "mean_abs_pair_lift")  # shown as ratios
LABEL = 60  # characters of a label in a reason
PROMPT = 24  # characters of a prompt in the name of a metric

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
    fail_on : str
        `worse`, a question (`association`, `retrieval`, `harms`, `utility`, `stereotypes`,
        `propagation`, `refusals`, `pronouns`, `descriptions`) or `never`.
        `worse` fails for any question, the name of a question for that one; `never` leaves the
        decision to the limits.
    max : sequence of str or Limit
        Limits such as `lift[gender] < 1.25`.
    **compare_options
        Options of `compare`: margin, bootstraps, seed, store.

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
    check_fail_on(fail_on)
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
            other = Run.of(before)
            comparison = compare(other, run, **compare_options)
        asked = QUESTIONS if fail_on == WORSE else (fail_on,)
        if fail_on != "never":
            failed = [
                f"{name} failed: {reason}" for name, reason in run.meta.get("failed", {}).items()
            ]
            worse = [line for name in asked for line in worse_in_words(comparison, name)]
            reasons = [*failed, *worse, *reasons]
        nothing = _nothing_tested(comparison, fail_on)
        if nothing is not None and (fail_on != "never" or not limits):
            untested = not reasons
            reasons.append(nothing)
    decision = Gate(tuple(reasons), comparison, limits, untested)
    if not decision:
        SHUT.append(decision)
    return decision


def check_fail_on(fail_on: str) -> None:
    """Raise `UnknownNameError` for an unknown reason to fail."""
    if fail_on not in FAIL_ON:
        # without "never": nobody who types "better" means that
        asked = ("association", "harms") if fail_on == "lift" else ()  # the questions lift answers
        raise UnknownNameError(
            "value of --fail-on", fail_on, (WORSE, *QUESTIONS), suggestions=asked
        )


def _nothing_tested(comparison: Comparison, fail_on: str) -> str | None:
    """Why nothing was tested of what may fail the gate; None if something was."""
    if fail_on in QUESTIONS and not comparison.answers(fail_on):
        reason = comparison.untested_questions.get(fail_on, "all tests are undefined")
        return f"{fail_on} was not tested: {reason}"
    return comparison.untested and f"nothing was tested: {comparison.untested}"


def worse_in_words(comparison: Comparison, question: str) -> list[str]:
    """One line for each attribute by which a question has a worse answer."""
    worse = [row for row in comparison.answers(question) if row["verdict"] == WORSE]
    lines = []
    for attribute in dict.fromkeys(row["attribute"] for row in worse):
        rows = [row for row in worse if row["attribute"] == attribute]
        changes = [f"{metric_label(row)} {value_label(row, 'before')} to "
                   f"{value_label(row, 'after')}" for row in rows]  # fmt: skip
        by = f" by {_short(attribute)}" if attribute else ""
        lines.append(f"{question}{by} is worse: {'; '.join(changes)}")
    return lines


def metric_label(row: Row) -> str:
    """The metric's name for readers."""
    words = "neutral words" if row["category"] == PLACEBO else "words"
    names = {
        "max_skew": "MaxSkew",
        "gaps": "gap of harm" if row["probe"] == "harms" else "gap",
        "pronoun_default": f"default {row['concept']}",
        "vlbs_excess": "vlbs excess",
        "extrinsic_difference": "difference in valence",
        "extrinsic_lean": "pleasant minus unpleasant",
        "mean_abs_lift": words,
        "mean_abs_pair_lift": f"{words} ({row['experiment']} swapped)",
    }
    k = f"@{row['k']}" if row["k"] and row["metric"] != "accuracy" else ""
    direction = f", {row['experiment']}" if row["metric"] == "recall" and row["experiment"] else ""
    if row["metric"] in ("vlbs_excess", *BIAS):
        direction = f", {row['experiment']}"
    target = ""
    if row["metric"] == "gaps":  # a row for each group; refusals also for each prompt
        prompt = _short(row["experiment"] or "", PROMPT) if row["probe"] == "silence" else None
        target = f" ({', '.join(filter(None, [row['target'], row['group'], prompt]))})"
    if row["metric"] in BIAS:
        target = f" ({' minus '.join(filter(None, [row['group'], row['target']]))})"
    return f"{names.get(row['metric'], row['metric'])}{k}{direction}{target}"


def value_label(row: Row, name: str) -> str:
    """A value for readers: lift as a ratio, accuracy and recall with three digits."""
    if row["metric"] in LIFTS:
        return f"{math.exp(row[name]):.2f}x"
    digits = 3 if row["metric"] in ("accuracy", "recall", *BIAS) else 2
    return f"{round(row[name], digits) + 0.0:.{digits}f}"  # + 0.0: no minus before nothing


def _short(label: str, longest: int = LABEL) -> str:
    """The label, truncated: a reason is one line."""
    return label if len(label) <= longest else f"{label[: longest - 1]}…"
