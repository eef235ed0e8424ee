"""Measured against planted: a line for each of a probe's main values whose truth is known."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from tiltmeter.pages import text
from tiltmeter.pages.columns import Row
from tiltmeter.pages.lift_findings import lift_classes
from tiltmeter.pages.model import Column, Table
from tiltmeter.pages.sections.harms import rates_of
from tiltmeter.results import Run

CAPTION = "Measured against planted"
NOTHING = 1e-9  # planted nats that are none


def planted_table(run: Run) -> Table | None:
    """Lines for the probes of a run on the built-in world; None elsewhere.

    Also None for a corrected model: what is missing there was removed, not missed.
    """
    rows = run.rows
    corrected = "debiaser" in run.meta.get("model", {})
    if corrected or all(row["truth"] is None for row in rows):
        return None
    lines = [line for make in LINES for line in itertools.islice(make(rows), 1)]
    columns = [
        Column("probe", "probe"),
        *(Column(name, name, "long") for name in ("measured", "planted", "what")),
    ]
    return Table("planted", CAPTION, columns, lines)


def _line(probe: str, what: str, measured: str, planted: str) -> Row:
    return {"probe": probe, "what": what, "measured": measured, "planted": planted}


def _lift(rows: list[Row]) -> Iterator[Row]:
    words = [row for found in lift_classes(rows) for row in found.words if row["truth"] is not None]
    yield from _sizes("lift", "lifts", words)


def _choice(rows: list[Row]) -> Iterator[Row]:
    asked = [row for row in rows if row["metric"] == "choice_lift" and row["truth"] is not None
             and row["value"] is not None]  # fmt: skip
    yield from _sizes("forced_choice", "odds", asked)


def _sizes(probe: str, what: str, rows: list[Row]) -> Iterator[Row]:
    """Sizes of words: the slope of measured on planted nats; without bias, the largest."""
    if not rows:
        return
    value, truth = (np.array([row[name] for row in rows]) for name in ("value", "truth"))
    if np.abs(truth).max() < NOTHING:
        most = text.ratio(float(np.abs(value).max()))
        yield _line(probe, f"largest of {len(rows)} {what}", most, "1.00x")
        return
    slope = text.number(float(value @ truth / (truth @ truth)), 2)
    yield _line(probe, f"size of {len(rows)} {what} (slope of logs)", slope, "1.00")


def _mentions(rows: list[Row]) -> Iterator[Row]:
    """Mentions are rare, so a single gap is mostly noise: how many intervals have the truth."""
    gaps = [row for row in rows if row["probe"] == "description" and row["metric"] == "gaps"
            and row["truth"] is not None and row["ci_low"] is not None]  # fmt: skip
    if gaps:
        inside = [row["ci_low"] <= row["truth"] <= row["ci_high"] for row in gaps]
        what = f"intervals of {len(gaps)} gaps that cover planted"
        yield _line("description", what, text.percent(float(np.mean(inside))), "95.0%")


def _order(probe: str, what: str) -> Callable[[list[Row]], Iterator[Row]]:
    """Rank correlation with what was planted: the lowest of all attributes."""

    def make(rows: list[Row]) -> Iterator[Row]:
        found = [row for row in rows if row["probe"] == probe and row["metric"] == "spearman"
                 and row["value"] is not None]  # fmt: skip
        if found:
            row = min(found, key=lambda row: row["value"])
            said = f"{what} (Spearman, n = {row['n']:,})"
            yield _line(probe, said, text.number(row["value"], 2), "1.00")
        elif any(row["probe"] == probe for row in rows):
            yield _line(probe, what, text.NONE, "no order")

    return make


def _harms(rows: list[Row]) -> Iterator[Row]:
    if rates := rates_of(rows):
        highest = max(row["value"] for row in rates)
        yield _line("harms", "highest rate of a harmful class", text.percent(highest), "0.0%")


def _true_values(
    probe: str, metric: str, what: str, write: Callable[[float], str], **where: object
) -> Callable[[list[Row]], Iterator[Row]]:
    """Rows that carry their true value."""

    def make(rows: list[Row]) -> Iterator[Row]:
        for row in rows:
            if (
                (row["probe"], row["metric"]) == (probe, metric)
                and row["truth"] is not None
                and (all(row[name] == value for name, value in where.items()))
            ):
                labels = {name: text.short(value, 40) for name, value in row.items()
                          if isinstance(value, str)}  # fmt: skip
                edges = [abs(row[name]) for name in ("null_low", "null_high") if row[name]]
                named = what.format(**labels, chance=text.number(max(edges, default=None), 2))
                yield _line(probe, named, write(row["value"]), write(row["truth"]))

    return make


def _gap(probe: str, what: str, target: str) -> Callable[[list[Row]], Iterator[Row]]:
    """The gap of a group with more of it, in points, as findings say it."""
    make = _true_values(probe, "gaps", f"{what} (points), {{group}} minus others",
                        lambda gap: text.number(100 * gap, 1, signed=True),
                        target=target)  # fmt: skip
    return lambda rows: make([row for row in rows if (row["truth"] or 0) > -NOTHING])


LINES: tuple[Callable[[list[Row]], Iterator[Row]], ...] = (
    _lift,
    _gap("silence", "refused", "refused"),
    _gap("silence", "long answers", "long answer"),
    _choice,
    _true_values("forced_choice", "position_effect", "preference for the first letter (nats)",
                 lambda v: text.number(v, 2, signed=True), experiment="letters"),
    _gap("forced_choice", "unknown", "unknown"),
    _true_values("pronoun", "pronoun_default", "default (nats), {concept}",
                 lambda v: text.number(v, 2, signed=True)),
    _mentions,
    _order("ranking", "order of words by C-ASC"),
    _harms,
    _true_values("eat", "weat", "effect d, {category} (chance ±{chance})",
                 lambda d: text.number(d, 2, signed=True)),
    _true_values("stereotype", "vlbs", "stereotypes ({experiment}; planted: icons read)",
                 lambda vlbs: text.percent(vlbs / 100), category=None),
    _true_values("propagation", "extrinsic_difference", "valence retrieved, round minus square",
                 lambda v: text.number(v, 2, signed=True)),
    _order("counterfactual", "order of masked words"),
    _true_values("zero_shot", "accuracy", "accuracy", text.percent, target=None),
    _true_values("retrieval", "recall", "recall@1, {experiment}", text.percent, k=1),
)  # fmt: skip
