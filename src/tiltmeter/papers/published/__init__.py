"""Values that papers print, as data, shown only for a run of the same model, data and choices.

One YAML file a source, its tables as printed; a note says where a paper contradicts itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from importlib import resources
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tiltmeter.metrics.convention import CHOICES, get_convention
from tiltmeter.results import Run
from tiltmeter.stimuli import DEFAULT

SOURCES = ("berg2022", "sobit2024", "sem", "zhou2022", "ghate2025", "zhang2022", "fraser2024")
#: What a row must share with a printed value to be the same measurement.
KEY = ("probe", "metric", "experiment", "attribute", "group", "concept", "target", "k")


@dataclass(frozen=True)
class Published:
    """One printed value. `value` is on the scale of results: shares, not per cent."""

    source: str
    table: str
    model: str  # "" for a value of data alone
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
    template: str | None = None
    k: int | None = None
    convention: str | None = None
    words: tuple[str, ...] = ()  # the lists that its words are from
    n: int | None = None
    change: bool = False  # printed as a change in per cent of the model before
    note: str = ""


@cache
def published(source: str | None = None) -> tuple[Published, ...]:
    """All printed values, or those of one source.

    >>> [one.value for one in published("berg2022")
    ...  if (one.table, one.model, one.metric) == ("2", "clip-vit-b16", "max_skew")]
    [0.233]
    """
    return tuple(one for name in SOURCES if source in (None, name) for one in _entries(name))


def published_rows(run: Run) -> list[dict[str, Any]]:
    """Rows of a run for which a paper prints a value: `published`, `measured` and the interval.

    Model, dataset (all images of it), words and convention must be the paper's: otherwise the two
    are not the same quantity, and nothing is shown.
    """
    return [_row(one, row) for one, _, row in _found(run)]


def with_published(run: Run) -> Run:
    """The run with its column `published`, where a value of the same measurement was printed."""
    values: list[float | None] = [None] * len(run.table)
    for one, at, _ in _found(run):
        if values[at] is None:
            values[at] = one.value
    if values == run.table["published"].to_pylist():
        return run
    column = run.table.schema.get_field_index("published")
    field = run.table.schema.field(column)
    table = run.table.set_column(column, field, pa.array(values, field.type))
    return Run(table, run.meta, run.instances, run.vectors)


def describe(row: Mapping[str, Any]) -> str:
    """`max_skew@1000 by gender (berg2022, Table 2): published .233, measured .231`, and so on."""
    what = row["metric"] + (f"@{row['k']}" if row["k"] else "")
    of = [row[name] for name in ("group", "concept", "target") if row[name]]
    what += (f" by {row['attribute']}" if row["attribute"] else "") + "".join(f", {x}" for x in of)
    text = f"{what} ({row['source']}, Table {row['table']}): "
    text += f"published {_short(row['published'])}, measured {_short(row['measured'])}"
    if row["ci_low"] is not None:
        text += f" ({_short(row['ci_low'])}…{_short(row['ci_high'])})"
    return text


def _short(value: float | None) -> str:
    """.233, as tables print it."""
    if value is None:
        return "undefined"
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


@cache
def _read(name: str) -> Mapping[str, Any]:
    import yaml

    file = resources.files(__package__).joinpath(f"{name}.yaml")
    # the same loader in C, where there is one, takes a tenth of the time
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content: Mapping[str, Any] = yaml.load(file.read_text(encoding="utf-8"), loader)
    return content


def _entries(name: str) -> Iterator[Published]:
    content = _read(name)
    measures: dict[str, dict[str, Any]] = content["measures"]

    def entry(measure: str, printed: float, table: Mapping[str, Any], **more: Any) -> Published:
        fields = dict(measures[measure])
        percent = fields.pop("unit", None) == "percent"
        fields["words"] = tuple(fields.get("words", ()))
        return Published(
            source=name,
            table=table["table"],
            value=_after(content, table, measure, printed)
            if table.get("change")
            else printed / 100
            if percent
            else float(printed),
            printed=float(printed),
            change=bool(table.get("change")),
            note=" ".join(table.get("note", "").split()),
            **{**fields, **more},
        )

    for table in content.get("tables", ()):  # one row per model
        for model, values in table["rows"].items():
            groups = table.get("groups", [None] * len(values))
            columns = table["measures"] * (len(values) if "groups" in table else 1)
            about = {name: table[name] for name in ("target", "template") if name in table}
            for measure, group, value in zip(columns, groups, values, strict=True):
                yield entry(measure, value, table, model=model, group=group, **about)
    for table in content.get(
        "tops", ()
    ):  # one row per category: a word and its value for each group
        for category, cells in table["rows"].items():
            for group, (word, value) in zip(table["groups"], cells, strict=True):
                yield entry(table["measure"], value, table, model=table["model"], group=group,
                             concept=word, category=category)  # fmt: skip
    for table in content.get("captions", ()):  # one row per word: a share for each group, and n
        for word, (*values, n) in table["rows"].items():
            for group, value in zip(table["groups"], values, strict=True):
                yield entry(table["measure"], value, table, model=table["model"], group=group,
                             concept=word, n=n)  # fmt: skip
    for table in content.get("categories", ()):  # one row per model: a score for each category
        for model, scores in table["rows"].items():
            for measure, values in scores.items():
                for category, value in zip(table["categories"], values, strict=True):
                    yield entry(measure, value, table, model=model, category=category)
    for one in content.get("values", ()):
        fields = {name: one[name] for name in ("experiment", "group") if name in one}
        yield entry(one["measure"], one["value"], one, model=one["model"], **fields)


def _after(
    content: Mapping[str, Any], table: Mapping[str, Any], measure: str, change: float
) -> float:
    """The value that a printed change gives: the baseline is in another part of the same table."""
    [baseline] = [
        values[part["measures"].index(measure)]
        for part in content["tables"]
        if part["table"] == table["table"] and not part.get("change")
        for values in part["rows"].values()
    ]
    return float(baseline * (1 + change / 100))


@cache
def _models(source: str) -> dict[str, Any]:
    """Models of a source: aliases of a plain one, or how a corrected one was made."""
    found: dict[str, Any] = _read(source)["models"]
    return found


@cache
def _sizes() -> dict[tuple[str, str], tuple[int, int]]:
    """How many images (or captions) a source's dataset has: the fewest and the most."""
    return {
        (name, dataset): (least, most)
        for name in SOURCES
        for dataset, (least, most) in _read(name)["datasets"].items()
    }


