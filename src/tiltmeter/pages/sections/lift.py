"""How many times as high the model scores words with one group as with the others."""

from __future__ import annotations

from collections import Counter

from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.columns import Head, columns_of
from tiltmeter.pages.lift_findings import (
    LiftClass,
    chance,
    finding,
    largest_words,
    lift_classes,
)
from tiltmeter.pages.model import Column, Plot, Row, Section, Table, table_of
from tiltmeter.pages.plots import charts
from tiltmeter.results import Run

LEAD = (
    "Lift is how many times as high the model scores a word with one group as with the others, "
    "compared with neutral words of the same kind. A word is associated with a group if its lift "
    "is beyond that of neutral words and significantly above 1.25x. Intervals cover the sample of "
    "images only."
)
SHOWN = 14  # words of a plot
WORD = (("concept", "word"), "group", "category")
RATIO = (
    Column("lift", "value", "ratio"),
    Column("95% interval", ("ci_low", "ci_high"), "ratios"),
    Column("95% of neutral words", ("null_lo", "null_hi"), "ratios"),
)


def section(run: Run, probe: str) -> Section:
    """The section of the probe `lift`."""
    rows = run.where(probe=probe)
    classes = lift_classes(rows)
    words = [{**row, "class": one.name} for one in classes for row in largest_words(one)]
    categories = [row for row in rows if row["metric"] == "lift" and row["category"]
                  and not row["concept"]]  # fmt: skip
    seen = [row for row in rows if row["metric"] == "visibility"]
    planted = [Column("planted", "truth", "ratio")] * any(row["truth"] is not None for row in words)
    return Section(
        probe,
        "Lift",
        LEAD,
        [finding(one) for one in classes],
        [_words(one) for one in classes if one.words],
        [
            _table("lift-words", "Every word, with the group it is judged by", words,
                   ("class", "by"), *WORD, *RATIO, *planted,
                   Column("verdict", "verdict", "verdict"), Column("p", "p", "p"),
                   Column("q", "p_bh", "p"), col.P_NEUTRAL,
                   Column("images", "n_group", "count")),
            _table("lift-categories", "Categories of words: mean lift", categories,
                   ("experiment", "class"), "attribute", "category", "group", RATIO[0],
                   Column("p", "p", "p"), Column("images", "n_group", "count")),
            table_of("lift-visibility", "How well the model sees each group (1: fully)", seen,
                     "attribute", "group", digits=2, folded=True),
        ],
        [chance(one) for one in classes],
        dict(Counter(row["verdict"] for row in words)),
    )  # fmt: skip


def _table(name: str, caption: str, rows: list[Row], *columns: Head) -> Table:
    return Table(name, caption, columns_of(columns), rows, folded=True)


def _words(found: LiftClass) -> Plot:
    """The words with the largest lift, beside the range of neutral words."""
    shown = largest_words(found, SHOWN)
    two = len(found.groups) == 2
    labels = [row["concept"] if two else f"{row['concept']} · {row['group']}" for row in shown]
    against = (
        f"with {text.short(found.groups[0])} as with {text.short(found.groups[1])}"
        if two
        else "with the group as with the others"
    )
    planted = " Cross: planted." if any(row["truth"] is not None for row in shown) else ""
    return charts.line_plot(
        text.slug("lift", found.attribute, found.experiment),
        f"Words with the largest lift, by {found.name}",
        f"Mark: how many times as high the model scores the word {against}, on a logarithmic "
        f"axis. Line: 95% interval, images only. Grey band: 95% of {found.reference}.{planted}",
        shown,
        labels,
        f"times as {'likely' if found.likely else 'high'} {against}",
        says=f"{len(shown)} words {against}: ",
        most=40, kinds=True, ratios=True,
    )  # fmt: skip
