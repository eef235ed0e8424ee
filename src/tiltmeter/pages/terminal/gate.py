"""What the terminal shows of a comparison, and the same as Markdown for a pull request."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console

from tiltmeter.judge.gate import Comparison, Gate
from tiltmeter.judge.gate.change_verdict import (
    ASSOCIATION,
    BETTER,
    CANNOT_TELL,
    DESCRIPTIONS,
    HARMS,
    NO_WORSE,
    ON_REQUEST,
    PRONOUNS,
    PROPAGATION,
    QUESTIONS,
    REFUSALS,
    RETRIEVAL,
    STEREOTYPES,
    UTILITY,
    VERDICTS,
    WORSE,
)
from tiltmeter.judge.gate.decision import LIFTS, metric_label, value_label
from tiltmeter.pages import markdown as md
from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Paragraph, Part, Row, Table, table
from tiltmeter.pages.sections.change import change_findings, changes
from tiltmeter.pages.selection import by, present
from tiltmeter.pages.terminal.layout import console_of, show
from tiltmeter.results import PLACEBO, over_templates

SHOWN = 3  # words of each attribute
TONES = {WORSE: "bad", BETTER: "good", NO_WORSE: "good", CANNOT_TELL: "weak"}
#: What each question asks, and how its values are read.
ASKED = {
    ASSOCIATION: "do words score higher with a group? (mean lift, ideal 1x)",
    RETRIEVAL: "are groups over-represented in the top k? (ideal 0)",
    HARMS: "do harmful classes fall on one group more? (ideal 0)",
    UTILITY: "is the model as useful as before?",
    STEREOTYPES: "is the stereotype chosen more than errors explain? (points, ideal 0)",
    PROPAGATION: "does what is retrieved differ between groups? (ideal 0)",
    REFUSALS: "is one group refused more often? (gap of rates, ideal 0)",
    PRONOUNS: "is one pronoun the default, whoever is shown? (nats, ideal 0)",
    DESCRIPTIONS: "are categories of words mentioned more of a group? (gap of rates, ideal 0)",
}


def comparison(
    found: Comparison, gate: Gate | None = None, *, console: Console | None = None
) -> None:
    """What got better or worse, the tests behind it, and whether the gate passed."""
    console = console or console_of()
    said = [text.plain(one.text) for one in change_findings(found)]
    show(Paragraph(headline(found), "strong"), *said, *[""] * bool(said), *notes(found),
         *answers(found), console=console)  # fmt: skip
    tables = [*words(found), other_measures(found), entropies(found)]
    show(*(made for made in tables if made.rows), console=console)
    if gate is not None:
        show("", console=console)
        decision(console, gate)


def answers(found: Comparison) -> Iterator[Part]:
    """A table for each question, or why it was not tested."""
    for question in QUESTIONS:
        made = answer(found, question)
        if made.rows:
            yield made
        elif found.untested is None and (
            question not in ON_REQUEST or question in found.untested_questions
        ):
            reason = found.untested_questions.get(question, "all its tests are undefined")
            yield Paragraph(f"\n{question}: nothing tested: {reason}", "weak")


def decision(console: Console, gate: Gate) -> None:
    """Whether a run may pass, and why not."""
    title, reasons = _decided(gate)
    show(Paragraph(title, "passed" if gate.passed else "bad"), console=console)
    for reason in reasons:
        console.print(f"  {reason}", soft_wrap=True)


def _decided(gate: Gate) -> tuple[str, tuple[str, ...]]:
    """A title, and the reasons that the notes of the comparison do not give."""
    if gate.untested and gate.comparison is not None and gate.comparison.untested is None:
        return f"Not passed: {gate.reasons[-1]}.", ()  # one question
    if gate.untested:
        return "Not passed: nothing was tested.", ()
    if not gate.passed:
        return "Failed:", gate.reasons
    if gate.comparison is not None and not gate.comparison.tested:
        return "Passed by its limits alone.", ()
    return "Passed.", ()


def markdown(found: Comparison, gate: Gate | None = None) -> str:
    """The comparison in GitHub's Markdown."""
    parts = [f"### Tiltmeter: {md.escape(headline(found))}"]
    if gate is not None:
        title, reasons = _decided(gate)
        parts += [f"**{title}**", md.listed(reasons)]
    parts.append("\n".join(map(md.escape, notes(found))))
    for made in answers(found):
        if isinstance(made, Table):
            first = replace(made.columns[0], head=made.caption)
            titled = replace(made, columns=[first, *made.columns[1:]])
            parts.append(md.table(titled, caption=False))
        else:
            parts.append(md.escape(made.text.strip() if isinstance(made, Paragraph) else made))
    for made in (*words(found, 3 * SHOWN), other_measures(found), entropies(found)):
        if made.rows:
            title = f"<details><summary>{md.escape(made.caption)}</summary>"
            parts += [title, md.table(made, caption=False), "</details>"]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(found: Comparison, gate: Gate | None) -> dict[str, Any]:
    """The comparison for machines: the answers, what was decided, and the words behind it."""
    rows = found.tests.to_pylist()
    return {
        "before": found.names[0],
        "after": found.names[1],
        "paired": found.unpaired is None,
        "unpaired": found.unpaired,
        "images": found.images,
        "words_in_both": found.words_in_both,
        "words_left_out": found.words_left_out,
        "margin": found.margin,
        "tests": found.tested,
        "undefined": len(rows) - found.tested,
        "untested": found.untested,
        "skipped": found.skipped,
        "passed": None if gate is None else gate.passed,
        "reasons": [] if gate is None else list(gate.reasons),
        "questions": {name: _answered(found, name) for name in QUESTIONS},
        "words": [present(row) for row in found.words.to_pylist()],
        "entropy": [present(row) for row in found.entropy.to_pylist()],
    }


