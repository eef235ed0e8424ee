"""What the terminal shows of a comparison, and the same as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tiltmeter.judge.gate import Comparison, Gate
from tiltmeter.judge.gate.comparison import BETTER, EQUIVALENT, UNKNOWN, UTILITY, WORSE
from tiltmeter.judge.gate.decision import measure, worst_by_word
from tiltmeter.pages import text
from tiltmeter.pages.tables import escaped
from tiltmeter.pages.terminal.layout import Row, console_of, p_value, present, table_of

SHOWN = 3  # words of each attribute
STYLE = {WORSE: "bold red", BETTER: "green", EQUIVALENT: "green", UNKNOWN: "dim"}
TOLD = {WORSE: "worse", BETTER: "better", EQUIVALENT: "no change", UNKNOWN: "cannot tell"}
WHOLE = ("", "figure", "before", "after", "change", "95% interval", "verdict")
WORDS = ("", "words", "worse", "better", "no change", "cannot tell")
SINGLE = ("", "word", "group", "figure", "before", "after", "p")


def comparison(
    found: Comparison, gate: Gate | None = None, *, console: Console | None = None
) -> None:
    """What got better, what got worse, what cannot be told; and whether the gate is open."""
    console = console or console_of()
    console.print(headline(found), style="bold")
    for line in notes(found):
        console.print(line)
    rows = found.tests.to_pylist()
    if whole := over_words(rows):
        console.print(_table("over all words", WHOLE, whole, left=2))
    if counted := words_counted(rows):
        console.print(_table("single words", WORDS, counted, left=1))
    for verdict, title in ((WORSE, "words that got worse most"), (BETTER, "... and better")):
        if some := single_words(rows, verdict):
            console.print(_table(title, SINGLE, some, left=4))
    if gate is not None:
        console.print()
        decision(console, gate)


def decision(console: Console, gate: Gate) -> None:
    """Whether a run may pass, and why not."""
    title, reasons = _decided(gate)
    console.print(title, style="bold green" if gate.passed else "bold red")
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
    lines = [f"### Tiltmeter: {escaped(text.clean(headline(found)))}", ""]
    if gate is not None:
        title, reasons = _decided(gate)
        lines += [f"**{title}**", ""]
        lines += [f"- {escaped(text.clean(reason))}" for reason in reasons] + [""] * bool(reasons)
    lines += [escaped(text.clean(line)) for line in notes(found)] + [""]
    rows = found.tests.to_pylist()
    if whole := over_words(rows):
        lines += [*_marked(("over all words", *WHOLE[1:]), whole, left=2), ""]
    if counted := words_counted(rows):
        lines += [*_marked(("single words", *WORDS[1:]), counted, left=1), ""]
    for verdict, title in ((WORSE, "got worse most"), (BETTER, "got better most")):
        if some := single_words(rows, verdict, many=3 * SHOWN):
            lines += [f"<details><summary>Words that {title}</summary>", ""]
            lines += [*_marked(("by", *SINGLE[1:]), some, left=4), "", "</details>", ""]
    return "\n".join(lines).rstrip() + "\n"


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
        "counts": {
            name: sum(row["verdict"] == name for row in rows)
            for name in (WORSE, BETTER, EQUIVALENT, UNKNOWN)
        },
        "passed": None if gate is None else gate.passed,
        "reasons": [] if gate is None else list(gate.reasons),
        "overall": [present(row) for row in rows if not row["concept"]],
        "worse": [present(row) for row in rows if row["verdict"] == WORSE and row["concept"]],
        "better": [present(row) for row in rows if row["verdict"] == BETTER and row["concept"]],
    }


def headline(found: Comparison) -> str:
    """Which two models."""
    first, second = found.names
    first, second = (text.short(name, text.IN_TABLE) for name in (first, second))
    return f"{first} -> {second}" if first != second else f"{first}, before and after"


def notes(found: Comparison) -> list[str]:
    """How it was compared, in plain words."""
    if found.untested is not None:
        return [f"Nothing was tested: {found.untested}."]
    count = found.tested
    if found.unpaired is None:
        words = len({(row["concept"], row["category"]) for row in found.tests.to_pylist()
                     if row["concept"]})  # fmt: skip
        told = [
            f"{found.images:,} images and {words:,} words, paired image by image.",
            f"Over all {count:,} tests together, the chance of any false alarm is at most 5%.",
        ]
        if found.left_out:
            told.append(f"{found.left_out:,} images that only one of the runs has are left out.")
    else:
        told = [f"Unpaired, so less is found: {found.unpaired}.",
                f"The runs' own intervals are compared, {count:,} tests (Holm)."]  # fmt: skip
    if found.skipped:
        told.append(f"Not tested: results of {', '.join(found.skipped)}.")
    if undefined := found.tests.num_rows - count:
        told.append(f"{undefined:,} more are undefined and decide nothing.")
    if found.undecided.num_rows == count:
        told.append(
            f"All {count:,} tests cannot tell: none finds a change, and none rules one out. More "
            "images tell more, and --margin says which change does not matter."
        )
    told.append("C-ASC and MaxSkew: 0 is ideal, and a change above 0 leads away from it.")
    if found.margin is not None:
        told.append(f"No change: less than {found.margin:g} for sure.")
    return told


def over_words(rows: Sequence[Row]) -> list[tuple[list[str], str]]:
    """A line for each attribute and figure, then usefulness; each with its verdict."""
    told, last = [], None
    whole = [row for row in rows
             if row["verdict"] and not row["concept"] and row["group"] is None]  # fmt: skip
    tilts = [row for row in whole if row["metric"] not in UTILITY]
    order = list(dict.fromkeys(row["attribute"] for row in tilts))
    tilts.sort(key=lambda row: (order.index(row["attribute"]), row["k"] or 0))
    for row in [*tilts, *(row for row in whole if row["metric"] in UTILITY)]:
        useful = row["metric"] in UTILITY
        name = "usefulness" if useful else row["attribute"] or ""
        # of usefulness a reader wants the change itself, and not of the distance from 1
        sign = -1.0 if useful else 1.0
        low, high = (row["ci_low"], row["ci_high"]) if not useful else (
            _minus(row["ci_high"]), _minus(row["ci_low"]))  # fmt: skip
        cells = [
            name if name != last else "",
            measure(row),
            _number(row["before"]),
            _number(row["after"]),
            f"{sign * row['excess']:+.3f}",
            "-" if low is None or high is None else f"{low:+.3f}…{high:+.3f}",
            TOLD[row["verdict"]],
        ]
        told.append((cells, row["verdict"]))
        last = name
    return told


def words_counted(rows: Sequence[Row]) -> list[tuple[list[str], str]]:
    """For each attribute how many words got worse or better; one that did both got worse."""
    told = []
    for attribute in dict.fromkeys(row["attribute"] for row in rows if row["concept"]):
        by_word: dict[tuple[str, str], set[str]] = {}
        for row in rows:
            if row["concept"] and row["attribute"] == attribute and row["verdict"]:
                by_word.setdefault((row["concept"], row["category"]), set()).add(row["verdict"])
        counts = dict.fromkeys((WORSE, BETTER, EQUIVALENT, UNKNOWN), 0)
        for verdicts in by_word.values():
            # a word has not changed if all of its figures have not
            plain = UNKNOWN if UNKNOWN in verdicts else EQUIVALENT
            counts[next((one for one in (WORSE, BETTER) if one in verdicts), plain)] += 1
        cells = [attribute or "", str(len(by_word)), *(str(count) for count in counts.values())]
        told.append((cells, WORSE if counts[WORSE] else UNKNOWN))
    return told


def single_words(
    rows: Sequence[Row], verdict: str, many: int = SHOWN
) -> list[tuple[list[str], str]]:
    """The words that changed most, each by the figure that did."""
    mine = [row for row in rows if row["concept"] and row["verdict"] == verdict]
    order = list(dict.fromkeys(row["attribute"] for row in mine))
    ranked = sorted(worst_by_word(mine), key=lambda row: (-abs(row["excess"]), row["concept"]))
    best = [
        row
        for attribute in order
        for row in [one for one in ranked if one["attribute"] == attribute][:many]
    ]
    return [
        (
            [
                row["attribute"] or "",
                row["concept"],
                row["group"] or "",
                measure(row),
                f"{row['before']:+.2f}",
                f"{row['after']:+.2f}",
                p_value(row["p_fwer"]),
            ],
            verdict,
        )
        for row in best
    ]


def _table(
    title: str, columns: Sequence[str], rows: Sequence[tuple[list[str], str]], *, left: int
) -> Table:
    table = table_of(title, *columns, left=left)
    for cells, verdict in rows:
        emphasis = STYLE.get(verdict) if columns is WHOLE else None
        table.add_row(*cells, style=emphasis)
    return table


def _marked(
    columns: Sequence[str], rows: Sequence[tuple[list[str], str]], *, left: int
) -> list[str]:
    """A table in Markdown; what got worse is bold."""
    rule = ["---" if at < left else "---:" for at in range(len(columns))]
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join(rule)}|"]
    for cells, verdict in rows:
        shown = [escaped(text.short(cell, text.IN_TABLE)) for cell in cells]
        if verdict == WORSE and columns[-1] == "verdict":
            shown[-1] = f"**{shown[-1]}**"
        lines.append(f"| {' | '.join(shown)} |")
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _minus(value: float | None) -> float | None:
    return None if value is None else -value
