"""The verdict of an audit in the terminal: at most 40 lines of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from tiltmeter.pages import measured, text
from tiltmeter.pages.model import Paragraph, Part
from tiltmeter.pages.next_steps import next_steps
from tiltmeter.pages.planted import CAPTION, planted_table
from tiltmeter.pages.report import page_of
from tiltmeter.pages.terminal.audit import left_out
from tiltmeter.pages.terminal.layout import show
from tiltmeter.pages.verdict import SIGNIFICANT, Answer
from tiltmeter.results import Run
from tiltmeter.stats.lift_verdict import CLEAR

COLUMNS, LINES = 80, 40
VERDICT = 13  # columns of a verdict
CLOSING = 4  # lines that follow: where the run and the report are


def verdict(run: Run) -> None:
    """The sentence, an answer to each question, next steps, and what was planted."""
    show(*parts(run), soft_wrap=True)


def parts(run: Run) -> list[Part]:
    """The same as paragraphs; answers that do not fit are counted, not shown."""
    page = page_of(run)
    after = [*_steps(run), *_planted(run), *_failed(run)]
    answers = [list(_answer(answer)) for answer in page.summary.answers]
    head = [*_head(run), *left_out(run.meta), *_folded(text.plain(page.summary.sentence), 4)]
    head += [""] * bool(answers)
    room = LINES - CLOSING - len(head) - len(after) - 1
    shown: list[Part] = []
    for at, lines in enumerate(answers):
        if len(shown) + len(lines) > room:
            shown.append(f"{'':{VERDICT}}{len(answers) - at} more in the report")
            break
        shown += lines
    return [Paragraph(head[0], "strong"), *head[1:], *shown, *after]


def _head(run: Run) -> list[str]:
    return [text.short(": ".join(filter(None, (measured.title(run), measured.size(run)))), COLUMNS)]


def _answer(answer: Answer) -> Iterator[Part]:
    said = f"{answer.question}: {text.plain(answer.brief or answer.found)}"
    # the end of a line matters where nothing was found (the reason) or a group is left out
    short = answer.verdict in (CLEAR, SIGNIFICANT) and "left out" not in said
    lines = 2 if short else 3
    first, *more = _folded(said, lines, COLUMNS - VERDICT)
    yield Paragraph(f"{answer.verdict:{VERDICT}}{first}", answer.tone)
    yield from (f"{'':{VERDICT}}{line}" for line in more)


def _steps(run: Run) -> list[Part]:
    steps = next_steps(run)
    lines: list[Part] = [Paragraph("\nWhat to do next", "strong")] * bool(steps)
    for step in steps:
        if step.explained:
            lines += [f"  # {line}" for line in _folded(step.text, 2, COLUMNS - 4)]
        lines += [f"  {line}" for line in step.lines(COLUMNS - 2)]
    return lines


def _planted(run: Run) -> list[Part]:
    table = planted_table(run)
    if table is None:
        return []
    lines: list[Part] = [Paragraph(f"\n{CAPTION}", "strong")]
    for row in table.rows:
        values = f"{row['measured']} / {row['planted']}"
        lines.append(f"  {row['probe']:<15} {values:<15} {row['what']}"[:COLUMNS])
    return lines


def _failed(run: Run) -> list[Part]:
    return [Paragraph(text.short(f"Failed: {name}: {why}", COLUMNS), "bad")
            for name, why in (run.meta.get("failed") or {}).items()]  # fmt: skip


def _folded(words: Any, lines: int, width: int = COLUMNS) -> list[str]:
    """The words in at most so many lines."""
    return textwrap.wrap(text.clean(words), width, max_lines=lines, placeholder=" …") or [""]