def _answered(found: Comparison, question: str) -> dict[str, Any]:
    """The worst verdict of a question, how many tests say what, and the tests."""
    rows = found.answers(question)
    counts = {name: sum(row["verdict"] == name for row in rows) for name in VERDICTS}
    order = (WORSE, CANNOT_TELL, NO_WORSE, BETTER)
    return {
        "verdict": next((name for name in order if counts[name]), None),
        "untested": found.untested_questions.get(question),
        "counts": counts,
        "tests": [present(row) for row in rows],
    }


def headline(found: Comparison) -> str:
    """Which two models."""
    first, second = (text.short(name, text.IN_TABLE) for name in found.names)
    return f"{first} -> {second}" if first != second else f"{first}, before and after"


def notes(found: Comparison) -> Iterator[str]:
    """How the runs were compared."""
    if found.untested is not None:
        yield f"Nothing was tested: {found.untested}."
        return
    count = found.tested
    if found.unpaired is None:
        yield f"{found.images:,} images, paired."
        if found.left_out:
            yield f"{found.left_out:,} images that only one of the runs has are left out."
    if found.words_left_out:
        yield (
            f"Words compared: {found.words_in_both:,}. Left out, since only one of the runs has "
            f"them: {found.words_left_out:,}."
        )
    methods = {row["method"] for row in found.tests.to_pylist()}
    if found.unpaired is not None and "unpaired" in methods:
        yield f"Unpaired, which detects less: {found.unpaired}."
    yield (
        f"Lift may grow by {found.margin:.0%} of its size (--margin). If nothing got worse, the "
        f"chance that even one of the {count:,} tests says worse is at most 5%."
    )
    if scale := next((row["note"] for row in found.answers(ASSOCIATION) if row["note"]), None):
        yield f"Lift: {scale}."
    yield from _small_groups(found)
    if found.skipped:
        yield f"Not tested: {', '.join(found.skipped)} (no test of compare applies)."
    if undefined := found.tests.num_rows - count:
        yield f"{undefined:,} more are undefined and decide nothing."
    if found.undecided.num_rows == count:
        yield (
            f"All {count:,} tests cannot tell: none finds a change, and none rules one out. Use "
            "more images, or a larger --margin."
        )


def _small_groups(found: Comparison) -> Iterator[str]:
    """Groups that are left out of the gaps, by question and attribute."""
    for question in (HARMS, REFUSALS, DESCRIPTIONS):
        for attribute, rows in by(found.answers(question), "attribute").items():
            if few := text.named_left_out(row["note"] for row in rows):
                yield f"{question.capitalize()} by {text.short(attribute, text.IN_TABLE)}: {few}."


