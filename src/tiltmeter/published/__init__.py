"""Figures that papers print, as data, to stand beside a run on the same model and data.

One YAML file a source, its tables as printed; a note says where a paper contradicts itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tiltmeter.results import Run

SOURCES = ("berg2022", "sobit2024", "sem")
#: What a row must share with a printed figure to be the same measurement.
KEY = ("probe", "metric", "experiment", "attribute", "group", "concept", "target", "k")


@dataclass(frozen=True)
class Published:
    """One printed figure. `value` is on the scale of results: shares, not per cent."""

    source: str
    table: str
    model: str  # "" for a figure of data alone
    dataset: str
    probe: str
    metric: str
    value: float
    printed: float
    experiment: str | None = None
    attribute: str | None = None
    group: str | None = None
    concept: str | None = None
    category: str | None = None
    target: str | None = None
    k: int | None = None
    convention: str | None = None
    words: str | None = None  # the list that a mean is over
    n: int | None = None
    change: bool = False  # in per cent of the model before
    note: str = ""


@cache
def published(source: str | None = None) -> tuple[Published, ...]:
    """All printed figures, or those of one source.

    >>> [one.value for one in published("berg2022")
    ...  if (one.table, one.model, one.metric) == ("2", "clip-vit-b16", "max_skew")]
    [0.233]
    """
    return tuple(one for name in SOURCES if source in (None, name) for one in _figures(name))


def beside(run: Run) -> list[dict[str, Any]]:
    """Rows of a run for which a paper prints a figure of the same model and data, with that figure.

    `published` and `measured` stand with the run's interval. Where conventions differ, or pictures
    are missing, the note says so: the two are then not the same quantity.
    """
    return [_row(one, row, meta) for one, at, meta in _found(run) for row in [_at(run, at)]]


def filled(run: Run) -> Run:
    """The run with its column `published`, where a figure of the same convention was printed."""
    values: list[float | None] = run.table["published"].to_pylist()
    for one, at, _ in _found(run):
        if values[at] is None and one.convention in (None, _at(run, at)["convention"]):
            values[at] = one.value
    column = run.table.schema.get_field_index("published")
    field = run.table.schema.field(column)
    table = run.table.set_column(column, field, pa.array(values, field.type))
    return Run(table, run.meta, run.instances, run.vectors)


def told(row: Mapping[str, Any]) -> str:
    """`max_skew@1000 by gender (berg2022, Table 2): published .233, measured .231`, and so on."""
    what = row["metric"] + (f"@{row['k']}" if row["k"] else "")
    of = [row[name] for name in ("group", "concept", "target") if row[name]]
    what += (f" by {row['attribute']}" if row["attribute"] else "") + "".join(f", {x}" for x in of)
    text = f"{what} ({row['source']}, Table {row['table']}): "
    text += f"published {_short(row['published'])}, measured {_short(row['measured'])}"
    if row["ci_low"] is not None:
        text += f" ({_short(row['ci_low'])}…{_short(row['ci_high'])})"
    return text + (f"; {row['note']}" if row["note"] else "")


def _short(value: float | None) -> str:
    """.233, as tables print it."""
    if value is None:
        return "undefined"
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def _read(name: str) -> dict[str, Any]:
    import yaml

    file = resources.files(__package__).joinpath(f"{name}.yaml")
    content: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return content


def _figures(name: str) -> Iterator[Published]:
    content = _read(name)
    measures: dict[str, dict[str, Any]] = content["measures"]

    def figure(measure: str, printed: float, table: Mapping[str, Any], **more: Any) -> Published:
        fields = dict(measures[measure])
        percent = fields.pop("unit", None) == "percent" and not table.get("change")
        return Published(
            source=name,
            table=table["table"],
            value=printed / 100 if percent else float(printed),
            printed=float(printed),
            change=bool(table.get("change")),
            note=" ".join(table.get("note", "").split()),
            **{**fields, **more},
        )

    for table in content.get("tables", ()):  # a row a model
        for model, values in table["rows"].items():
            groups = table.get("groups", [None] * len(values))
            columns = table["measures"] * (len(values) if "groups" in table else 1)
            for measure, group, value in zip(columns, groups, values, strict=True):
                yield figure(measure, value, table, model=model, group=group)
    for table in content.get("tops", ()):  # a row a category: a word and its value for each group
        for category, cells in table["rows"].items():
            for group, (word, value) in zip(table["groups"], cells, strict=True):
                yield figure(table["measure"], value, table, model=table["model"], group=group,
                             concept=word, category=category)  # fmt: skip
    for table in content.get("captions", ()):  # a row a word: a share for each group, and n
        for word, (*values, n) in table["rows"].items():
            for group, value in zip(table["groups"], values, strict=True):
                yield figure(table["measure"], value, table, model=table["model"], group=group,
                             concept=word, n=n)  # fmt: skip


@cache
def _aliases() -> dict[tuple[str, str], tuple[str, ...]]:
    return {
        (name, model): tuple(alias.lower() for alias in aliases)
        for name in SOURCES
        for model, aliases in _read(name)["models"].items()
    }


def _is_called(meta: Mapping[str, Any], aliases: tuple[str, ...]) -> bool:
    """Whether a model's name, or the end of its spec, is one that the figure's model goes by."""
    model = meta.get("model", {})
    spec = str(model.get("spec") or "").partition("?")[0].partition(":")[2]
    names = [str(one or "").lower().rstrip("/") for one in (model.get("name"), spec)]
    return any(one == alias or one.endswith(f"/{alias}") for one in names for alias in aliases)


def _found(run: Run) -> Iterator[tuple[Published, int, Mapping[str, Any]]]:
    """Printed figures that the run has too: the row, and the record of the audit it is of."""
    for meta in run.meta.get("panel", [run.meta]):
        for one in published():
            mine = not one.model or _is_called(meta, _aliases().get((one.source, one.model), ()))
            if one.change or not mine or not _same_words(one, meta):
                continue
            name = meta.get("model", {}).get("name") if one.model else None
            at = _index(run, one, name)
            if at is not None:
                yield one, at, meta


def _same_words(one: Published, meta: Mapping[str, Any]) -> bool:
    if one.words is None:
        return True
    given = meta.get("arguments", {}).get("given", {})
    return (given.get("words") or "berg") == one.words and given.get("templates") is None


def _index(run: Run, one: Published, model: str | None) -> int | None:
    table = run.table
    wanted: dict[str, Any] = {name: getattr(one, name) for name in KEY}
    wanted |= {"factor": None, **({} if model is None else {"model": model})}
    if one.concept is None:
        wanted["template"] = None
        if one.target is None:
            wanted["category"] = None
    keep = pc.starts_with(pc.fill_null(pc.utf8_lower(table["dataset"]), ""), one.dataset)
    for name, value in wanted.items():
        column = table[name]
        same = pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
        keep = pc.and_(keep, same)
    at = pc.indices_nonzero(keep.combine_chunks())
    return int(at[0].as_py()) if len(at) else None


def _at(run: Run, at: int) -> dict[str, Any]:
    row: dict[str, Any] = run.table.slice(at, 1).to_pylist()[0]
    return row


def _row(one: Published, row: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    notes = []
    if one.convention and one.convention != row["convention"]:
        notes.append(f"published under {one.convention}, measured under {row['convention']}")
    data = meta.get("data", {}).get("faces", {})
    listed = data.get("found", {}).get("rows")
    if listed and row["dataset"] == data.get("name") and data.get("images", listed) < listed:
        notes.append(f"measured on {data['images']:,} of {listed:,} images")
    return {
        "source": one.source,
        "table": one.table,
        **{name: row[name] for name in ("model", "dataset", *KEY)},
        "published": one.value,
        "measured": row["value"],
        "ci_low": row["ci_low"],
        "ci_high": row["ci_high"],
        "convention": row["convention"],
        "note": "; ".join(notes) or None,
    }
