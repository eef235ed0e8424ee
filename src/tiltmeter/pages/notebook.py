"""Results in Python and in notebooks: findings, a summary, single plots, small HTML tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.pages import measured, text
from tiltmeter.pages.model import Part, Table, table
from tiltmeter.pages.report import page_of
from tiltmeter.results import Run

if TYPE_CHECKING:
    from tiltmeter.judge.frontier import Frontier
    from tiltmeter.judge.gate import Comparison
    from tiltmeter.judge.leaderboard import Leaderboard

MANY = 12  # findings and rows shown
CELL = "text-align:left;padding:2px 12px 2px 0"


def findings(run: Run) -> list[dict[str, Any]]:
    """What each probe found, in words: see `Run.findings`."""
    return [
        {"section": section.title, "verdict": one.verdict, "text": text.plain(one.text),
         "numbers": text.plain(one.numbers)}
        for section in page_of(run).sections
        for one in section.findings
    ]  # fmt: skip


def summary(run: Run) -> str:
    """The main result and the findings as text: see `Run.summary`."""
    lines = [measured.title(run), text.plain(page_of(run).summary.sentence), ""]
    found = findings(run)
    lines += [f"- {one['text']} {one['numbers']}".rstrip() for one in found[:MANY]]
    if len(found) > MANY:
        lines.append(f"- {len(found) - MANY} more: run.findings()")
    return "\n".join(lines).rstrip()


def plot(run: Run, name: str | None = None) -> Any:
    """One figure of the report, as an Altair chart: see `Run.plot`."""
    figures = {figure.name.removeprefix("figure-"): figure for figure in page_of(run).figures}
    if not figures:
        raise InputError("this run has no figure")
    if name is None:
        name = next(iter(figures))
    if name not in figures:
        raise UnknownNameError("figure of the run", name, figures)
    return figures[name].chart()


def run_html(run: Run) -> str:
    """A run in a notebook."""
    found = [
        {"verdict": one["verdict"] or "", "finding": one["text"], "numbers": one["numbers"]}
        for one in findings(run)[:MANY]
    ]
    parts: list[Part] = [text.plain(page_of(run).summary.sentence), _table("", found)]
    return as_html(measured.title(run), parts)


def comparison_html(found: Comparison) -> str:
    """A comparison in a notebook."""
    from tiltmeter.pages.terminal.gate import answers, headline

    return as_html(headline(found), answers(found))


def frontier_html(found: Frontier) -> str:
    """A frontier in a notebook."""
    from tiltmeter.pages.terminal.frontier import summary as line

    bounds = (" low", " high", "_low", "_high", " change")
    shown = [
        {key: f"{value:.3f}" if isinstance(value, float) else value
         for key, value in row.items() if value is not None and not key.endswith(bounds)}
        for row in found.table.to_pylist()
    ]  # fmt: skip
    return as_html(line(found), [_table("", shown)])


def leaderboard_html(board: Leaderboard) -> str:
    """A leaderboard in a notebook."""
    from tiltmeter.pages.leaderboard import grid, sentence

    return as_html(f"{len(board.models)} models", [sentence(board), grid(board)])


def as_html(title: str, parts: Iterable[Part]) -> str:
    """Parts as HTML without a page: every label is text."""
    lines = [Markup("<h4>{}</h4>").format(title)]
    for part in parts:
        if isinstance(part, Table):
            lines.append(_html_table(part))
        else:
            words = part if isinstance(part, str) else part.text
            lines.append(Markup("<p>{}</p>").format(words.strip()))
    return str(Markup("").join(lines))


def _html_table(made: Table) -> Markup:
    if not made.rows:
        return Markup("")
    cells = "".join(f'<th style="{CELL}">{escape(column.head)}</th>' for column in made.columns)
    body = [f"<tr>{cells}</tr>"]
    for line in made.cells():
        cells = "".join(f'<td style="{CELL}">{escape(cell)}</td>' for cell in line)
        body.append(f"<tr>{cells}</tr>")
    caption = f"<caption>{escape(made.caption)}</caption>" if made.caption else ""
    return Markup(f"<table>{caption}{''.join(body)}</table>")


def _table(caption: str, rows: list[dict[str, Any]]) -> Table:
    """A table of all that any row has."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    filled = [{head: row.get(head, "") for head in heads} for row in rows]
    return table(caption, filled, *[(head, head) for head in heads])