def _found(run: Run) -> Iterator[tuple[Published, int, Mapping[str, Any]]]:
    """Printed values of measurements that the run made too: where its row is, and the row."""
    for meta in run.meta.get("panel", [run.meta]):
        for one in published():
            if not (_same_model(one, meta) and _same_texts(one, meta)):
                continue
            at = _index(run, one, _same_data(one, meta), meta)
            if at is not None and _same_convention(one, row := _at(run, at), meta):
                yield one, at, row


def _same_model(one: Published, meta: Mapping[str, Any]) -> bool:
    """By the name that it was loaded by: the name of a folder says nothing about its weights.

    A corrected model is found by the model under it, whose spec it has, and how it was corrected.
    """
    if not one.model:
        return True
    model, models = meta.get("model", {}), _models(one.source)
    known, debiaser = models.get(one.model, ()), model.get("debiaser")
    if not isinstance(known, Mapping):
        return debiaser is None and _named(model, known)
    return (
        debiaser is not None
        and _named(model, models[known["of"]])
        and _same_correction(debiaser, known)
    )


def _named(model: Mapping[str, Any], aliases: Sequence[str]) -> bool:
    name = str(model.get("spec") or "").partition("?")[0].partition(":")[2].lower()
    # released files are known by their own names, wherever they are
    files = [alias.lower() for alias in aliases if alias.endswith((".pt", ".tar"))]
    return name in [alias.lower() for alias in aliases] or name.rpartition("/")[2] in files


def _same_correction(debiaser: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    settings = debiaser.get("settings", {})
    fitted = known.get("fitted", "fairface-train")  # null: nothing was learned from the images
    same = debiaser.get("method") == known["method"] and all(
        settings.get(name) in (value if isinstance(value, list) else [value])
        for name, value in known["settings"].items()
    )
    on = (debiaser.get("fitted") or {}).get("data")
    return same and (fitted is None or (on, debiaser.get("attribute")) == (fitted, "gender"))


def _same_data(one: Published, meta: Mapping[str, Any]) -> str | None:
    """The name of the run's dataset, where it is the one measured, and whole."""
    least, most = _sizes()[one.source, one.dataset]
    for data in meta.get("data", {}).values():
        name = str(data.get("name", ""))
        count = data.get("images", data.get("captions", 0))
        # a corpus of several files is named after the first: "laion-400m and 31 more files"
        if name.partition(" and ")[0].lower() == one.dataset and least <= count <= most:
            return name
    return None


def _same_texts(one: Published, meta: Mapping[str, Any]) -> bool:
    given = meta.get("arguments", {}).get("given")
    if one.probe == "harms":
        return given is not None and given.get("classes") in (None, "harms")
    if not one.words:
        return True
    if given is None or given.get("templates") is not None:
        return False
    return set((given.get("words") or DEFAULT).split("+")) <= set(one.words)


def _same_convention(one: Published, row: Mapping[str, Any], meta: Mapping[str, Any]) -> bool:
    """Names do not suffice: choices of a user, or of an earlier release, may bear the same one."""
    if row["convention"] is None:
        return one.convention is None
    used = meta.get("convention") or {}
    if one.convention is None:  # cosines of all images, whatever is counted in the top k
        return (used.get("balance"), used.get("images")) == ("asis", "unit")
    theirs = get_convention(one.convention).on(one.dataset, ("gender",))
    same = all(used.get(name) == getattr(theirs, name) for name in CHOICES)
    return same and row["convention"] == theirs.name


def _index(run: Run, one: Published, dataset: str | None, meta: Mapping[str, Any]) -> int | None:
    if dataset is None:
        return None
    table = run.table
    wanted: dict[str, Any] = {name: getattr(one, name) for name in KEY}
    wanted |= {"factor": None, "dataset": dataset}
    if one.model:
        wanted["model"] = meta["model"].get("name")
    if one.concept is None:
        wanted["template"] = one.template
        if one.target is None:
            wanted["category"] = one.category
    same = [
        pc.is_null(table[name]) if value is None else pc.equal(table[name], value)
        for name, value in wanted.items()
    ]
    at = pc.indices_nonzero(pc.fill_null(reduce(pc.and_, same), False).combine_chunks())
    return int(at[0].as_py()) if len(at) else None


def _at(run: Run, at: int) -> dict[str, Any]:
    row: dict[str, Any] = run.table.slice(at, 1).to_pylist()[0]
    return row


def _row(one: Published, row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "source": one.source,
        "table": one.table,
        **{name: row[name] for name in ("model", "dataset", *KEY)},
        "published": one.value,
        "measured": row["value"],
        "ci_low": row["ci_low"],
        "ci_high": row["ci_high"],
        "convention": row["convention"],
    }
