"""Charts with a line for each label: values with their bands, shares, heat maps, arrows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tiltmeter.pages import text
from tiltmeter.pages.model import Plot, Row
from tiltmeter.pages.plots.drawing import (
    ACCENT,
    BAND,
    GROUPS,
    HEAT,
    INK,
    MUTED,
    ON_GROUPS,
    PAPER,
    SOFT,
    WARM,
    WIDTH,
)
from tiltmeter.stats.placebo import ESTABLISHED, NOT_ESTABLISHED, PERMUTATION_ONLY

STEP = 24  # height of a line
#: Verdicts differ by shape too, not by colour alone.
KINDS = {
    text.VERDICTS[ESTABLISHED]: (ACCENT, "circle"),
    text.VERDICTS[PERMUTATION_ONLY]: (WARM, "diamond"),
    text.VERDICTS[NOT_ESTABLISHED]: (MUTED, "square"),
    "value": (ACCENT, "circle"),
    "before": (MUTED, "square"),
    "after": (ACCENT, "circle"),
}
#: Places among GROUPS.
CALLED = {"blue": 0, "orange": 1, "green": 2, "violet": 3, "red": 5, "yellow": 6, "grey": 7,
          "better": 0, "equivalent": 4, "worse": 5, "no evidence": 7}  # fmt: skip


def kind_of(row: Row) -> str:
    """Under which sign a row is drawn."""
    return text.VERDICTS.get(row.get("verdict") or "", "value")


def point(row: Row, label: str, **more: Any) -> Row:
    """What a chart needs of a row of results."""
    names = ("value", "ci_low", "ci_high", "null_lo", "null_hi", "null_mean", "ideal", "truth")
    return {"label": label, "kind": kind_of(row), **{n: row.get(n) for n in names}, **more}


def distinct(labels: Sequence[Any], most: int = text.IN_PLOT) -> list[str]:
    """Labels short enough for a chart, and still one for each line."""
    seen: dict[str, int] = {}
    found = []
    for one in labels:
        name = text.short(one, most) or "(empty)"
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def line_plot(
    name: str,
    title: str,
    caption: str,
    rows: Sequence[Row],
    labels: Sequence[Any],
    axis: str,
    *,
    says: str = "",
    digits: int = 3,
    signed: bool = False,
    most: int = text.IN_PLOT,
    kinds: bool = False,
    **options: Any,
) -> Plot:
    """A plot of `lines`, described by its labels and values (and `kinds`); `says` comes first."""
    points = [point(row, label) for row, label in zip(rows, distinct(labels, most), strict=True)]

    def value(one: Row) -> str:
        if options.get("format") == "%":
            return text.percent(one["value"])
        return text.number(one["value"], digits, signed=signed)

    told = "; ".join(
        f"{one['label']} {value(one)}" + (f", {one['kind']}" if kinds else "") for one in points
    )
    return Plot(name, title, caption, f"{says}{told}.", partial(lines, points, axis, **options))


def lines(
    points: Sequence[Row],
    title: str,
    *,
    bars: bool = False,
    domain: tuple[float, float] | None = None,
    step: int = STEP,
    format: str | None = None,
) -> Any:
    """One line a row: its value, interval, the band without tilt, and the planted truth."""
    import altair as alt

    labels = [one["label"] for one in points]
    scale = alt.Scale(zero=bars) if domain is None else alt.Scale(domain=domain)
    axis = alt.Axis(title=title, format=format) if format else alt.Axis(title=title)
    y = alt.Y("label:N", title=None, scale=alt.Scale(domain=labels), sort=None)
    base = alt.Chart(alt.InlineData(values=list(points))).encode(y=y)
    kinds = [name for name in KINDS if any(one["kind"] == name for one in points)]
    told = (
        None
        if kinds == ["value"]
        else alt.Legend(symbolStrokeWidth=0, columns=_columns(kinds, labels))
    )
    colour = alt.Color(
        "kind:N",
        scale=alt.Scale(domain=kinds, range=[KINDS[name][0] for name in kinds]),
        legend=told,
    )
    layers = []
    if any(one["null_lo"] is not None for one in points):
        layers.append(
            _some(points, "null_lo", y)
            .mark_bar(color=BAND, height=step - 7)
            .encode(x=alt.X("null_lo:Q", scale=scale, axis=axis), x2="null_hi:Q")
        )
    if bars:
        layers.append(
            base.mark_bar(height=step - 15, cornerRadiusEnd=2).encode(
                x=alt.X("value:Q", scale=scale, axis=axis), color=colour
            )
        )
    if any(one["ideal"] is not None for one in points):
        layers.append(
            _some(points, "ideal", y)
            .mark_tick(color=MUTED, thickness=1.5, height=step - 4)
            .encode(x="ideal:Q")
        )
    if any(one["ci_low"] is not None for one in points):
        layers.append(
            _some(points, "ci_low", y)
            .mark_rule(strokeWidth=2, color=INK)
            .encode(x=alt.X("ci_low:Q", scale=scale, axis=axis), x2="ci_high:Q")
        )
    if not bars:
        shape = alt.Shape(
            "kind:N",
            scale=alt.Scale(domain=kinds, range=[KINDS[name][1] for name in kinds]),
            legend=told,
        )
        layers.append(
            base.mark_point(filled=True, size=80, opacity=1, stroke=PAPER, strokeWidth=1).encode(
                x=alt.X("value:Q", scale=scale, axis=axis), color=colour, shape=shape
            )
        )
    if any(one["truth"] is not None for one in points):
        layers.append(
            _some(points, "truth", y)
            .mark_point(
                shape="M-1,-1L1,1M-1,1L1,-1", size=30, filled=False, strokeWidth=1.6, color=INK
            )
            .encode(x="truth:Q")
        )
    height = step * len(points)
    return alt.layer(*layers).properties(width=WIDTH - 12, height=height, autosize=fit())


def stacked(shares: Sequence[Row], groups: Sequence[str], title: str) -> Any:
    """One bar a line, filled by groups; the share is written where there is room."""
    import altair as alt

    labels = list(dict.fromkeys(one["label"] for one in shares))
    colours = group_colours(groups)
    on = [ON_GROUPS[GROUPS.index(one)] for one in colours]
    base = alt.Chart(alt.InlineData(values=list(shares))).encode(
        y=alt.Y("label:N", title=None, scale=alt.Scale(domain=labels), sort=None)
    )
    x = alt.X("from:Q", scale=alt.Scale(domain=[0, 1]),
              axis=alt.Axis(title=title, format="%"))  # fmt: skip
    bars = base.mark_bar(height=STEP - 6, stroke=PAPER, strokeWidth=1.5).encode(
        x=x,
        x2="to:Q",
        color=alt.Color(
            "group:N",
            scale=alt.Scale(domain=list(groups), range=colours),
            legend=alt.Legend(columns=_columns(groups, labels)),
        ),
    )
    written = (
        alt.Chart(alt.InlineData(values=[one for one in shares if one["text"]]))
        .mark_text(fontSize=11, baseline="middle")
        .encode(
            y=alt.Y("label:N", scale=alt.Scale(domain=labels), sort=None),
            x="middle:Q",
            text="text:N",
            stroke=alt.value(None),
            fill=alt.Fill("group:N", scale=alt.Scale(domain=list(groups), range=on), legend=None),
        )
    )
    chart = alt.layer(bars, written).resolve_scale(color="independent", fill="independent")
    return chart.properties(width=WIDTH - 12, height=STEP * len(labels), autosize=fit())


def group_colours(groups: Sequence[str]) -> list[str]:
    """A colour for each group; those of groups that are called after colours are not mixed up.

    >>> from tiltmeter.pages.plots.drawing import GROUPS
    >>> group_colours(["red", "blue"]) == [GROUPS[5], GROUPS[0]]
    True
    """
    if all(name.lower() in CALLED for name in groups):
        return [GROUPS[CALLED[name.lower()]] for name in groups]
    return GROUPS[: len(groups)]


def heat(cells: Sequence[Row], columns: Sequence[str], lines_: Sequence[str], most: float) -> Any:
    """A table of coloured cells: blue below 0, orange above; the number stands in the cell."""
    import altair as alt

    edges = [most * (at - 4.5) / 4.5 for at in range(1, 9)]
    values = [{**one, "at": sum(one["value"] > edge for edge in edges)} for one in cells]
    for one in values:
        one["fill"] = HEAT[one["at"]]
        one["ink"] = PAPER if one["at"] in (0, 8) else INK
    base = alt.Chart(alt.InlineData(values=values)).encode(
        x=alt.X("column:N", scale=alt.Scale(domain=list(columns)), sort=None,
                axis=alt.Axis(title=None, orient="top", labelAngle=-40, labelAlign="left",
                              grid=False)),
        y=alt.Y("line:N", scale=alt.Scale(domain=list(lines_)), sort=None, title=None),
    )  # fmt: skip
    cell = base.mark_rect(stroke=PAPER, strokeWidth=2).encode(
        fill=alt.Fill("fill:N", scale=None, legend=None)
    )
    said = base.mark_text(fontSize=10.5).encode(
        text="text:N", fill=alt.Fill("ink:N", scale=None, legend=None), stroke=alt.value(None)
    )
    return alt.layer(cell, said).properties(
        width=WIDTH - 12, height=26 * len(lines_), autosize=fit()
    )


def arrows(changes: Sequence[Row], title: str) -> Any:
    """From before to after, one line a row; what got worse is drawn in orange."""
    import altair as alt

    labels = [one["label"] for one in changes]
    y = alt.Y("label:N", title=None, scale=alt.Scale(domain=labels), sort=None)
    x = alt.X("before:Q", axis=alt.Axis(title=title), scale=alt.Scale(zero=False))
    colours = {"better": ACCENT, "worse": WARM, "equivalent": SOFT, "no evidence": MUTED}
    ways = [name for name in colours if any(one["way"] == name for one in changes)]
    colour = alt.Color(
        "way:N",
        scale=alt.Scale(domain=ways, range=[colours[name] for name in ways]),
        legend=alt.Legend(symbolType="stroke", symbolStrokeWidth=4),
    )
    values = [{**one, "turn": 90 if one["after"] > one["before"] else 270} for one in changes]
    base = alt.Chart(alt.InlineData(values=values)).encode(y=y)
    zero = alt.Chart(alt.InlineData(values=[{"zero": 0}]))
    heads = [
        base.transform_filter(f"datum.turn == {turn}")
        .mark_point(shape="triangle", angle=turn, size=70, filled=True, opacity=1)
        .encode(x="after:Q", color=colour)
        for turn in (90, 270)
        if any(one["turn"] == turn for one in values)
    ]
    return alt.layer(
        zero.mark_rule(color=MUTED, strokeWidth=1).encode(x="zero:Q"),
        base.mark_rule(strokeWidth=2.5).encode(x=x, x2="after:Q", color=colour),
        base.mark_point(shape="circle", size=40, filled=True, color=MUTED, opacity=1).encode(
            x="before:Q"
        ),
        *heads,
    ).properties(width=WIDTH - 12, height=STEP * len(changes), autosize=fit())


def _columns(names: Sequence[str], labels: Sequence[str]) -> int:
    """How many names of a legend stand side by side beyond the labels of the lines."""
    # about as wide as the renderer takes them; it allows much for signs that it has no font for
    wide = max((len(one) * (10 if _strange(one) else 7) for one in labels), default=0)
    return int(max(1, min(len(names), (WIDTH - 60 - wide) // (8 * max(map(len, names)) + 36))))


def _strange(label: str) -> bool:
    """Whether a label has signs beyond Latin letters and punctuation."""
    return any(ord(sign) > 0x2FF and not 0x2000 <= ord(sign) < 0x2070 for sign in label)


def _some(points: Sequence[Row], name: str, y: Any) -> Any:
    """A chart of the points that have something."""
    import altair as alt

    kept = [one for one in points if one[name] is not None]
    return alt.Chart(alt.InlineData(values=kept)).encode(y=y)


def fit() -> Any:
    """All figures are as wide, however long their labels."""
    import altair as alt

    return alt.AutoSizeParams(type="fit-x", contains="padding")
