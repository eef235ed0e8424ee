"""The captions a model learned from: which words occur with which groups, and in the model too."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from markupsafe import Markup

from tiltmeter.pages import text
from tiltmeter.pages.columns import Column
from tiltmeter.pages.model import Finding, Plot, Row, Section, Table, table_of
from tiltmeter.pages.plots import charts
from tiltmeter.pages.plots.drawing import INK
from tiltmeter.pages.selection import by
from tiltmeter.results import Run

LEAD = (
    "How many times as often words occur in captions that name one group as in captions that name "
    "the others, compared with neutral words. Only captions that name a single group count. This "
    "is about the texts."
)
WITH_MODEL = (
    "Slope: how much lift in the model rises per nat of lift in the captions. Ceiling: the slope "
    "of a model that mirrors these captions, but sees the group in the images only as well as "
    "this one does."
)
ENDS = 10
NAMED = 3
LARGEST = 20  # ratio that is shown
#: Of what captions say: a model that repeats less of it is no finding.
SMALLEST_SLOPE = 0.05
LABELS = {"slope": "slope", "ceiling": "ceiling", "slope_of_ceiling": "slope / ceiling",
          "spearman": "Spearman"}  # fmt: skip
COMPARED = tuple(LABELS)
AXES = {"noun": "nouns", "pronoun": "pronouns"}


def section(run: Run, probe: str) -> Section:
    """The section of an audit of captions."""
    rows = run.where(probe=probe)
    words = more_often(run)
    drawn = [row for mine in words.values() for row in mine[:ENDS]]
    plot = charts.line_plot(
        "captions",
        "Words that occur more often with a group in the captions",
        "Mark: lift in nats (0.69 is 2.0x as often). Line: 95% interval.",
        drawn,
        [f"{row['concept']}, {row['group']} ({times(row['value'])})" for row in drawn],
        "lift in captions (nats)",
        says="Lift: ", digits=2, signed=True,
    )  # fmt: skip
    compared = [row for row in rows if row["metric"] in COMPARED]
    pairs = _word_pairs(rows)
    figures, tables = [plot] * bool(drawn), []
    if compared:
        head = (("metric", "measure"), ("experiment", "group words"), "attribute", "group")
        tables.append(table_of("slopes", "Lift in the model against lift in captions", compared,
                               *head))  # fmt: skip
    if pairs:
        figures = [_scatter(pairs), *figures]
        tables.append(Table("word-pairs", "Word by word", (
            Column("word", "concept"), Column("group", "group"),
            Column("group words", "experiment"),
            Column("lift in captions", "captions", "signed", 2),
            Column("95% interval", ("ci_low", "ci_high"), "span", 2),
            Column("lift in the model", "model", "signed", 2),
        ), pairs, folded=True))  # fmt: skip
    of_words = [row for row in rows if row["metric"] not in (*COMPARED, "caption_lift",
                                                             "model_lift")]  # fmt: skip
    lead = (("metric", "measure"), ("experiment", "by"), ("concept", "word"), "group")
    if of_words:
        tables.append(table_of("caption-words", "Every word of the captions", of_words, *lead,
                               folded=True))  # fmt: skip
    findings = [found for one in _slopes(run) if (found := _slope_finding(one))]
    findings += [_finding(row) for mine in words.values() for row in mine[:NAMED]]
    parts = [LEAD] * bool(of_words) + [WITH_MODEL] * bool(compared)
    title = "Words in the captions" if of_words else "Captions and model"
    return Section(probe, title, " ".join(parts), findings, figures, tables, slope_sentences(run))


def slope_sentences(run: Run) -> list[str]:
    """One sentence for each slope, always with its interval and its ceiling; most words first."""
    return [": ".join(_said(one)) for one in _slopes(run)]


def _slopes(run: Run) -> list[dict[str, Row]]:
    """Rows of each comparison by metric; those of most words first."""
    names = ("model", "split", "attribute", "experiment", "group")
    rows = [row for row in run.where(probe="captions") if row["metric"] in COMPARED]
    found = [{row["metric"]: row for row in mine} for mine in by(rows, *names).values()]
    return sorted(found, key=lambda one: -(one["slope"]["n"] or 0))


def _said(measured: dict[str, Row]) -> tuple[str, str]:
    """What a slope is about, and its numbers."""
    slope = measured["slope"]
    about = [text.clean(slope[name]) for name in ("attribute", "group") if slope[name] is not None]
    about.append(f"named by {_axis(slope)}")
    if slope["value"] is None:
        return ", ".join(about), f"no slope; {slope['note']}."
    said = [f"{label} {_number(measured[metric])}" for metric, label in LABELS.items()
            if measured[metric]["value"] is not None]  # fmt: skip
    if measured["ceiling"]["value"] is None:
        said.insert(1, measured["ceiling"]["note"])
    return ", ".join(about), f"{'; '.join(said)}; {slope['n']:,} words."


def _slope_finding(measured: dict[str, Row]) -> Finding | None:
    """A slope that is surely larger than SMALLEST_SLOPE: a model without bias has a slope too."""
    slope = measured["slope"]
    if slope["ci_low"] is None or (
        slope["ci_low"] <= SMALLEST_SLOPE and (slope["ci_high"] >= -SMALLEST_SLOPE)
    ):
        return None
    about, numbers = _said(measured)
    repeats = "repeats what captions say" if slope["value"] > 0 else "reverses what captions say"
    return Finding(f"The model {repeats} ({about}).", numbers.rstrip("."), None, 1.0, "slope")


def more_often(run: Run) -> dict[str, list[Row]]:
    """Words that occur significantly more often with a group, by group, surest first.

    Groups are those named by nouns for gender, or else by the first kind of group words.
    """
    rows = [row for row in run.where(probe="captions", metric="lift") if row["value"] is not None]
    axes = dict.fromkeys(row["experiment"] for row in rows)
    axis = "noun" if "noun" in axes else next(iter(axes), None)
    sure = [row for row in rows if row["experiment"] == axis and row["ci_low"] > 0]
    sure.sort(key=lambda row: (-row["ci_low"], row["concept"]))
    distinct = {(row["group"], row["concept"]): row for row in reversed(sure)}
    return dict(sorted(by(reversed(distinct.values()), "group").items()))


def times(lift: float) -> str:
    """A lift as a ratio: 2.0x. Counts of captions do not tell large ratios apart."""
    return f"{math.exp(lift):.1f}x" if lift < math.log(LARGEST) else f">{LARGEST}x"


def _finding(row: Row) -> Finding:
    sentence = Markup("{} occurs {} as often with {} as with others.").format(
        text.shown(f"“{text.clean(row['concept'])}”", 60), times(row["value"]), row["group"]
    )
    interval = f"95% interval {times(row['ci_low'])} to {times(row['ci_high'])}"
    return Finding(sentence, f"{interval}; n = {row['n']:,} captions", None, row["ci_low"], "lift")


def _word_pairs(rows: list[Row]) -> list[Row]:
    """Words with their lift in captions and in the model."""

    def key(row: Row) -> Any:
        return tuple(row[name] for name in ("model", "split", "experiment", "group", "concept"))

    model = {key(row): row["value"] for row in rows if row["metric"] == "model_lift"}
    return [{**row, "captions": row["value"], "model": model[key(row)]}
            for row in rows if row["metric"] == "caption_lift"]  # fmt: skip


def _scatter(pairs: list[Row]) -> Plot:
    """Words of the comparison with the most words."""
    largest = max(by(pairs, "experiment", "group").values(), key=len)
    about = f"{largest[0]['group']}, named by {_axis(largest[0])}"
    points = [{"word": text.short(row["concept"]), "captions": row["captions"],
               "model": row["model"]} for row in largest]  # fmt: skip
    return Plot(
        "caption-scatter",
        f"Lift in captions and in the model: {about}",
        "One mark per word. Lift in nats; 0.69 is 2.0x.",
        f"{len(points)} words.",
        partial(_draw_scatter, points),
    )


def _draw_scatter(points: list[Row]) -> Any:
    mark = {"filled": True, "size": 50, "opacity": 0.7, "color": INK}
    layer = charts.chart_of(points).mark_point(**mark)
    titles = {"captions": "lift in captions (nats)", "model": "lift in the model (nats)"}
    import altair as alt

    return charts.sized(
        [layer.encode(
            x=alt.X("captions:Q", title=titles["captions"]),
            y=alt.Y("model:Q", title=titles["model"]),
            tooltip=["word:N", alt.Tooltip("captions:Q", format=".2f"),
                     alt.Tooltip("model:Q", format=".2f")])],
        320,
    )  # fmt: skip


def _axis(row: Row) -> str:
    """What names the group, and which scores: nouns (contrastive scores)."""
    scores, _, axis = row["experiment"].rpartition(": ")
    return AXES.get(axis, f"{axis} words") + (f" ({scores} scores)" if scores else "")


def _number(row: Row) -> str:
    """0.12 [0.05 to 0.16]."""
    value = text.number(row["value"], 2)
    return f"{value} [{text.span(row['ci_low'], row['ci_high'], 2)}]"
