"""Embedding association tests: WEAT, SEAT, iEAT and SC-EAT."""

from __future__ import annotations

import re

from markupsafe import Markup

from tiltmeter.pages import text
from tiltmeter.pages.model import Finding, Row, Section, table_of
from tiltmeter.pages.plots import charts
from tiltmeter.pages.selection import beats, by
from tiltmeter.results import Run

LEAD = (
    "Are targets X nearer to attributes A, and Y nearer to B? The effect d is the difference of "
    "mean associations over their spread: 0 without bias, at most 2 for sets of one size."
)
MOST = 30
AGAINST = " against "  # between the names of two sets
CHECKS = ("weat1", "weat2")  # flowers and instruments: no finding about people


def section(run: Run, probe: str) -> Section:
    """The section of the probes `eat`, `ieat` and `face_eat`."""
    rows = run.where(probe=probe)
    effects = [row for row in rows if row["metric"] == "weat"]
    drawn = sorted((r for r in effects if r["value"] is not None), key=lambda row: -row["value"])
    figures = [
        charts.line_plot(
            text.slug(probe, experiment),
            f"Effects: {text.short(experiment, 60)}",
            "Mark: the effect d. Line: 95% interval. Grey band: permuted targets.",
            mine[:MOST],
            [_name(row) for row in mine[:MOST]],
            "effect d",
            says="Effects: ", digits=2, signed=True, most=70,
        )
        for experiment, mine in by(drawn, "experiment").items()
    ]  # fmt: skip
    lead = [("experiment", "kind"), ("category", "test"), ("group", "X against Y"),
            ("target", "A against B")]  # fmt: skip
    if any(row["template"] for row in effects):
        lead.append(("template", "sentence"))
    tables = [table_of(text.slug(probe, "effects"), "Effects of every test", effects, *lead,
                       digits=2, kind="signed", folded=bool(figures))]  # fmt: skip
    if single := [row for row in rows if row["metric"] != "weat"]:
        single.sort(key=lambda row: -abs(row["value"] or 0.0))
        of = (("metric", "measure"), ("experiment", "kind"), ("concept", "word"),
              ("category", "test"), ("target", "A against B"))  # fmt: skip
        tables.append(table_of(text.slug(probe, "single"), "Single targets (SC-EAT)", single, *of,
                               digits=2, kind="signed", folded=True))  # fmt: skip
    what = {"ieat": "images", "face_eat": "words and faces"}.get(probe, "words")
    findings = [_finding(row) for row in effects if row["value"] is not None and beats(row)
                and row["category"] not in CHECKS]  # fmt: skip
    return Section(probe, f"Association tests of {what}", LEAD, findings, figures, tables)


def _name(row: Row) -> str:
    """The test, and its targets; or the sentence, where that is all that differs."""
    if row["template"]:
        return f"{row['template']}: {row['group']}"
    if not row["group"]:
        return str(row["category"])
    return f"{row['category']}: {AGAINST.join(_sets(row, 'group'))}"


def _sets(row: Row, column: str) -> list[str]:
    """The two sets that are compared; those of words are called male-names, or arts-7."""
    names = str(row[column] or "").split(AGAINST)
    if row["probe"] != "eat":
        return names
    return [re.sub(r"-\d+$", "", name).replace("-names", " names") for name in names]


def _finding(row: Row) -> Finding:
    targets, attributes = _sets(row, "group"), _sets(row, "target")
    sentence = Markup("An association test shows an effect")
    if len(targets) == len(attributes) == 2:
        near = attributes if row["value"] > 0 else attributes[::-1]
        names = (text.capitalized(targets[0]), near[0], targets[1], near[1])
        sentence = Markup("{} are nearer to {}, {} to {}").format(
            *(text.shown(name, 60) for name in names)
        )
    sentence = Markup("{} ({}, {}).").format(
        sentence, text.shown(row["category"], 80), text.shown(row["experiment"], 60)
    )
    numbers = text.estimate(row, "d =", 2, signed=True) + " stimuli"
    return Finding(sentence, numbers, None, abs(row["value"]), "effect size d")
