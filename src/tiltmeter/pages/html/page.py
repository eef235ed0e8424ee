"""One page of a run: a single HTML file that asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
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
from tiltmeter.pages import measured, text
from tiltmeter.pages.parts import Plot, Section, slug
from tiltmeter.pages.plots import drawing
from tiltmeter.pages.sections import SECTIONS, other
from tiltmeter.pages.sections.change import change
from tiltmeter.pages.summary import Summary, summary
from tiltmeter.pages.tables import Table
from tiltmeter.papers.published import beside, filled, told
from tiltmeter.results import Run

LARGEST = 4_800_000  # bytes of a page
ROWS = 400  # of a table on the page; all are in results.parquet
TOGETHER = ("panel", "frontier")  # what compares several
ONE_STUDY = ("propagation",)  # experiments on several datasets belong together
PAIRS = 6  # models and data sets that get sections of their own


@dataclass(frozen=True)
class Page:
    """All that the page says, before it is drawn."""

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
    """Reads the sections off a run; `before` is the same audit before a correction."""
    run = filled(run)
    sections = [change(before, run)] if before is not None else []
    present = dict.fromkeys(run.table["probe"].drop_null().to_pylist())
    ordered = [name for name in SECTIONS if name in present]
    for probe in [*ordered, *(name for name in present if name not in SECTIONS)]:
        known = probe in SECTIONS
        make = SECTIONS[probe] if known else other.section
        sections += _sections(run, probe, make)
    sections = _own_names(sections)
    return Page(run, sections, summary(run, sections), [told(row) for row in beside(run)])


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
    """Writes the page to `out`, and if asked every figure and every table to folders of their own.

    Figures are SVG and PNG, tables CSV (all rows, all digits) and Markdown.
    """
    if find_spec("jinja2") is None:
        raise MissingError("the report", "jinja2")
    page = page_of(run, before=before)
    place = Path(out)
    _write(place, html(page).encode())
    if figures is not None:
        for package in drawing.missing():
            raise MissingError("a figure", package.replace("_", "-"))
        for figure in page.figures:
            _write(Path(figures) / f"{figure.name}.svg", drawing.svg(figure).encode())
            _write(Path(figures) / f"{figure.name}.png", drawing.png(figure))
    if tables is not None:
        for table in page.tables:
            _write(Path(tables) / f"{table.name}.csv", table.csv().encode())
            _write(Path(tables) / f"{table.name}.md", table.markdown().encode())
    return place


def _sections(run: Run, probe: str, make: Any) -> list[Section]:
    """One section for each model and data set that the probe was run on."""
    mine = run.table.filter(pc.equal(run.table["probe"], probe))
    listed = zip(mine["model"].to_pylist(), mine["dataset"].to_pylist(), strict=True)
    # means over experiments on several data sets name none
    pairs = list(
        dict.fromkeys(
            (model, None if probe in ONE_STUDY else data)
            for model, data in listed
            if data is not None
        )
    )
    if len(pairs) <= 1 or probe in TOGETHER:
        return [make(run, probe)]
    found = []
    for model, data in pairs[:PAIRS]:
        part = make(_part(run, model, data), probe)
        name = " on ".join(text.short(one, 60) for one in (model, data) if one)
        said = [replace(one, numbers=f"{name}: {one.numbers}") for one in part.findings]
        found.append(replace(part, title=f"{part.title}: {name}", findings=said))
    if len(pairs) > PAIRS:
        found[-1].notes.append(f"{len(pairs) - PAIRS} more models or data sets are in the run.")
    return found


def _part(run: Run, model: str | None, data: str | None) -> Run:
    """What is of one model, and of one dataset if one is named."""

    def kept(table: Any) -> Any:
        values = table["model"]
        table = table.filter(pc.is_null(values) if model is None else pc.equal(values, model))
        if data is None:
            return table
        return table.filter(pc.fill_null(pc.equal(table["dataset"], data), True))

    own = {name: one for name, one in run.instances.items() if "dataset" in one.column_names}
    return Run(kept(run.table), run.meta, {name: kept(one) for name, one in own.items()})


def _own_names(sections: list[Section]) -> list[Section]:
    """Names that stand once on the page, whatever labels they were made of."""
    taken: dict[str, int] = {}

    def own(name: str) -> str:
        name = slug(name)
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
