"""What the terminal shows of a comparison, and the same as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from tiltmeter.judge.gate import Comparison, Gate
from tiltmeter.judge.gate.comparison import BETTER, EQUIVALENT, UNKNOWN, UTILITY, WORSE
from tiltmeter.judge.gate.decision import metric_label, worst_by_word
from tiltmeter.pages import columns as col
from tiltmeter.pages import markdown as md
from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Paragraph, Row, Table, table
from tiltmeter.pages.selection import by, present
from tiltmeter.pages.terminal.layout import console_of, show

SHOWN = 3  # words of each attribute
TONES = {WORSE: "bad", BETTER: "good", EQUIVALENT: "good", UNKNOWN: "weak"}
NAMES = {WORSE: "worse", BETTER: "better", EQUIVALENT: "no change", UNKNOWN: "cannot tell"}


def comparison(
    found: Comparison, gate: Gate | None = None, *, console: Console | None = None
) -> None:
    """What got better, what got worse, what cannot be told; and whether the gate passed."""
    console = console or console_of()
    rows = found.tests.to_pylist()
    tables = [over_words(rows), words_counted(rows), *single_words(rows)]
    show(Paragraph(headline(found), "strong"), *notes(found),
         *(made for made in tables if made.rows), console=console)  # fmt: skip
    if gate is not None:
        show("", console=console)
        decision(console, gate)


def decision(console: Console, gate: Gate) -> None:
    """Whether a run may pass, and why not."""
    title, reasons = _decided(gate)
    show(Paragraph(title, "passed" if gate.passed else "bad"), console=console)
    for reason in reasons:
        console.print(f"  {reason}", soft_wrap=True)


def _decided(gate: Gate) -> tuple[str, tuple[str, ...]]:
    """A title, and the reasons that the notes of the comparison do not give."""
    if gate.untested:
        return "Not passed: nothing was tested.", ()
    if not gate.passed:
        return "Failed:", gate.reasons
    if gate.comparison is not None and not gate.comparison.tested:
        return "Passed by its limits alone.", ()
    return "Passed.", ()


def markdown(found: Comparison, gate: Gate | None = None) -> str:
    """The comparison in GitHub's Markdown."""
    rows = found.tests.to_pylist()
    parts = [f"### Tiltmeter: {md.escape(headline(found))}"]
    if gate is not None:
        title, reasons = _decided(gate)
        parts += [f"**{title}**", md.listed(reasons)]
    parts.append("\n".join(map(md.escape, notes(found))))
    for made in (over_words(rows), words_counted(rows)):
        first = replace(made.columns[0], head=made.caption)
        titled = replace(made, columns=[first, *made.columns[1:]])
        parts.append(md.table(titled, caption=False) if made.rows else "")
    for made in single_words(rows, 3 * SHOWN):
        if made.rows:
            title = f"<details><summary>{md.escape(made.caption)}</summary>"
            parts += [title, md.table(made, caption=False), "</details>"]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(found: Comparison, gate: Gate | None) -> dict[str, Any]:
    """The comparison for machines: what was decided, and every test that did decide."""
    rows = found.tests.to_pylist()
    return {
        "before": found.names[0],
        "after": found.names[1],
        "paired": found.unpaired is None,
        "unpaired": found.unpaired,
        "images": found.images,
        "margin": found.margin,
        "tests": found.tested,
        "undefined": len(rows) - found.tested,
        "untested": found.untested,
        "skipped": found.skipped,
        "counts": {name: sum(row["verdict"] == name for row in rows) for name in NAMES},
        "passed": None if gate is None else gate.passed,
        "reasons": [] if gate is None else list(gate.reasons),
        "overall": [present(row) for row in rows if not row["concept"]],
        "worse": [present(row) for row in rows if row["verdict"] == WORSE and row["concept"]],
        "better": [present(row) for row in rows if row["verdict"] == BETTER and row["concept"]],
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
        words = {(row["concept"], row["category"]) for row in found.tests.to_pylist()
                 if row["concept"]}  # fmt: skip
        yield f"{found.images:,} images and {len(words):,} words, paired image by image."
        yield f"Over all {count:,} tests, the chance of any false positive is at most 5%."
        if found.left_out:
            yield f"{found.left_out:,} images that only one of the runs has are left out."
    else:
        yield f"Unpaired, which detects less: {found.unpaired}."
        yield f"The runs' own intervals are compared, {count:,} tests (Holm)."
    if found.skipped:
        yield f"Not tested: results of {', '.join(found.skipped)}."
    if undefined := found.tests.num_rows - count:
        yield f"{undefined:,} more are undefined and decide nothing."
    if found.undecided.num_rows == count:
        yield (
            f"All {count:,} tests cannot tell: none finds a change, and none rules one out. Use "
            "more images, or set with --margin which change does not matter."
        )
    yield "C-ASC and MaxSkew: 0 is ideal, and a change above 0 leads away from it."
    if found.margin is not None:
        yield f"No change: certainly less than {found.margin:g}."


def over_words(rows: Sequence[Row]) -> Table:
    """A line for each attribute and metric, then utility; each with its verdict."""
    whole = [row for row in rows
             if row["verdict"] and not row["concept"] and row["group"] is None]  # fmt: skip
    biases = [row for row in whole if row["metric"] not in UTILITY]
    order = list(dict.fromkeys(row["attribute"] for row in biases))
    biases.sort(key=lambda row: (order.index(row["attribute"]), row["k"] or 0))
    lines = [_line(row, row["attribute"] or "", 1.0) for row in biases]
    # of utility a reader wants the change itself, and not of the distance from 1
    lines += [_line(row, "utility", -1.0) for row in whole if row["metric"] in UTILITY]
    return table("over all words", lines, Column("", "name", merged=True), ("measure", "metric"),
                 Column("before", "before", "value"), Column("after", "after", "value"),
                 Column("change", "change", "signed"),
                 Column("95% interval", ("low", "high"), "span"),
                 Column("verdict", "told", "cell"))  # fmt: skip


def _line(row: Row, name: str, sign: float) -> Row:
    edges = (row["ci_low"], row["ci_high"])
    low, high = sorted(sign * edge for edge in edges) if None not in edges else (None, None)
    return {**row, "name": name, "measure": metric_label(row), "change": sign * row["excess"],
            "low": low, "high": high, "told": NAMES[row["verdict"]],
            "tone": TONES[row["verdict"]]}  # fmt: skip


def words_counted(rows: Sequence[Row]) -> Table:
    """For each attribute how many words got worse or better; one that did both got worse."""
    lines = []
    for attribute, mine in by([row for row in rows if row["concept"]], "attribute").items():
        by_word = by([row for row in mine if row["verdict"]], "concept", "category")
        counts = dict.fromkeys(NAMES, 0)
        for tests in by_word.values():
            verdicts = {row["verdict"] for row in tests}
            # a word has not changed if none of its metrics has
            plain = UNKNOWN if UNKNOWN in verdicts else EQUIVALENT
            counts[next((one for one in (WORSE, BETTER) if one in verdicts), plain)] += 1
        lines.append({"by": attribute or "", "words": len(by_word), **counts})
    return table("single words", lines, ("by", ""), Column("words", "words", "count"),
                 *(Column(head, name, "count") for name, head in NAMES.items()))  # fmt: skip


def single_words(rows: Sequence[Row], many: int = SHOWN) -> list[Table]:
    """The words that got worse and better most, each by the metric that did."""
    found = []
    for verdict in (WORSE, BETTER):
        mine = [row for row in rows if row["concept"] and row["verdict"] == verdict]
        ranked = sorted(worst_by_word(mine), key=lambda row: (-abs(row["excess"]), row["concept"]))
        order = dict.fromkeys(row["attribute"] for row in mine)
        lines = [
            {**row, "group": row["group"] or "", "measure": metric_label(row), "tone": ""}
            for attribute in order
            for row in [one for one in ranked if one["attribute"] == attribute][:many]
        ]
        found.append(
            table(f"words that got {NAMES[verdict]} most", lines, ("attribute", "by"),
                  ("concept", "word"), "group", ("measure", "metric"),
                  Column("before", "before", "signed", 2), Column("after", "after", "signed", 2),
                  replace(col.P_ADJUSTED, head="p"))
        )  # fmt: skip
    return found
