"""The HTML renderer: the report as one file without requests; its plots and tables as files."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import tempfile
from collections.abc import Iterable, Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tiltmeter.errors import MissingError, TiltmeterError
from tiltmeter.pages import markdown, measured
from tiltmeter.pages.model import Plot, Table
from tiltmeter.pages.plots import drawing
from tiltmeter.pages.report import Page, page_of
from tiltmeter.results import Run

LARGEST = 4_800_000  # bytes of a page
ROWS = 400  # of a table on the page; all are in results.parquet
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # start a formula in a spreadsheet
FACTS = (
    "title",
    "size",
    "date",
    "facts",
    "choices",
    "not_run",
    "labels",
    "record",
)  # of `measured`


def html(page: Page) -> str:
    """The page as HTML."""
    return render(
        "page.html.j2",
        page.figures,
        page=page,
        summary=page.summary,
        **{name: getattr(measured, name)(page.run) for name in FACTS},
    )


def render(template: str, figures: Sequence[Plot], **shown: Any) -> str:
    """A page smaller than LARGEST: long tables show their first rows, and say so."""
    if find_spec("jinja2") is None:
        raise MissingError("a page", "jinja2")
    from jinja2 import Environment, FunctionLoader

    lacking = drawing.missing()
    style, script = (_file(name) for name in ("style.css", "page.js"))
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(_file)
    )
    made = environment.get_template(template)
    shown |= {
        "drawn": {} if lacking else drawing.inline_all(figures),
        "lacking": lacking,
        "style": Markup(style),
        "colours": drawing.variables(),
        "script": Markup(script),
        "digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    rows = ROWS
    while True:
        whole = made.render(rows=rows, **shown)
        if len(whole.encode()) <= LARGEST or rows <= 5:
            return whole
        rows //= 2


def write(
    run: Run,
    out: str | os.PathLike[str],
    *,
    before: Run | None = None,
    figures: str | os.PathLike[str] | None = None,
    tables: str | os.PathLike[str] | None = None,
) -> Path:
    """Writes the report to `out`; `figures` and `tables` are folders for its plots and tables.

    Plots are written as SVG and PNG, tables as CSV (all rows, all digits) and Markdown.
    """
    page = page_of(run, before=before)
    place = Path(out)
    write_file(place, html(page).encode())
    if figures is not None:
        write_figures(page.figures, Path(figures))
    if tables is not None:
        write_tables(page.tables, Path(tables))
    return place


def write_figures(figures: Iterable[Plot], folder: Path) -> None:
    """Every plot as SVG and PNG."""
    for package in drawing.missing():
        raise MissingError("a plot", package.replace("_", "-"))
    for figure in figures:
        write_file(folder / f"{figure.name}.svg", drawing.svg(figure).encode())
        write_file(folder / f"{figure.name}.png", drawing.png(figure))


def write_tables(tables: Iterable[Table], folder: Path) -> None:
    """Every table as CSV, all rows and digits, and as Markdown."""
    for table in tables:
        write_file(folder / f"{table.name}.csv", _csv(table).encode())
        write_file(folder / f"{table.name}.md", f"{markdown.table(table)}\n".encode())


def _csv(table: Table) -> str:
    """All rows with all digits. A label that a spreadsheet would run as a formula gets a '."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    keys = dict.fromkeys(key for column in table.columns for key in column.names)
    writer.writerow(keys)
    for row in table.rows:
        cells = (row.get(key) for key in keys)
        writer.writerow(_plain(cell) if isinstance(cell, str) else cell for cell in cells)
    return out.getvalue()


def _plain(cell: str) -> str:
    """A cell without control characters, which a terminal would obey."""
    shown = (letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in cell)
    cell = "".join(shown)
    return f"'{cell}" if cell.startswith(FORMULA) else cell


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def write_file(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        raise TiltmeterError(f"cannot write {path}: {error.strerror or error}") from error
