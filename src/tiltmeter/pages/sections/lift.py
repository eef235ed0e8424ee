"""How many times as high the model scores words with one group as with the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

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
from tiltmeter.pages.plots import charts, scatter
from tiltmeter.pages.verdict import AttributeWords, attribute_words
from tiltmeter.results import Run

LEAD = (
    "Lift is how many times as high the model scores a word with one group as with the others, "
    "compared with neutral words of the same kind. A word is associated with a group if its lift "
    "is beyond that of neutral words and significantly above 1.25x. Intervals cover the sample of "
    "images only."
)
SHOWN = 8  # words of a plot
TOLERANCE = 0.10  # nats that are worth more or less than a nat by this share are a warning
P, IMAGES = Column("p", "p", "p"), Column("images", "n_group", "count")


def section(run: Run, probe: str) -> Section:
    """The section of the probe `lift`."""
    rows = run.where(probe=probe)
    classes = lift_classes(rows)
    judged = [one for one in classes if one.words]
    seen, worth, scales, curve, matched = (
        [row for row in rows if row["metric"] == metric]
        for metric in ("visibility", "nat_worth", "logit_scale", "reliability", "matched_logit")
    )
    return Section(
        probe,
        "Words and groups",
        LEAD,
        [finding(one) for one in classes],
        [*(_words(one) for one in attribute_words(rows) if one.judged),
         *([_reliability(curve)] if curve else [])],
        [
            *(table for one in judged for table in _tables(one)),
            table_of("lift-spreads", "Lift in spreads of neutral words: the model states no scale",
                     [row for row in rows if row["metric"] == "lift_spreads"],
                     ("experiment", "class"), "attribute", ("concept", "word"), "group", digits=1,
                     kind="signed", folded=True),
            table_of("lift-visibility", "How well the model sees each group (1: fully)", seen,
                     "attribute", "group", digits=2, folded=True),
            table_of("lift-worth", "What one nat of score is worth as evidence of the group "
                     "(1: a nat)", worth, "attribute", digits=2, folded=True),
            table_of("lift-matched", "How much higher matching texts score than others (nats)",
                     matched, ("experiment", "texts"), "attribute", digits=2, folded=True),
            table_of("lift-scale", "Scale of the scores", scales, ("experiment", "scale"),
                     ("dataset", "captions"), digits=2, folded=True),
            table_of("lift-reliability", "How often a caption finds its image (value), by how sure "
                     "the model is (ideal)", curve, ("experiment", "scale"), ("k", "bin"),
                     digits=2, folded=True),
        ],
        [*(chance(one) for one in classes if not one.words), *_warnings(scales, worth)],
        dict(Counter(row["verdict"] for one in judged for row in one.words)),
    )  # fmt: skip


def _warnings(scales: Sequence[Row], worth: Sequence[Row]) -> list[str]:
    """A scale that does not fit its captions; nats that are worth more or less than a nat."""
    said = [f"Scale: {row['note']}." for row in scales if row["note"] and row["value"] is not None]
    beyond = [f"{row['value']:.2g} by {row['attribute']}" for row in worth
              if row["value"] is not None and abs(row["value"] - 1) > TOLERANCE]  # fmt: skip
    if beyond:
        said.append(
            "Scores are not calibrated on these images: a difference of one nat between the texts "
            f"of groups is worth {text.listed(beyond)} as evidence of the group (1: "
            "calibrated). Read lift as a ratio of scores, not of likelihoods."
        )
    return said


def _reliability(curve: Sequence[Row]) -> Plot:
    """How often a caption finds its image where the model is this sure, on each scale."""
    points = [{"x": row["ideal"], "y": row["value"], "kind": f"{row['experiment']} scale"}
              for row in curve]  # fmt: skip
    says = "; ".join(f"{one['kind']}: {text.number(one['x'])} sure, {text.number(one['y'])} right"
                     for one in points)  # fmt: skip
    return Plot(
        "lift-reliability-curve",
        "Does the scale say how sure the model is?",
        "Captions in ten bins by the probability of the image that the model ranks first. On the "
        "dashed line, the model is right as often as it is sure. Below it, the scale is too large.",
        f"{says}.",
        partial(scatter.scatter, points, "probability of the first image",
                "share of captions that find theirs", axes=False, diagonal=(0.0, 1.0)),
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
        f"Largest lifts by {found.name}",
        f"Mark: how many {axis}. Line: 95% interval, images only. Grey band: 95% of {neutral}; "
        f"by chance, one word in 20 is outside.{planted}",
        shown,
        labels,
        axis,
        says=f"{len(shown)} words, {axis}: ",
        most=40, kinds=True, ratios=True, groups=(group, other) if two else None,
    )  # fmt: skip
