"""Measures what a recipe needs, lays out its items and writes the page: `tiltmeter reproduce`."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

from tiltmeter.datasets import load_data
from tiltmeter.datasets.roles import ROLES
from tiltmeter.errors import EXPECTED, InputError, TiltmeterError, UnknownNameError, reason
from tiltmeter.models import check_model
from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.html.paper import write_page
from tiltmeter.pages.model import Column, Section, Table
from tiltmeter.pages.paper import PaperPage
from tiltmeter.pages.report import unique_names
from tiltmeter.papers.published import published, published_rows, with_published
from tiltmeter.reproduce import PAPERS
from tiltmeter.reproduce.measurements import OF_WORLD, Audit, Context
from tiltmeter.reproduce.recipe import Item, Paper
from tiltmeter.reproduce.study import Study
from tiltmeter.results import Run, content_hash
from tiltmeter.types import Progress

CALL = "reproduce.json"  # what a directory was made with: the same call continues there
COMPARED = (
    "model", "dataset", col.METRIC, "experiment", "attribute", "group", "concept", "target",
    Column("published", "published", "value"), Column("ours", "measured", "value"), col.INTERVAL,
)  # fmt: skip


@dataclass
class _Measured:
    """Runs by measurement and part, and why others are missing."""

    runs: dict[str, dict[str, list[Run]]] = field(default_factory=dict)
    missing: dict[str, dict[str, str]] = field(default_factory=dict)  # measurement: model: reason
    made: list[dict[str, Any]] = field(default_factory=list)  # rows of the page's record
    bugs: list[Exception] = field(default_factory=list)


def reproduce(
    name: str,
    models: Sequence[str] = (),
    *,
    out: str | Path,
    data: Mapping[str, str] | None = None,
    train: bool = False,
    permutations: int = 1000,
    bootstraps: int = 400,
    seed: int = 0,
    store: str | Path | None = None,
    device: str = "auto",
    show_images: bool = False,
    replace: bool = False,
    progress: Progress | None = None,
) -> PaperPage:
    """Make every table and figure of a paper.

    Parameters
    ----------
    name
        A paper of `PAPERS`.
    models
        Model specs. Without any, models of the built-in world: a biased one and its fair twin.
    out
        Directory for the page, its tables and figures, and the runs. The same call again continues
        with the runs that are there.
    data
        Specs by role; `PAPERS[name].data` says which roles a paper uses.
    train
        Whether to make items that need a network to be trained.
    permutations, bootstraps, seed, store, device
        As for an audit.
    show_images
        Whether the page may show images of people; those of the built-in world are always shown.
    replace
        Whether `out` may be replaced.
    progress
        Called with what is measured and the share that is done.

    Returns
    -------
    PaperPage
        The page as data; it has been written to `out`.

    Raises
    ------
    UnknownNameError
        If the paper or a role is unknown.
    InputError
        If a model or data cannot be loaded, if `out` belongs to another call, or if no item can be
        made.
    """
    paper: Paper = PAPERS[name]
    world = all(model.startswith("testbed:") for model in models)  # also without models
    specs = dict(data or {})
    for role in specs:
        if role not in paper.data:
            raise UnknownNameError(f"data role of {name}", role, paper.data)
    _check_data(specs)
    for model in models:
        check_model(model, device=device)
    if world:
        specs = {**paper.world_data, **specs}
    call = {"paper": name, "models": list(models), "data": specs, "train": train, "seed": seed,
            "permutations": permutations, "bootstraps": bootstraps,
            "recipe": content_hash(repr(paper.measurements))}  # fmt: skip
    place = Path(out)
    _prepare(place, call, replace=replace)
    context = Context(
        specs,
        paper.world_attributes if world else {},
        {"permutations": permutations, "bootstraps": bootstraps, "seed": seed, "store": store,
         "device": device},
        place,
        place / "models",
        world,
        progress,
    )  # fmt: skip
    measured = _measure_all(paper, list(models or paper.world_models), context, train=train)
    study = Study(measured.runs, specs, context.attributes, world, show_images or world, place)
    sections = [_section(paper, item, study, measured) for item in paper.items]
    if paper.measurements and not measured.runs:
        shutil.rmtree(place)
        raise InputError(f"nothing of {name} can be measured: {_first_reasons(measured.missing)}")
    page = PaperPage(
        paper.title,
        paper.source,
        unique_names([section for section, _ in sections], kinds=False),
        {item.label: made for item, (_, made) in zip(paper.items, sections, strict=True)},
        measured.made,
        world,
    )  # fmt: skip
    write_page(page, place)
    for bug in measured.bugs:
        raise TiltmeterError(
            f"a measurement failed: {reason(bug)} (the rest is in {place})", code="probe-failed"
        ) from bug
    return page


def _first_reasons(missing: Mapping[str, Mapping[str, str]]) -> str:
    """The first reason of each model, or what no model can do without."""
    reasons: dict[str, str] = {}
    for mine in missing.values():
        reasons = {**mine, **reasons}
    of_models = [why for model, why in reasons.items() if model]
    return "; ".join(dict.fromkeys(of_models or reasons.values()))


def _check_data(specs: Mapping[str, str]) -> None:
    """What was typed must load, before anything is measured."""
    for role, spec in specs.items():
        if role in ROLES:
            load_data(spec, role=role)


def _prepare(place: Path, call: Mapping[str, Any], *, replace: bool) -> None:
    """Make the directory, or continue in the one that the same call made."""
    file = place / CALL
    if place.exists():
        earlier = json.loads(file.read_text()) if file.is_file() else None
        if replace and (earlier is not None or not any(place.iterdir())):
            shutil.rmtree(place)
        elif earlier != call:
            what = "was made by another call" if earlier else "exists already"
            how = "choose another --out" + (", or pass --force" if earlier else "")
            raise InputError(f"{place} {what}: {how}", code="exists", value=place)
    place.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(call, indent=2) + "\n")


def _measure_all(
    paper: Paper, models: Sequence[str], context: Context, *, train: bool
) -> _Measured:
    measured = _Measured()
    for name, measurement in paper.measurements.items():
        known = {*context.data, *(OF_WORLD if context.world else ())}
        missing = [role for role in measurement.roles if not known & set(role.split("|"))]
        why = ""
        if measurement.trains and not train:
            why = "needs a training: pass --train"
        elif missing:
            needed = " and ".join(
                " or ".join(f"--data {one}=SPEC ({paper.data[one]})" for one in role.split("|"))
                for role in missing
            )
            why = f"needs data: {needed}"
        if why:
            measured.missing[name] = {"": why}
            continue
        for number, model in enumerate(models if measurement.of_models else [""], 1):
            folder = context.folder / "runs" / (f"{name}-{number}" if model else name)
            _measure(paper, name, model, changed(context, folder=folder), measured)
    return measured


def _measure(paper: Paper, name: str, model: str, context: Context, measured: _Measured) -> None:
    """One measurement of one model, or the runs of it that are there."""
    measurement, began = paper.measurements[name], time.perf_counter()
    runs = _finished(context.folder)
    report = context.progress
    if report is not None:
        report(f"{name}{f' of {model}' if model else ''}", 0.0)
    if not runs:
        try:
            runs = measurement.measure(model, context)
        except Exception as error:
            measured.missing.setdefault(name, {})[model] = reason(error)
            if not isinstance(error, EXPECTED):
                measured.bugs.append(error)
            return
        for part, run in runs.items():
            run.save(context.folder / (part or "run"), replace=True)
        context.folder.mkdir(parents=True, exist_ok=True)  # a model that needs no run
        (context.folder / "finished").write_text(f"{time.perf_counter() - began:.0f}\n")
    if isinstance(measurement, Audit):
        context.audits[repr(measurement), model] = runs[""]
    seconds = float((context.folder / "finished").read_text())
    for part, run in runs.items():
        run = with_published(run)
        measured.runs.setdefault(name, {}).setdefault(part, []).append(run)
        measured.made.append(_record(name, part, run, seconds, context.folder))


def _finished(folder: Path) -> dict[str, Run]:
    if not (folder / "finished").is_file():
        return {}
    places = sorted(file.parent for file in folder.glob("*/run.json"))
    return {"" if place.name == "run" else place.name: Run.load(place) for place in places}


def _record(name: str, part: str, run: Run, seconds: float, folder: Path) -> dict[str, Any]:
    data = run.meta.get("data", {}).values()
    return {
        "measurement": f"{name}, {part}" if part else name,
        "model": run.meta.get("model", {}).get("name"),
        "data": ", ".join(str(one.get("name")) for one in data),
        "n": sum(one.get("images", one.get("captions", 0)) for one in data),
        "convention": (run.meta.get("convention") or {}).get("name"),
        "seed": run.meta.get("seed"),
        "seconds": seconds,
        "folder": f"runs/{folder.name}/{part or 'run'}",
    }


def _section(paper: Paper, item: Item, study: Study, measured: _Measured) -> tuple[Section, str]:
    """The section of an item, and whether it was made: `yes`, or why not or only in part."""
    section = Section(text.slug(item.label), f"{item.label}. {item.title}", "")
    if item.layout is None:
        section.notes.append(f"Not made: {item.reason}")
        return section, section.notes[0]
    lacking = [name for name in item.needs if name not in measured.runs]
    if lacking:
        whys = [
            f"{why}" if not model else f"{model}: {why}"
            for name in lacking
            for model, why in measured.missing[name].items()
        ]
        section.notes.append(f"Not made: {'; '.join(dict.fromkeys(whys))}")
        return section, section.notes[0]
    try:
        parts = item.layout(study)
    except EXPECTED as error:
        section.notes.append(f"Not made: {reason(error)}")
        return section, section.notes[0]
    section.notes.extend(_of_item(item, measured))
    for part in (*parts, *_beside_published(paper, item, study)):
        if isinstance(part, str):
            section.notes.append(part)
        elif isinstance(part, Table):
            section.tables.append(changed(part, name=f"{section.name}-{part.name}"))
        else:
            section.figures.append(changed(part, name=f"{section.name}-{part.name}"))
    left_out = [measured.missing.get(name, {}).get("") for name in (*item.needs, *item.takes)]
    why = "; ".join(dict.fromkeys(filter(None, left_out)))
    return section, f"in part ({why})" if why else "yes"


def _of_item(item: Item, measured: _Measured) -> Iterator[str]:
    """Where the item falls short of the paper's, and models that it leaves out."""
    if item.shortfall:
        yield f"Unlike the paper: {item.shortfall}"
    for name in (*item.needs, *item.takes):
        for model, why in measured.missing.get(name, {}).items():
            yield f"Without {model}: {why}" if model else f"Not all of it is made: {why}"


def _beside_published(paper: Paper, item: Item, study: Study) -> Iterator[Table | str]:
    """Published values next to ours, or why there are none."""
    printed = [one for one in published(paper.published) if one.table == item.number]
    runs = [
        run
        for name in (*item.needs, *item.takes)
        for mine in study.measured.get(name, {}).values()
        for run in mine
    ]
    rows = [
        row
        for run in runs
        for row in published_rows(run)
        if (row["source"], row["table"]) == (paper.published, item.number)
    ]
    if rows:
        shown = [one for one in col.columns_of(COMPARED) if any(row[one.names[0]] for row in rows)]
        caption = f"{item.label}: published values next to ours ({len(rows)} of {len(printed)})"
        yield Table("published", caption, shown, rows)
    elif printed:
        theirs = text.listed(list(dict.fromkeys(one.model or "no model" for one in printed)))
        data = text.listed(list(dict.fromkeys(one.dataset for one in printed)))
        yield (
            f"Not comparable with the paper's {text.plural(len(printed), 'value')}, of {theirs} on "
            f"{data}: values are shown only for the same model, data, words and convention."
        )
