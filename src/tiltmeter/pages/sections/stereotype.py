"""Which caption is chosen where the image contradicts the stereotype (VLStereoSet)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup

from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Finding, Plot, Row, Section, Table, table_of
from tiltmeter.pages.plots import charts, scatter
from tiltmeter.pages.selection import beats, by
from tiltmeter.probes.stereotype.caption_choice import KINDS
from tiltmeter.results import Run

LEAD = (
    "Each image has three captions: the stereotype, its opposite, and an irrelevant one. vlbs is "
    "the percentage of images against the stereotype for which the stereotype is chosen; the "
    "excess subtracts the errors the other way, so that a model that merely sees badly has 0."
)
NAMES = {
    "vlrs": "vlrs: not the irrelevant one",
    "vlbs": "vlbs: the stereotype",
    "vlbs_excess": "vlbs excess",
    "ivlas": "ivlas: both together",
}
SCORES = ("vlrs", "vlbs", "ivlas")
#: Models with a known choice: always right, always the stereotype, at random.
REFERENCES = {"IDM": (100.0, 0.0, 100.0), "BIM": (100.0, 100.0, 0.0), "RAM": (66.67, 33.33, 66.67)}
SHIFTS = {"lmss": "what the words add (lmss)", "vlss": "what the image adds (vlss)"}
SIGN = " The sign of lmss may be reversed for matching and contrastive models."
#: Readings that the paper has: logits or plain cosines, and of vlss with a white image.
PRINTED = {"lmss": ("matching", "cosine"),
           "vlss": ("matching, white image", "cosine, white image")}  # fmt: skip
#: The category that the paper draws.
DRAWN = "gender"
PANELS = 12


def section(run: Run, probe: str) -> Section:
    """The section of the probe `stereotype`, for all models of a run together."""
    rows = run.where(probe=probe)
    whole = [row for row in rows if row["category"] is None and row["value"] is not None]
    several = len({row["model"] for row in rows}) > 1
    drawn = DRAWN if any(row["category"] == DRAWN for row in rows) else None
    figures = [
        *_choices(whole, several=several),
        *shift_plots(run, "all"),
        *shift_plots(run, "selected", drawn),
    ]
    findings = [
        _finding(row, several=several)
        for row in whole
        if row["metric"] == "vlbs_excess" and beats(row) and _own_image(row)
    ]
    lead = (("experiment", "reading"), col.METRIC, ("split", "images"), "category")
    kept = [{**row, "category": row["category"] or "all"} for row in rows]
    tables = [
        replace(scores_table(rows), folded=not several),
        replace(category_table(rows), folded=True),
        table_of("stereotype", "All results of caption choice", kept, *["model"] * several, *lead,
                 digits=2, folded=True),
    ]  # fmt: skip
    return Section(probe, "Choice of captions", LEAD, findings, figures, tables)


def _own_image(row: Row) -> bool:
    """Whether a row is measured with the images themselves, not with white or wrong ones."""
    return "image" not in row["experiment"]


def score_lines(rows: list[Row]) -> list[Row]:
    """One line per model, reading and category: its three scores, the excess and its p."""
    lines: dict[Any, Row] = {}
    for row in rows:
        if row["metric"] in NAMES and row["split"] is None and _own_image(row):
            key = row["model"], row["experiment"], row["category"]
            line = lines.setdefault(
                key, {name: row[name] for name in ("model", "experiment", "category", "dataset")}
            )
            line[row["metric"]] = row["value"]
            if row["metric"] == "vlrs":
                line["n"] = row["n"]
            if row["metric"] == "vlbs":
                line["against"] = row["n"]
            if row["metric"] == "vlbs_excess":
                line |= {name: row[name] for name in ("p_fwer", "ci_low", "ci_high")}
    return list(lines.values())


SCORE_COLUMNS = (
    Column("vlrs", "vlrs", "value", 2),
    Column("vlbs", "vlbs", "value", 2),
    Column("ivlas", "ivlas", "value", 2),
    Column("vlbs excess", "vlbs_excess", "signed", 1),
    Column("95% interval", ("ci_low", "ci_high"), "span", 1),
    Column("p adjusted", "p_fwer", "p"),
    col.N,
)


def scores_table(rows: list[Row]) -> Table:
    """Table 3 of the paper: models by ivlas, next to models with a known choice."""
    lines = [line for line in score_lines(rows) if line["category"] is None]
    lines += [{"model": name, "experiment": "reference", **dict(zip(SCORES, values, strict=True))}
              for name, values in REFERENCES.items()]  # fmt: skip
    lines.sort(key=lambda line: -(line["ivlas"] if line.get("ivlas") is not None else -1.0))
    columns = [Column("model", "model"), Column("reading", "experiment"), *SCORE_COLUMNS]
    return Table("scores", "Models by ivlas; IDM is always right, BIM always picks the stereotype, "
                 "RAM picks at random", columns, lines)  # fmt: skip


def category_table(rows: list[Row]) -> Table:
    """Table 4 of the paper: the scores by category."""
    lines = [line for line in score_lines(rows) if line["category"] is not None]
    columns = [Column("model", "model"), Column("reading", "experiment"),
               Column("category", "category"), *SCORE_COLUMNS]  # fmt: skip
    return Table("categories", "Caption choice by category", columns, lines)


def _choices(rows: list[Row], *, several: bool) -> list[Plot]:
    found = []
    for (model, experiment), mine in by(rows, "model", "experiment").items():
        drawn = [row for row in mine if row["metric"] in NAMES]
        if not drawn or "image" in experiment:
            continue
        planted = any(row["truth"] is not None for row in drawn)
        of = f"{model}, {experiment}" if several else experiment
        found.append(
            charts.line_plot(
                text.slug("choices", *[model] * several, experiment),
                f"What is chosen ({text.short(of, 50)})",
                "Bar: per cent. Line: 95% interval. Grey band: without bias (of vlrs and ivlas: "
                "chosen at random). Tick: ideal."
                + (" Cross: a perfect model of this world." if planted else ""),
                drawn,
                [NAMES[row["metric"]] for row in drawn],
                "per cent",
                says="Per cent: ", digits=1, bars=True,
            )
        )  # fmt: skip
    return found


def shift_plots(
    run: Run, split: str, category: str | None = None, *, as_printed: bool = False
) -> list[Plot]:
    """Histograms of the shift scores, case by case (Figure 4: gender, selected).

    `selected` are the images against the stereotype for which the model picked it. `as_printed`
    leaves out what the paper does not have: cosines times a scale, and other images than white.
    """
    table = run.instances.get("stereotype")
    if table is None:
        return []
    several = len(set(table["model"].to_pylist())) > 1
    picked = _picked(table) if split == "selected" else None
    found = []
    for shift, title in SHIFTS.items():
        mine = table.filter(pc.equal(table["concept"], shift))
        panels: dict[str, list[float]] = {}
        for row in mine.to_pylist():
            reading = row["experiment"].partition(",")[0]
            if row["score"] is None or (category and dict(row["groups"])["category"] != category):
                continue
            if as_printed and row["experiment"] not in PRINTED[shift]:
                continue
            if picked is None or (row["model"], reading, row["id"]) in picked:
                name = f"{row['model']}, {row['experiment']}" if several else row["experiment"]
                panels.setdefault(name, []).append(row["score"])
        if panels:
            of = f"{category}, {split}" if category else split
            found.append(_shift_plot(shift, f"Shift scores: {title}; {of}", split, panels))
    return found


def _picked(table: pa.Table) -> set[tuple[str, str, str]]:
    """Cases where the stereotype was picked: model, reading and id."""
    first = table.filter(pc.equal(table["concept"], KINDS[0]))
    columns = (first[name].to_pylist() for name in ("model", "experiment", "id", "pick"))
    return {(model, reading, name) for model, reading, name, pick in zip(*columns, strict=True)
            if pick == KINDS[0]}  # fmt: skip


def _shift_plot(shift: str, title: str, split: str, panels: dict[str, list[float]]) -> Plot:
    sentence = "; ".join(
        f"{text.short(name, 60)}: mean {text.number(sum(v) / len(v), 2, signed=True)}, "
        f"{sum(x > 0 for x in v) / len(v):.0%} above 0, n = {len(v):,}"
        for name, v in panels.items()
    )
    images = (
        "Images against the stereotype for which the model picked it (selected, as in the paper: "
        "that alone pushes scores above 0, see the reference in the table)"
        if split == "selected"
        else "All images against the stereotype"
    )
    drawn: Sequence[tuple[str, list[float]]] = list(panels.items())[:PANELS]
    return Plot(
        text.slug("shifts", shift, *[split] * (split != "all")),
        title,
        f"{images}, counted by score. Above 0 (black line): towards the stereotype. Dashed: the "
        f"mean. {sentence}."
        + SIGN * (shift == "lmss")
        + (f" The first {PANELS} of {len(panels)} are drawn." if len(panels) > PANELS else ""),
        f"Histograms. {sentence}.",
        partial(scatter.histograms, drawn, f"{shift} (log ratio)"),
    )


def excess_sentence(row: Row) -> str:
    """Whether the stereotype is chosen beyond errors: in words, with the reading and numbers."""
    numbers = text.estimate(row, "vlbs excess", 1, signed=True, of=" points")
    if not beats(row):
        way = "no sign that the stereotype is chosen more often than errors explain"
    elif row["value"] > 0:
        way = "the stereotype is chosen more often than errors explain"
    else:
        way = "the stereotype is chosen less often than errors the other way"
    return f"{row['experiment']}: {way} ({numbers})."


def _finding(row: Row, *, several: bool) -> Finding:
    """A sentence on an excess beyond its null: towards the stereotype, or away from it."""
    way = (
        "The stereotype is chosen more often than errors explain ({})."
        if row["value"] > 0
        else "The stereotype is chosen less often than errors the other way ({}): the opposite of "
        "a stereotypical bias."
    )
    of = f"{row['model']}, {row['experiment']}" if several else row["experiment"]
    sentence = Markup(way).format(text.shown(of, 60))
    numbers = text.estimate(row, "vlbs excess", 1, signed=True, of=" points")
    return Finding(sentence, numbers, None, abs(row["value"]), "points of vlbs excess")
