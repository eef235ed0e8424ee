"""Charts with a line for each label: values with their bands, shares, heat maps, arrows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
    PADDING,
    PAPER,
    WARM,
    WIDTH,
)
from tiltmeter.stats.lift_verdict import ASSOCIATED, CANNOT_TELL, NO_LARGER

STEP = 24  # height of a line
ROOM = 40  # pixels of a bar that have room for a number
#: Verdicts differ by shape too, not by colour alone.
KINDS = {
    text.VERDICTS[ASSOCIATED]: (ACCENT, "circle"),
    text.VERDICTS[CANNOT_TELL]: (WARM, "diamond"),
    text.VERDICTS[NO_LARGER]: (MUTED, "square"),
    "value": (ACCENT, "circle"),
    "before": (MUTED, "square"),
    "after": (ACCENT, "circle"),
}
#: Places among GROUPS.
CALLED = {"blue": 0, "orange": 1, "green": 2, "violet": 3, "red": 5, "yellow": 6, "grey": 7,
          "better": 0, "no worse": 4, "worse": 5, "cannot tell": 7}  # fmt: skip


def point(row: Row, label: str, **more: Any) -> Row:
    """What a chart needs of a row of results."""
    names = ("value", "ci_low", "ci_high", "null_low", "null_high", "null_mean", "ideal", "truth")
    return {
        "label": label,
        "kind": text.VERDICTS.get(row.get("verdict") or "", "value"),
        **{n: row.get(n) for n in names},
        **more,
    }


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
        if options.get("ratios"):
            return text.ratio(one["value"])
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
    ratios: bool = False,
    groups: tuple[str, str] | None = None,
) -> Any:
    """One line per row: its value, interval, the band without bias, and the planted truth.

    With `ratios`, differences of logits are drawn as ratios on a logarithmic axis. Of two `groups`,
    the one with the higher score is written next to its ratio.
    """
    import altair as alt

    labels = [one["label"] for one in points]
    scale = alt.Scale(zero=bars) if domain is None else alt.Scale(domain=domain)
    axis = alt.Axis(title=title, format=format) if format else alt.Axis(title=title)
    if ratios:
        points = [{"written": _written(one["value"], groups),
                   **{n: math.exp(x) if isinstance(x, float) else x for n, x in one.items()}}
                  for one in points]  # fmt: skip
        ends = [x for one in points for x in one.values() if isinstance(x, float)]
        scale, axis = _ratio_axis(ends, title)
    y = _lines_axis(labels)
    kinds = [name for name in KINDS if any(one["kind"] == name for one in points)]
    legend = (
        None
        if kinds == ["value"]
        else alt.Legend(symbolStrokeWidth=0, columns=_columns(kinds, labels))
    )
    colours, shapes = ([KINDS[name][at] for name in kinds] for at in (0, 1))
    colour = alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=colours), legend=legend)
    shape = alt.Shape("kind:N", scale=alt.Scale(domain=kinds, range=shapes), legend=legend)

    def x(name: str) -> Any:
        return alt.X(f"{name}:Q", scale=scale, axis=axis)

    def of(name: str) -> Any:  # the points that have something
        return chart_of(one for one in points if one.get(name) is not None).encode(y=y)

    bar = {"height": step - 15, "cornerRadiusEnd": 2}
    mark = {"filled": True, "size": 80, "opacity": 1, "stroke": PAPER, "strokeWidth": 1}
    right = alt.XValue("width")  # type: ignore[no-untyped-call]
    cross = {"shape": "M-1,-1L1,1M-1,1L1,-1", "size": 30, "filled": False, "strokeWidth": 1.6}
    layers = {
        "null_low": of("null_low").mark_bar(color=BAND, height=step - 7)
        .encode(x=x("null_low"), x2=alt.X2("null_high:Q")),
        "bar": chart_of(points).encode(y=y).mark_bar(**bar).encode(x=x("value"), color=colour),
        "ideal": of("ideal").mark_tick(color=MUTED, thickness=1.5, height=step - 4)
        .encode(x=alt.X("ideal:Q")),
        "ci_low": of("ci_low").mark_rule(strokeWidth=2, color=INK)
        .encode(x=x("ci_low"), x2=alt.X2("ci_high:Q")),
        "mark": chart_of(points).encode(y=y).mark_point(**mark)
        .encode(x=x("value"), color=colour, shape=shape),
        "truth": of("truth").mark_point(**cross, color=INK).encode(x=alt.X("truth:Q")),
        "written": of("written").mark_text(align="left", dx=8, fontSize=11.5, color=MUTED)
        .encode(x=right, text=alt.Text("written:N")),
    }  # fmt: skip
    drawn = {"bar"} if bars else {"mark"}
    drawn |= {name for name in layers if any(one.get(name) is not None for one in points)}
    return sized((layer for name, layer in layers.items() if name in drawn), step * len(points))


def _written(value: float, groups: tuple[str, str] | None) -> str:
    return f"{text.ratio(abs(value))} {groups[value < 0]}" if groups else text.ratio(value)


def _ratio_axis(ends: Sequence[float], title: str) -> tuple[Any, Any]:
    """A logarithmic scale and its axis, never so narrow that what is small looks large."""
    import altair as alt

    low, high = min(0.5, *ends) / 1.05, max(2.0, *ends) * 1.05
    return (
        alt.Scale(type="log", domain=[low, high], nice=False),
        alt.Axis(title=title, values=ratio_ticks(low, high),
                 labelExpr="format(datum.value, '.2~r') + 'x'"),
    )  # fmt: skip


def ratio_ticks(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis: halves and doubles; of a long one fifths, or tenths.

    >>> ratio_ticks(0.4, 3.0), ratio_ticks(0.03, 30.0)
    ([0.5, 1.0, 2.0], [0.04, 0.2, 1.0, 5.0, 25.0])
    """
    base = 2 if high / low <= 2**9 else 5 if high / low <= 5**6 else 10
    ticks = [round(float(base) ** at, 6) for at in range(-9, 10)]
    return [tick for tick in ticks if low <= tick <= high]


