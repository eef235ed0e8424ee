"""The report of a run as data: the sections of its probes, their summary, published results."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tiltmeter.pages import text
from tiltmeter.pages.model import Plot, Section, Table
from tiltmeter.pages.sections import SECTIONS, other
from tiltmeter.pages.sections.change import change
from tiltmeter.pages.sections.harms import harm_gaps
from tiltmeter.pages.summary import Summary, summary
from tiltmeter.pages.verdict import attribute_words, most_biased
from tiltmeter.papers.detectable import detectable
from tiltmeter.papers.published import describe, published_rows, with_published
from tiltmeter.papers.top_composition import with_composition
from tiltmeter.results import Run

#: Probes with one section for all models and datasets.
TOGETHER = ("panel", "frontier", "propagation", "stereotype")
#: Measured on captions, without an attribute: about the model's scale, whatever it is audited on.
OF_SCALE = ("logit_scale", "reliability", "matched_logit")
PAIRS = 6  # models and datasets that get sections of their own
OPEN = {"lift": 2, "harms": 2, "change": 4}  # figures shown at once; of other probes, one


@dataclass(frozen=True)
class Page:
    """The contents of the report, before it is rendered."""

    run: Run
    sections: list[Section]
    summary: Summary
    published: list[str]
    leading: Plot | None = None  # shown with the verdict, and not again in its section

    @property
    def figures(self) -> list[Plot]:
        own = [] if self.leading is None else [self.leading]
        return own + [figure for section in self.sections for figure in section.figures]

    @property
    def tables(self) -> list[Table]:
        own = [table for table in (self.summary.planted, self.summary.power) if table]
        return own + [table for section in self.sections for table in section.tables]


def page_of(run: Run, *, before: Run | None = None) -> Page:
    """Makes the sections of a run; `before` is the same audit before a correction."""
    return _page_of(run, before, json.dumps(run.meta, default=str))


@lru_cache(maxsize=1)  # an audit writes its report, and says in the terminal what is in it
def _page_of(run: Run, before: Run | None, meta: str) -> Page:
    run = with_published(run)
    sections = [change(before, run)] if before is not None else []
    present = dict.fromkeys(run.table["probe"].drop_null().to_pylist())
    ordered = [name for name in SECTIONS if name in present]
    for probe in [*ordered, *(name for name in present if name not in SECTIONS)]:
        sections += _sections(run, probe)
    sections = unique_names(_merged(sections))
    found = summary(run, sections, detectable(run))
    leading = _leading(run, sections)
    sections = [
        _folded(replace(section, figures=[one for one in section.figures if one is not leading]))
        for section in sections
    ]
    return Page(run, sections, found, [describe(row) for row in published_rows(run)], leading)


def _merged(sections: list[Section]) -> list[Section]:
    """Sections of one title as one: what both kinds of utility have to say."""
    found: dict[str, Section] = {}
    for one in sections:
        first = found.get(one.title)
        found[one.title] = one if first is None else replace(
            first, figures=[*first.figures, *one.figures], tables=[*first.tables, *one.tables],
            findings=[*first.findings, *one.findings], notes=[*first.notes, *one.notes],
        )  # fmt: skip
    return list(found.values())


def _folded(section: Section) -> Section:
    """The first figures open, the others when asked for."""
    most = OPEN.get(section.name.removeprefix("section-").partition("-")[0], 1)
    opened = [one for one in section.figures if not one.folded][:most]
    rest = [replace(one, folded=True) for one in section.figures if one not in opened]
    return replace(section, figures=[*opened, *rest])


def _leading(run: Run, sections: list[Section]) -> Plot | None:
    """The largest clear harm, or the words of the attribute with the clearest verdict."""
    figures = {figure.name: figure for section in sections for figure in section.figures}
    gaps = sorted((gap for gap in harm_gaps(run.rows) if gap.clear), key=lambda gap: -gap.value)
    names = [text.slug("harms", gap.attribute, gap.category) for gap in gaps]
    names += [text.slug("lift", one.attribute, one.model)
              for one in most_biased(attribute_words(run.rows))]  # fmt: skip
    return next((figures[f"figure-{name}"] for name in names if f"figure-{name}" in figures), None)


def _sections(run: Run, probe: str) -> list[Section]:
    """One section for each model and dataset that the probe was run on."""
    rows = run.table.filter(pc.equal(run.table["probe"], probe))
    if probe == "lift":  # captions are no dataset of their own
        rows = rows.filter(pc.is_valid(rows["attribute"]))
    listed = zip(rows["model"].to_pylist(), rows["dataset"].to_pylist(), strict=True)
    pairs = list(dict.fromkeys(pair for pair in listed if pair[1] is not None))
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
        mine = pc.fill_null(pc.equal(table["dataset"], data), True)
        if "metric" in table.column_names:
            of_scale = pc.is_in(table["metric"], pa.array(OF_SCALE))
            mine = pc.or_(mine, pc.and_(of_scale, pc.is_null(table["attribute"])))
        return table.filter(mine)

    instances = {name: kept(table) for name, table in run.instances.items()
                 if "dataset" in table.column_names}  # fmt: skip
    return Run(kept(run.table), run.meta, instances)


def unique_names(sections: list[Section], *, kinds: bool = True) -> list[Section]:
    """Names that are unique on the page, whatever labels they were made of.

    With `kinds` they begin with what they are names of: section, figure or table.
    """
    taken: dict[str, int] = {}

    def own(name: str, kind: str = "") -> str:
        name = text.slug(f"{kind}-{name}" if kind and kinds else name)
        taken[name] = taken.get(name, 0) + 1
        return name if taken[name] == 1 else own(f"{name}-{taken[name]}")

    return [
        replace(
            section,
            name=own(section.name, "section"),
            figures=[replace(one, name=own(one.name, "figure")) for one in section.figures],
            tables=[replace(one, name=own(one.name, "table")) for one in section.tables],
        )
        for section in sections
    ]
