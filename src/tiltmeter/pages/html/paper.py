"""Writes the page of a reproduced paper: HTML, Markdown, and its tables and figures as files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tiltmeter.pages import markdown, text
from tiltmeter.pages.html.page import render, write_figures, write_file, write_tables
from tiltmeter.pages.paper import LABELS, WORLD, PaperPage
from tiltmeter.pages.plots import drawing

NAME = "index.html"
_CODE = re.compile(r"( ?(?<!`)`[^`]+`(?!`) ?)")  # with its spaces, which `escape` strips


def write_page(page: PaperPage, folder: Path) -> Path:
    """Write `index.html`, `summary.md`, `tables/` and `figures/` into a directory."""
    place = folder / NAME
    shown = {"page": page, "labels": LABELS, "world": WORLD if page.world else ""}
    write_file(place, render("paper.html.j2", page.figures, **shown).encode())
    write_file(folder / "summary.md", as_markdown(page).encode())
    for part in ("tables", "figures"):  # of an earlier call
        shutil.rmtree(folder / part, ignore_errors=True)
    write_tables(page.tables, folder / "tables")
    if not drawing.missing():
        write_figures(page.figures, folder / "figures")
    return place


def as_markdown(page: PaperPage) -> str:
    """The page as Markdown: its tables, and figures by their values in words."""
    parts = [f"# {markdown.escape(page.title)}", markdown.escape(page.source)]
    parts += [markdown.escape(WORLD)] * page.world
    parts += [markdown.escape(LABELS), markdown.table(page.overview)]
    for section in page.sections:
        parts.append(f"## {markdown.escape(section.title)}")
        parts += [_paragraph(note) for note in section.notes]
        parts += [f"{markdown.escape(one.title)}: {markdown.escape(one.description)}"
                  for one in section.figures]  # fmt: skip
        parts += [markdown.table(one) for one in section.tables if not one.folded]
    parts.append(markdown.table(page.record))
    return "\n\n".join(parts) + "\n"


def _paragraph(note: str) -> str:
    """A note whose code, between single backticks, stays code; all else is escaped.

    >>> print(_paragraph("a *word*: `tiltmeter explore a_b` shows it"))
    a \\*word\\*: `tiltmeter explore a_b` shows it
    """
    parts = _CODE.split(text.short(note, 4000))  # every other part is code
    return "".join(part if at % 2 else markdown.escape(part) for at, part in enumerate(parts))