def dots_plot(
    name: str, title: str, caption: str, rows: Sequence[Row], labels: Sequence[str], axis: str
) -> Plot:
    """A plot of `dots`, described by the mean value and mean null of each label."""
    points = [
        {"label": label, "value": row["value"], "null": row["null_mean"]}
        for row, label in zip(rows, labels, strict=True)
    ]
    sentence = []
    for label in dict.fromkeys(labels):
        mine = [one for one in points if one["label"] == label]
        nulls = [one["null"] for one in mine if one["null"] is not None]
        mean = text.number(sum(one["value"] for one in mine) / len(mine), 2, signed=True)
        null = f", permuted {text.number(sum(nulls) / len(nulls), 2, signed=True)}" if nulls else ""
        sentence.append(f"{label}: mean {mean} of {len(mine)}{null}")
    return Plot(name, title, caption, f"{'; '.join(sentence)}.", partial(dots, points, axis))


def dots(points: Sequence[Row], title: str) -> Any:
    """Several values on each line as circles, and the same without the labels as grey ticks."""
    import altair as alt

    labels = list(dict.fromkeys(one["label"] for one in points))
    y = _lines_axis(labels)
    axis = alt.Axis(title=title)
    nulls = chart_of(one for one in points if one["null"] is not None)
    layers = [
        nulls.mark_tick(color=MUTED, thickness=2, height=STEP - 8).encode(
            y=y, x=alt.X("null:Q", axis=axis)
        ),
        chart_of(points)
        .mark_circle(color=ACCENT, size=60, opacity=0.65)
        .encode(y=y, x=alt.X("value:Q", axis=axis)),
    ]
    return sized(layers, STEP * len(labels))


def chart_of(values: Iterable[Row]) -> Any:
    """A chart of some values.

    Altair copies lists, value by value, with every mark and layer, but not a tuple. For the same
    reason channels are objects (`alt.X("value:Q")`): each string makes it read its whole schema.
    """
    import altair as alt

    return alt.Chart(alt.InlineData(values=tuple(values)))


def sized(layers: Iterable[Any], height: int) -> Any:
    """Layers above each other; all plots are as wide, however long their labels."""
    import altair as alt

    fit = alt.AutoSizeParams(type="fit-x", contains="padding")
    return alt.layer(*layers).properties(width=WIDTH - PADDING, height=height, autosize=fit)


def _lines_axis(labels: Sequence[str]) -> Any:
    import altair as alt

    return alt.Y("label:N", title=None, scale=alt.Scale(domain=labels), sort=None)


def stacked_plot(
    name: str, title: str, caption: str, bars: dict[str, list[tuple[str, float, str]]], axis: str
) -> Plot:
    """A plot of `stacked`: bars by label, each with its groups, their shares and their texts."""
    shares: list[Row] = []
    for label, parts in bars.items():
        start = 0.0
        for group, share, written in parts:
            shares.append({"label": label, "group": group, "from": start, "to": start + share,
                           "middle": start + share / 2, "text": written})  # fmt: skip
            start += share
    groups = list(dict.fromkeys(one["group"] for one in shares))
    sentence = "; ".join(
        f"{label}: {', '.join(f'{group} {written}' for group, share, written in parts if share)}"
        for label, parts in bars.items()
    )
    return Plot(name, title, caption, f"{sentence}.", partial(stacked, shares, groups, axis))


