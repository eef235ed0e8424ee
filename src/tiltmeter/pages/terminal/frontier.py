"""What the terminal shows of a sweep: a line a candidate, the front marked."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.text import Text

from tiltmeter.judge.frontier.table import CandidateResult, Frontier, worse_for
from tiltmeter.pages.terminal.layout import console_of, number, table_of


def frontier(found: Frontier, *, all_strengths: bool = False) -> None:
    """One line a method, at the strength that was chosen; or one a candidate."""
    console = console_of()
    console.print(summary(found))
    front = {id(one) for one in found.front}
    chosen = list(found.chosen.values())
    shown = list(found.tried) if all_strengths else chosen
    others = [name for name in found.before.test_attributes if name != found.attribute]
    title = f"mean MaxSkew@{found.k} by {found.attribute}, on images that nobody was fitted on"
    table = table_of(title, "", "method", "strength", "bias", "null, 97.5%", "lost", "leaks",
                     "worse for", "s", left=3)  # fmt: skip
    for column in table.columns[1:3]:
        column.overflow = "fold"
    for one in sorted(shown, key=lambda one: one.bias(found.attribute).value):
        table.add_row(*_cells(found, one, others, front=id(one) in front))
    table.add_row(*_cells(found, found.before, others, front=id(found.before) in front))
    console.print(table)
    console.print(
        "* on the Pareto front and > the choice, both by the validation part. bias: in bold where "
        "chance gives as much. lost: points of usefulness, the largest loss. leaks: accuracy of a "
        f"linear and of a nonlinear probe for {found.attribute}. worse for: attributes whose "
        "MaxSkew rose beyond chance. labels: it is told the labels of what it ranks."
    )
    if not found.meta["frontier"]["tasks"]:
        console.print(
            "Usefulness was not measured, so the front is one point: --data captions=SPEC, or "
            "utility=SPEC."
        )
    for name, reason in found.meta["not_run"].items():
        console.print(Text(f"{name} did not run: {reason}", style="dim"))
    if found.best is not None:
        console.print(f"\nThe best that sees no label of what it ranks: {found.best.name}")
        if made := found.command(found.best):
            console.print(f"  {made}", soft_wrap=True)


def summary(found: Frontier) -> str:
    """One sentence."""
    told = found.meta["frontier"]
    parts = [f"{told['parts'][name]['images']:,}" for name in ("fit", "validation", "test")]
    return (
        f"{len(found.tried)} candidates for {found.attribute}: fitted on {parts[0]} images, chosen "
        f"by {parts[1]}, reported on {parts[2]}; {found.meta['prompts']['concepts']} words."
    )


def as_json(found: Frontier) -> dict[str, Any]:
    """What a machine is told."""
    best = found.best
    return {
        "attribute": found.attribute,
        "best": best and best.name,
        "command": best and found.command(best),
        "front": [one.name for one in found.front],
        "not_run": found.meta["not_run"],
        "candidates": found.table.to_pylist(),
    }


def _cells(found: Frontier, one: CandidateResult, others: list[str], *, front: bool) -> list[Any]:
    bias = one.bias(found.attribute)
    mark = (">" if one is found.best else "") + ("*" if front else "")
    leaks = one.leaks.get(found.attribute)
    lost = "-" if np.isnan(one.lost) else f"{100 * one.lost + 0.0:.1f}"
    return [
        mark,
        one.candidate.method,
        "labels" if one.sees_labels and not one.candidate.strength else one.candidate.strength,
        Text(number(bias.value), style="bold" if bias.within_null else ""),
        "-" if bias.null is None else number(bias.null[2]),
        "" if one is found.before else lost,
        "-" if leaks is None else " ".join(f"{one.accuracy:.2f}" for one in leaks.values()),
        ", ".join(worse_for(one, others)) or "-",
        "" if one is found.before else f"{one.seconds:.1f}",
    ]
