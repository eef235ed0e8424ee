"""Embedding association tests: WEAT, SEAT, iEAT and SC-EAT."""

from __future__ import annotations

from functools import partial

from markupsafe import Markup

from tiltmeter.pages import text
from tiltmeter.pages.parts import Finding, Plot, Row, Section, beats, by, slug
from tiltmeter.pages.plots import charts
from tiltmeter.pages.tables import table_of
from tiltmeter.results import Run

LEAD = (
    "Are targets X nearer to attributes A, and Y nearer to B? The effect d is the difference of "
    "mean associations over their spread: 0 without tilt, at most 2 for sets of one size."
)
MOST = 30
AGAINST = " against "  # between the names of two sets


def section(run: Run, probe: str) -> Section:
    """The section of the probes `eat` and `ieat`."""
    rows = run.where(probe=probe)
    effects = [row for row in rows if row["metric"] == "weat"]
    drawn = [row for row in effects if row["value"] is not None]
    figures = [_effects(probe, name, mine) for name, mine in by(drawn, "experiment").items()]
    findings = [_finding(row) for row in drawn if beats(row)]
    lead = (("experiment", "kind"), ("category", "test"), ("group", "X against Y"),
            ("target", "A against B"))  # fmt: skip
    tables = [table_of(slug(probe, "effects"), "Effects of every test", effects, *lead, digits=2,
                       kind="signed")]  # fmt: skip
    if single := [row for row in rows if row["metric"] != "weat"]:
        single.sort(key=lambda row: -abs(row["value"] or 0.0))
        of = (("metric", "measure"), ("experiment", "kind"), ("concept", "word"),
              ("category", "test"), ("target", "A against B"))  # fmt: skip
        tables.append(table_of(slug(probe, "single"), "Single targets (SC-EAT)", single, *of,
                               digits=2, kind="signed", folded=True))  # fmt: skip
    what = "pictures" if probe == "ieat" else "words"
    return Section(probe, f"Association tests of {what}", LEAD, findings, figures, tables)


def _effects(probe: str, experiment: str, rows: list[Row]) -> Plot:
    rows = sorted(rows, key=lambda row: -row["value"])[:MOST]
    labels = charts.distinct([_named(row) for row in rows], 44)
    points = [charts.point(row, label) for row, label in zip(rows, labels, strict=True)]
    said = "; ".join(f"{p['label']} {text.number(p['value'], 2, signed=True)}" for p in points)
    return Plot(
        slug(probe, experiment),
        f"Effects: {text.short(experiment, 60)}",
        "Mark: the effect d. Line: 95% interval. Grey band: targets dealt out at random.",
        f"Effects: {said}.",
        partial(charts.lines, points, "effect d"),
    )


def _named(row: Row) -> str:
    """The test, and its targets."""
    return f"{row['category']}: {row['group']}" if row["group"] else str(row["category"])


def _finding(row: Row) -> Finding:
    x, _, y = str(row["group"] or "").partition(AGAINST)
    a, _, b = str(row["target"] or "").partition(AGAINST)
    if y and b:
        near = (a, b) if row["value"] > 0 else (b, a)
        told = Markup("{} are nearer to {}, {} to {}").format(
            *(text.shown(name, 60) for name in (x, near[0], y, near[1]))
        )
    else:
        told = Markup("An association test shows an effect")
    said = Markup("{} ({}, {}).").format(
        told, text.shown(row["category"], 80), text.shown(row["experiment"], 60)
    )
    numbers = (
        f"d = {text.number(row['value'], 2, signed=True)}, 95% interval "
        f"{text.span(row['ci_low'], row['ci_high'], 2)}; without tilt "
        f"{text.span(row['null_lo'], row['null_hi'], 2)}; adjusted p "
        f"{text.p_value(row['p_fwer'])}; n = {text.count(row['n'])} stimuli"
    )
    return Finding(said, numbers, None, abs(row["value"]), "effect size d")