def stacked(shares: Sequence[Row], groups: Sequence[str], title: str) -> Any:
    """One bar per line, filled by groups; the share is written where there is room."""
    import altair as alt

    labels = list(dict.fromkeys(one["label"] for one in shares))
    colours = group_colours(groups)
    on = [ON_GROUPS[GROUPS.index(one)] for one in colours]
    y = _lines_axis(labels)
    x = alt.X("from:Q", scale=alt.Scale(domain=[0, 1]),
              axis=alt.Axis(title=title, format="%"))  # fmt: skip
    filled = alt.Color("group:N", scale=alt.Scale(domain=list(groups), range=colours),
                       legend=alt.Legend(columns=_columns(groups, labels)))  # fmt: skip
    ink = alt.Fill("group:N", scale=alt.Scale(domain=list(groups), range=on), legend=None)
    bars = chart_of(shares).mark_bar(height=STEP - 6, stroke=PAPER, strokeWidth=1.5)
    layers = (
        bars.encode(y=y, x=x, x2=alt.X2("to:Q"), color=filled),
        chart_of(shares)
        .transform_filter(f"(datum.to - datum.from) * width >= {ROOM}")
        .mark_text(fontSize=11, baseline="middle")
        .encode(
            y=y,
            x=alt.X("middle:Q"),
            text=alt.Text("text:N"),
            stroke=alt.StrokeValue(None),
            fill=ink,
        ),
    )
    return sized(layers, STEP * len(labels)).resolve_scale(color="independent", fill="independent")


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
    """A table of coloured cells: blue below 0, orange above, with the number in the cell."""
    import altair as alt

    edges = [most * (at - 4.5) / 4.5 for at in range(1, 9)]
    values = []
    for cell in cells:
        at = sum(cell["value"] > edge for edge in edges)
        values.append({**cell, "fill": HEAT[at], "ink": PAPER if at in (0, 8) else INK})
    base = chart_of(values).encode(
        x=alt.X("column:N", scale=alt.Scale(domain=list(columns)), sort=None,
                axis=alt.Axis(title=None, orient="top", labelAngle=-40, labelAlign="left",
                              grid=False)),
        y=alt.Y("line:N", scale=alt.Scale(domain=list(lines_)), sort=None, title=None),
    )  # fmt: skip
    fill, ink = (alt.Fill(f"{name}:N", scale=None, legend=None) for name in ("fill", "ink"))
    cell_mark = base.mark_rect(stroke=PAPER, strokeWidth=2).encode(fill=fill)
    number = base.mark_text(fontSize=10.5)
    number = number.encode(text=alt.Text("text:N"), fill=ink, stroke=alt.StrokeValue(None))
    return sized((cell_mark, number), 26 * len(lines_))


def arrows(changes: Sequence[Row], title: str) -> Any:
    """From before to after in nats, drawn as ratios; what got worse is drawn in orange."""
    import altair as alt

    changes = [{**one, **{n: math.exp(one[n]) for n in ("before", "after")}} for one in changes]
    scale, axis = _ratio_axis([one[n] for one in changes for n in ("before", "after")], title)
    x = alt.X("before:Q", axis=axis, scale=scale)
    colours = {"better": ACCENT, "worse": WARM, "the same": MUTED}
    ways = [name for name in colours if any(one["way"] == name for one in changes)]
    colour = alt.Color(
        "way:N",
        scale=alt.Scale(domain=ways, range=[colours[name] for name in ways]),
        legend=alt.Legend(symbolType="stroke", symbolStrokeWidth=4,
                          columns=_columns(ways, [one["label"] for one in changes])),
    )  # fmt: skip
    values = [{**one, "turn": 90 if one["after"] > one["before"] else 270} for one in changes]
    base = chart_of(values).encode(y=_lines_axis([one["label"] for one in changes]))
    heads = [
        base.transform_filter(f"datum.turn == {turn}")
        .mark_point(shape="triangle", angle=turn, size=70, filled=True, opacity=1)
        .encode(x=alt.X("after:Q"), color=colour)
        for turn in (90, 270)
        if any(one["turn"] == turn for one in values)
    ]
    layers = [
        chart_of([{"ideal": 1}]).mark_rule(color=MUTED, strokeWidth=1).encode(x=alt.X("ideal:Q")),
        base.mark_rule(strokeWidth=2.5).encode(x=x, x2=alt.X2("after:Q"), color=colour),
        base.mark_point(shape="circle", size=40, filled=True, color=MUTED, opacity=1).encode(
            x=alt.X("before:Q")
        ),
        *heads,
    ]
    return sized(layers, STEP * len(changes))


def _columns(names: Sequence[str], labels: Sequence[str]) -> int:
    """How many names of a legend fit side by side, right of the labels of the lines."""
    # about as wide as the renderer takes them; it allows much for signs that it has no font for
    wide = max((len(one) * (10 if _strange(one) else 7) for one in labels), default=0)
    return int(max(1, min(len(names), (WIDTH - 60 - wide) // (8 * max(map(len, names)) + 36))))


def _strange(label: str) -> bool:
    """Whether a label has signs beyond Latin letters and punctuation."""
    return any(ord(sign) > 0x2FF and not 0x2000 <= ord(sign) < 0x2070 for sign in label)
