"""The report of a run: sections put together, and the HTML renderer. One file, no requests."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import tempfile
from dataclasses import dataclass, replace
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from markupsafe import Markup

from tiltmeter.errors import MissingError, TiltmeterError
from tiltmeter.pages import markdown, measured, text
from tiltmeter.pages.model import Plot, Section, Table
from tiltmeter.pages.plots import drawing
from tiltmeter.pages.sections import SECTIONS, other
from tiltmeter.pages.sections.change import change
from tiltmeter.pages.summary import Summary, summary
from tiltmeter.papers.detectable import detectable
from tiltmeter.papers.published import describe, published_rows, with_published
from tiltmeter.papers.top_composition import with_composition
from tiltmeter.results import Run

LARGEST = 4_800_000  # bytes of a page
ROWS = 400  # of a table on the page; all are in results.parquet
TOGETHER = ("panel", "frontier")  # what compares several
ONE_STUDY = ("propagation",)  # experiments on several datasets belong together
PAIRS = 6  # models and datasets that get sections of their own
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # start a formula in a spreadsheet


@dataclass(frozen=True)
class Page:
    """The contents of the report, before it is rendered."""

    run: Run
    sections: list[Section]
    summary: Summary
    published: list[str]

    @property
    def figures(self) -> list[Plot]:
        return [figure for section in self.sections for figure in section.figures]

    @property
    def tables(self) -> list[Table]:
        own = [self.summary.power] if self.summary.power else []
        return own + [table for section in self.sections for table in section.tables]


def page_of(run: Run, *, before: Run | None = None) -> Page:
    """Makes the sections of a run; `before` is the same audit before a correction."""
    run = with_published(run)
    sections = [change(before, run)] if before is not None else []
    present = dict.fromkeys(run.table["probe"].drop_null().to_pylist())
    ordered = [name for name in SECTIONS if name in present]
    for probe in [*ordered, *(name for name in present if name not in SECTIONS)]:
        sections += _sections(run, probe)
    sections = _own_names(sections)
    found = summary(run, sections, detectable(run))
    return Page(run, sections, found, [describe(row) for row in published_rows(run)])


def html(page: Page) -> str:
    """The page as HTML, smaller than LARGEST: long tables show their first rows, and say so."""
    from jinja2 import Environment

    lacking = drawing.missing()
    drawn = {} if lacking else {figure.name: drawing.inline(figure) for figure in page.figures}
    style, script, template = (_file(name) for name in ("style.css", "page.js", "page.html.j2"))
    made = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(template)
    shown = {
        "page": page,
        "summary": page.summary,
        "drawn": drawn,
        "lacking": lacking,
        "title": measured.title(page.run),
        "date": measured.date(page.run),
        "facts": measured.facts(page.run),
        "choices": measured.choices(page.run),
        "not_run": measured.not_run(page.run),
        "labels": measured.labels(page.run),
        "record": measured.record(page.run),
        "count": page.run.table.num_rows,
        "verdict_names": text.VERDICTS,
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
    if find_spec("jinja2") is None:
        raise MissingError("the report", "jinja2")
    page = page_of(run, before=before)
    place = Path(out)
    _write(place, html(page).encode())
    if figures is not None:
        for package in drawing.missing():
            raise MissingError("a plot", package.replace("_", "-"))
        for figure in page.figures:
            _write(Path(figures) / f"{figure.name}.svg", drawing.svg(figure).encode())
            _write(Path(figures) / f"{figure.name}.png", drawing.png(figure))
    if tables is not None:
        for table in page.tables:
            _write(Path(tables) / f"{table.name}.csv", _csv(table).encode())
            _write(Path(tables) / f"{table.name}.md", f"{markdown.table(table)}\n".encode())
    return place


def _csv(table: Table) -> str:
    """All rows with all digits. A label that a spreadsheet would run as a formula gets a '."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    keys = dict.fromkeys(key for column in table.columns for key in column.names)
    writer.writerow(keys)
    for row in table.rows:
        cells = (row.get(key) for key in keys)
        writer.writerow(
            f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell
            for cell in cells
        )
    return out.getvalue()


def _sections(run: Run, probe: str) -> list[Section]:
    """One section for each model and dataset that the probe was run on."""
    rows = run.table.filter(pc.equal(run.table["probe"], probe))
    listed = zip(rows["model"].to_pylist(), rows["dataset"].to_pylist(), strict=True)
    # means over experiments on several datasets name none
    pairs = list(
        dict.fromkeys(
            (model, None if probe in ONE_STUDY else data)
            for model, data in listed
            if data is not None
        )
    )
    if len(pairs) <= 1 or probe in TOGETHER:
        return [_section(run, probe)]
    found = []
    for model, data in pairs[:PAIRS]:
        section = _section(_part(run, model, data), probe)
        name = " on ".join(text.short(one, 60) for one in (model, data) if one)
        findings = [replace(one, numbers=f"{name}: {one.numbers}") for one in section.findings]
        found.append(replace(section, title=f"{section.title}: {name}", findings=findings))
    if len(pairs) > PAIRS:
        found[-1].notes.append(f"{len(pairs) - PAIRS} more models or datasets are in the run.")
    return found


def _section(run: Run, probe: str) -> Section:
    known = probe in SECTIONS  # `get` of a registry would raise
    make = SECTIONS[probe] if known else other.section
    made: Section = make(with_composition(run) if probe == "ranking" else run, probe)
    return made


def _part(run: Run, model: str | None, data: str | None) -> Run:
    """The part of one model, and of one dataset if one is named."""

    def kept(table: Any) -> Any:
        values = table["model"]
        table = table.filter(pc.is_null(values) if model is None else pc.equal(values, model))
        if data is None:
            return table
        return table.filter(pc.fill_null(pc.equal(table["dataset"], data), True))

    instances = {name: kept(table) for name, table in run.instances.items()
                 if "dataset" in table.column_names}  # fmt: skip
    return Run(kept(run.table), run.meta, instances)


def _own_names(sections: list[Section]) -> list[Section]:
    """Names that are unique on the page, whatever labels they were made of."""
    taken: dict[str, int] = {}

    def own(name: str) -> str:
        name = text.slug(name)
        taken[name] = taken.get(name, 0) + 1
        return name if taken[name] == 1 else own(f"{name}-{taken[name]}")

    return [
        replace(
            section,
            name=own(f"section-{section.name}"),
            figures=[replace(one, name=own(f"figure-{one.name}")) for one in section.figures],
            tables=[replace(one, name=own(f"table-{one.name}")) for one in section.tables],
        )
        for section in sections
    ]


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _write(path: Path, content: bytes) -> None:
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
