"""How many times as high the model scores words with one group as with the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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
from tiltmeter.pages.verdict import AttributeWords, attribute_words
from tiltmeter.results import Run

LEAD = (
    "Lift is how many times as high the model scores a word with one group as with the others, "
    "compared with neutral words of the same kind. A word is associated with a group if its lift "
    "is beyond that of neutral words and significantly above 1.25x. Intervals cover the sample of "
    "images only."
)
SHOWN = 10  # words of a plot
P, IMAGES = Column("p", "p", "p"), Column("images", "n_group", "count")


def section(run: Run, probe: str) -> Section:
    """The section of the probe `lift`."""
    rows = run.where(probe=probe)
    classes = lift_classes(rows)
    judged = [one for one in classes if one.words]
    seen = [row for row in rows if row["metric"] == "visibility"]
    return Section(
        probe,
        "Words and groups",
        LEAD,
        [finding(one) for one in classes],
        [_words(one) for one in attribute_words(rows) if one.judged],
        [
            *(table for one in judged for table in _tables(one)),
            table_of("lift-spreads", "Lift in spreads of neutral words: the model states no scale",
                     [row for row in rows if row["metric"] == "lift_spreads"],
                     ("experiment", "class"), "attribute", ("concept", "word"), "group", digits=1,
                     kind="signed", folded=True),
            table_of("lift-visibility", "How well the model sees each group (1: fully)", seen,
                     "attribute", "group", digits=2, folded=True),
        ],
        [chance(one) for one in classes if not one.words],
        dict(Counter(row["verdict"] for one in judged for row in one.words)),
    )  # fmt: skip


def _tables(found: LiftClass) -> list[Table]:
    """Every word with the group it is judged by; categories of words."""
    words: tuple[Head, ...] = (("concept", "word"), "group", "category", *found.columns,
             Column("verdict", "verdict", "verdict"), P, Column("q", "p_bh", "p"), col.P_NEUTRAL,
             IMAGES, "note")  # fmt: skip
    categories = ("category", "group", found.columns[0], P, IMAGES)
    listed: list[tuple[str, str, Sequence[Head], list[Row]]] = [
        ("words", f"Words by {found.name}", words, largest_words(found)),
        ("categories", f"Mean lift of categories by {found.name}", categories, found.categories),
    ]
    return [
        Table(text.slug("lift", kind, found.attribute, found.experiment), caption,
              columns_of(columns), rows, folded=True)
        for kind, caption, columns, rows in listed
        if rows
    ]  # fmt: skip


def _words(found: AttributeWords) -> Plot:
    """The words with the largest lift, beside the range of neutral words."""
    listed = found.largest()[:SHOWN]
    shown = [row for _, row in listed]
    kinds = [one for one, _ in listed]
    two = all(len(one.groups) == 2 for one in kinds)
    labels = [
        row["concept"] if two else f"{row['concept']} · {text.group(row['group'], row['n_group'])}"
        for row in shown
    ]
    group, other = (text.short(name) for name in (*kinds[0].groups, "")[:2])
    against = f"with {group} as with {other}" if two else "with the group as with the others"
    axis = f"times as {'likely' if kinds[0].likely else 'high'} {against}"
    planted = " Cross: planted." if any(row["truth"] is not None for row in shown) else ""
    neutral = text.listed(list(dict.fromkeys(one.reference for one in kinds)))
    return charts.line_plot(
        text.slug("lift", found.attribute, found.model),
        f"Largest associations by {found.name}",
        f"Mark: how many {axis}. Line: 95% interval, images only. Grey band: 95% of "
        f"{neutral}.{planted}",
        shown,
        labels,
        axis,
        says=f"{len(shown)} words, {axis}: ",
        most=40, kinds=True, ratios=True,
    )  # fmt: skip
