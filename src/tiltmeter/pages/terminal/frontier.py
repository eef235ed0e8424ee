"""What the terminal shows of a frontier: one line per candidate, the front marked."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiltmeter.judge.frontier.table import CandidateResult, Frontier
from tiltmeter.pages.model import Column, Paragraph, Row, table
from tiltmeter.pages.terminal.layout import show


def frontier(found: Frontier, *, all_strengths: bool = False) -> None:
    """One line per method, at the strength that was chosen; or one per candidate."""
    shown = list(found.candidates) if all_strengths else list(found.chosen.values())
    rows = [
        _row(found, one)
        for one in (*sorted(shown, key=lambda one: _order(found, one)), found.before)
    ]
    title = f"bias by {found.attribute}, on images that no method was fitted on"
    show(
        summary(found),
        table(title, rows, ("mark", ""), "method", "strength", Column("lift", "lift", "cell"),
              Column("MaxSkew", "bias", "value"), Column("null", "null", "value"),
              Column("lost", "lost", "cell"), Column("leaks", "leaks", "cell"), "gate",
              Column("s", "seconds", "cell")),
        "* on the Pareto front and > the choice, both by the validation part. lift: mean lift of "
        f"words, 1x is ideal; least first. MaxSkew@{found.k}: mean over words; in bold: within its "
        "null (97.5%). lost: points of utility, "
        "the largest loss. leaks: accuracy of a linear and of a nonlinear probe for "
        f"{found.attribute}. gate: whether tiltmeter compare calls anything worse than before. "
        "labels: the method is given the labels of what it ranks.",
    )  # fmt: skip
    for one in shown:
        if one.worse:
            show(f"Worse with {one.name}: {', '.join(one.worse)}")
    if not found.meta["frontier"]["tasks"]:
        show("Utility was not measured, so the front is one point: --data captions=SPEC, or "
             "utility=SPEC.")  # fmt: skip
    for name, reason in found.meta["not_run"].items():
        show(Paragraph(f"{name} did not run: {reason}", "weak"))
    if found.best is None and found.affordable:
        show("\nNone passes: tiltmeter compare calls something worse for each that costs less than "
             f"{100 * found.max_cost:g} points. Choose by what is worse, or pass strengths with "
             "--strength.")  # fmt: skip
    if found.best is not None:
        show(f"\nThe best that passes and sees no label of what it ranks: {found.best.name}")
        if made := found.command(found.best):
            show(f"  {made}", soft_wrap=True)


def summary(found: Frontier) -> str:
    """One sentence."""
    parts = found.meta["frontier"]["parts"]
    fit, validation, test = (f"{parts[name]['images']:,}" for name in ("fit", "validation", "test"))
    return (
        f"{len(found.candidates)} candidates for {found.attribute}: fitted on {fit} images, chosen "
        f"by {validation}, reported on {test}; {found.meta['prompts']['concepts']} words."
    )


def as_json(found: Frontier) -> dict[str, Any]:
    """The frontier for machines."""
    best = found.best
    return {
        "attribute": found.attribute,
        "best": best and best.name,
        "command": best and found.command(best),
        "front": [one.name for one in found.front],
        "not_run": found.meta["not_run"],
        "candidates": found.table.to_pylist(),
    }


def _row(found: Frontier, one: CandidateResult) -> Row:
    bias = one.bias(found.attribute)
    leaks = one.leakage.get(found.attribute)
    lift = one.lift(found.attribute)
    lost = None if np.isnan(one.utility_cost) else f"{100 * one.utility_cost + 0.0:.1f}"
    front = any(one is other for other in found.front)
    before = one is found.before
    sees = one.sees_labels and not one.candidate.strength
    return {
        "mark": (">" if one is found.best else "") + "*" * front,
        "method": one.candidate.method,
        "strength": "labels" if sees else one.candidate.strength,
        "bias": bias.value,
        "tone": "strong" if bias.within_null else "",
        "null": bias.null and bias.null[2],
        "lost": "" if before else lost,
        "leaks": leaks and " ".join(f"{probe.accuracy:.2f}" for probe in leaks.values()),
        "lift": None if lift is None else f"{np.exp(lift):.2f}x",
        "gate": "" if before else "worse" if one.worse else "passed" if one.gates[1] else None,
        "seconds": "" if before else f"{one.seconds:.1f}",
    }


def _order(found: Frontier, one: CandidateResult) -> tuple[float, float]:
    """Lift first, as in the choice; re-rankers leave it as it was."""
    lift = one.lift(found.attribute)
    before = found.before.lift(found.attribute) or 0.0
    return before if lift is None else lift, one.bias(found.attribute).value