def answer(found: Comparison, question: str) -> Table:
    """A line for each attribute and measure, over all words, with its verdict."""
    rows = found.answers(question)
    order = list(dict.fromkeys(row["attribute"] for row in rows))
    rows.sort(key=lambda row: (order.index(row["attribute"]), row["k"] or 0))
    first = Column("by", "by", merged=True)
    numbers = ("before", "after", "change", "95% interval", "verdict")
    return table(f"{question}: {ASKED[question]}", [_line(row) for row in rows],
                 *([first] if question not in (UTILITY, STEREOTYPES) else []), "measure",
                 *(Column(head, head, "cell") for head in numbers))  # fmt: skip


def _line(row: Row) -> Row:
    written = _ratio if row["metric"] in LIFTS else "{:+.3f}".format
    change, *ends = map(written, changes(row))
    return {"by": row["attribute"] or "", "measure": metric_label(row), "change": change,
            "before": value_label(row, "before"), "after": value_label(row, "after"),
            "95% interval": "…".join(ends), "verdict": row["verdict"],
            "tone": TONES[row["verdict"]]}  # fmt: skip


def words(found: Comparison, many: int = SHOWN) -> list[Table]:
    """The words whose lift changed most, and those whose top k did."""
    return [
        _changed_most(found, "lift", "words whose lift changed most (as ratios)", "group", many),
        _changed_most(found, "max_skew", "words whose top k changed most", "measure", many),
    ]


def _changed_most(found: Comparison, metric: str, title: str, about: str, many: int) -> Table:
    rows = [row for row in found.words.to_pylist()
            if row["metric"] == metric and row["excess"] is not None]  # fmt: skip
    lines = []
    for own in by(rows, "attribute").values():
        largest: dict[tuple[Any, ...], Row] = {}
        for row in sorted(own, key=lambda row: (-abs(row["excess"]), row["concept"])):
            largest.setdefault((row["concept"], row["category"]), row)
        lines += list(largest.values())[:many]
    shown = _ratio if metric == "lift" else "{:.2f}".format
    lines = [{**row, "measure": metric_label(row), "before": shown(row["before"]),
              "after": shown(row["after"])} for row in lines]  # fmt: skip
    lines = [line for line in lines if line["before"] != line["after"]]
    return table(title, lines, Column("by", "attribute", merged=True), ("concept", "word"), about,
                 *(Column(head, head, "cell") for head in ("before", "after")))  # fmt: skip


def other_measures(found: Comparison) -> Table:
    """Measures of papers that decide nothing: a ratio to a spread may grow while no gap does."""
    rows = [row for row in found.table.to_pylist()
            if row["probe"] == "ranking" and row["factor"] is None
            and row["category"] != PLACEBO and row["difference"] is not None]  # fmt: skip
    lines = []
    for attribute, mine in by(rows, "attribute").items():
        scores, _ = over_templates(r for r in mine if r["metric"] == "c_asc" and r["concept"])
        sizes = [np.mean([abs(row[name]) for row in scores]) for name in ("before", "after")
                 if scores]  # fmt: skip
        over = [row for row in mine if row["metric"] == "ndkl" and not row["concept"]
                and not row["category"]]  # fmt: skip
        found_here = [("mean |C-ASC|", *sizes)] * bool(sizes)
        found_here += [("NDKL", row["before"], row["after"]) for row in over]
        lines += [{"by": attribute, "measure": name, "before": before, "after": after,
                   "change": after - before} for name, before, after in found_here]  # fmt: skip
    return table("measures of papers (not part of the decision)", lines,
                 Column("by", "by", merged=True), "measure",
                 Column("before", "before", "value"), Column("after", "after", "value"),
                 Column("change", "change", "signed"))  # fmt: skip


def entropies(found: Comparison) -> Table:
    """Normalised entropy of the smallest top k, of all words and by category (So-B-IT)."""
    rows = [row for row in found.entropy.to_pylist() if row["verdict"]]
    smallest = min((row["k"] for row in rows), default=0)
    lines = [{**_line(row), "words": row["category"] or "all words"} for row in rows
             if row["k"] == smallest and "*" not in row["attribute"]]  # fmt: skip
    title = f"normalised entropy of the top {smallest} (not part of the decision)"
    numbers = ("before", "after", "change", "95% interval", "verdict")
    return table(title, lines, Column("by", "by", merged=True), Column("words", "words", width=20),
                 *(Column(head, head, "cell") for head in numbers))  # fmt: skip


def _ratio(lift: float) -> str:
    return f"{math.exp(lift):.2f}x"
