"""Charts with two axes of numbers: points, counts, and the front of what nothing beats."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

from tiltmeter.pages import text
from tiltmeter.pages.model import Row
from tiltmeter.pages.plots.charts import chart_of, sized
from tiltmeter.pages.plots.drawing import ACCENT, GROUPS, INK, MUTED, PAPER, SOFT, WARM, WIDTH

Side = tuple[Literal["left", "center", "right"], int, int]  # alignment, pixels to move by
Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels

TALL, BROAD = 280, 660  # the front without its axes
DOT, LINE = 6, 13  # radius of a point, height of a name
#: Where a name may stand, the best place first: to the right, the left, above and below.
SIDES: tuple[Side, ...] = (
    ("left", 10, 0), ("right", -10, 0), ("center", 0, -13), ("center", 0, 13),
    ("left", 4, -13), ("left", 4, 13), ("right", -4, -13), ("right", -4, 13),
)  # fmt: skip


def scatter(
    points: Sequence[Row],
    x: str,
    y: str,
    *,
    axes: bool = True,
    diagonal: tuple[float, float] | None = None,
    size: int = 40,
    height: int = 340,
) -> Any:
    """Points with `x` and `y`; those with a `text` are named, lines mark where both are 0."""
    import altair as alt

    layers = []
    if diagonal:
        ends = [{"x": edge, "y": edge} for edge in diagonal]
        layers.append(
            chart_of(ends)
            .mark_line(color=MUTED, strokeDash=[4, 4], strokeWidth=1)
            .encode(x=alt.X("x:Q"), y=alt.Y("y:Q"))
        )
    if axes:
        zero = chart_of([{"zero": 0}])
        layers += [
            zero.mark_rule(color=MUTED, strokeWidth=1).encode(x=alt.X("zero:Q")),
            zero.mark_rule(color=MUTED, strokeWidth=1).encode(y=alt.Y("zero:Q")),
        ]
    kinds = list(dict.fromkeys(one["kind"] for one in points))
    colours = {"value": ACCENT, **dict(zip([k for k in kinds if k != "value"], GROUPS,
                                           strict=False))}  # fmt: skip
    base = chart_of(points).encode(
        x=alt.X("x:Q", axis=alt.Axis(title=x, grid=False), scale=alt.Scale(zero=axes)),
        y=alt.Y("y:Q", axis=alt.Axis(title=y, grid=True, tickCount=6), scale=alt.Scale(zero=axes)),
    )
    layers.append(
        base.mark_circle(size=size, opacity=0.75).encode(
            color=alt.Color(
                "kind:N",
                scale=alt.Scale(domain=kinds, range=[colours.get(k, MUTED) for k in kinds]),
                legend=None if kinds == ["value"] else alt.Legend(),
            )
        )
    )
    named = _apart([one for one in points if one.get("text")], points)
    if named:
        layers.append(
            chart_of(named)
            .mark_text(align="left", dx=7, dy=-5, fontSize=11, color=INK)
            .encode(x=alt.X("x:Q"), y=alt.Y("y:Q"), text=alt.Text("text:N"))
        )
    return sized(layers, height)


def histograms(panels: Sequence[tuple[str, list[float]]], title: str, *, bins: int = 24) -> Any:
    """Counts of values, one panel below the other; a line marks 0, a dashed one the mean."""
    import altair as alt
    import numpy as np

    charts = []
    for at, (name, values) in enumerate(panels):
        low, high = (float(edge) for edge in np.percentile(values, [0.5, 99.5]))
        low, high = min(low, 0.0), max(high, 0.0)
        high = high if high > low else low + 1.0
        edges = np.linspace(low, high, bins + 1)
        counts, _ = np.histogram(np.clip(values, low, high), edges)
        bars = [{"from": float(a), "to": float(b), "count": int(c), "foot": 0}
                for a, b, c in zip(edges, edges[1:], counts, strict=False) if c]  # fmt: skip
        last = at == len(panels) - 1
        x = alt.X("from:Q", scale=alt.Scale(domain=[low, high], nice=False),
                  axis=alt.Axis(title=title if last else None, grid=False))  # fmt: skip
        layer = alt.layer(
            chart_of(bars)
            .mark_rect(color=SOFT, stroke=PAPER, strokeWidth=1)
            .encode(
                x=x,
                x2=alt.X2("to:Q"),
                y2=alt.Y2("foot:Q"),
                y=alt.Y("count:Q", axis=alt.Axis(title=None, tickCount=3)),
            ),
            chart_of([{"zero": 0.0}]).mark_rule(color=INK, strokeWidth=1).encode(x=alt.X("zero:Q")),
            chart_of([{"mean": float(np.mean(values))}])
            .mark_rule(color=WARM, strokeWidth=2, strokeDash=[5, 3])
            .encode(x=alt.X("mean:Q")),
        )
        head = alt.Title(text.short(name, 70), anchor="start", fontSize=12, fontWeight="normal",
                         color=INK, offset=4)  # fmt: skip
        charts.append(layer.properties(width=WIDTH - 70, height=90, title=head))
    return alt.vconcat(*charts, spacing=14).resolve_scale(x="independent", y="independent")


def front(points: Sequence[Row], useful: str, biased: str) -> Any:
    """Models by utility and bias; the line joins those that no other beats in both."""
    import altair as alt

    ordered = sorted(points, key=lambda one: (-one["x"], one["y"]))
    best: list[Row] = []
    for one in ordered:
        if not best or one["y"] < best[-1]["y"]:
            best.append(one)
    xs, ys = [one["x"] for one in points], [one["y"] for one in points]
    room_x = 0.3 * (max(xs) - min(xs)) or 0.1
    room_y = 0.2 * (max(ys) - min(ys)) or 0.1
    x = alt.X("x:Q", axis=alt.Axis(title=f"utility: {useful}", grid=False),
              scale=alt.Scale(domain=[min(xs) - room_x, max(xs) + room_x], nice=False))  # fmt: skip
    y = alt.Y("y:Q", axis=alt.Axis(title=f"bias: {biased}", grid=True, tickCount=5),
              scale=alt.Scale(domain=[min(ys) - room_y, max(ys) + room_y], nice=False))  # fmt: skip
    steps = [{"x": one["x"], "y": one["y"]} for one in best]
    line, dots = chart_of(steps), chart_of(points)
    layers = [
        line.mark_line(color=MUTED, strokeDash=[4, 3], interpolate="step-before").encode(x=x, y=y),
        dots.mark_circle(size=110, color=ACCENT, opacity=1).encode(x=x, y=y),
    ]
    for (align, dx, dy), named in _placed_names(points, best, (room_x, room_y)).items():
        names = chart_of(named).mark_text(align=align, dx=dx, dy=dy, color=INK)
        layers.append(names.encode(x=x, y=y, text=alt.Text("text:N")))
    return sized(layers, TALL)


def _placed_names(
    points: Sequence[Row], best: Sequence[Row], room: tuple[float, float]
) -> dict[Side, list[Row]]:
    """Names by the side of their points where nothing else is; those without room are left out.

    The front is named first. Names run into neither points, nor its line, nor each other.
    """
    ends = [(min(p[axis] for p in points) - more, max(p[axis] for p in points) + more)
            for axis, more in zip("xy", room, strict=True)]  # fmt: skip

    def pixels(one: Row) -> tuple[float, float]:
        (left, right), (low, high) = ends
        return (one["x"] - left) / (right - left) * BROAD, (high - one["y"]) / (high - low) * TALL

    dots = [pixels(one) for one in points]
    taken = [(x - DOT, y - DOT, x + DOT, y + DOT) for x, y in dots]
    line = sorted(pixels(one) for one in best)
    for (x, y), (next_x, next_y) in itertools.pairwise(line):  # up or down first, then across
        taken += [(x - 2, min(y, next_y), x + 2, max(y, next_y)),
                  (x, next_y - 2, next_x, next_y + 2)]  # fmt: skip
    found: dict[Side, list[Row]] = {}
    for one in [*best, *(point for point in points if point not in best)]:
        x, y = pixels(one)
        wide = _wide(str(one["text"]))
        for align, dx, dy in SIDES:
            left = x + dx - {"left": 0.0, "center": wide / 2, "right": wide}[align]
            box = (left, y + dy - LINE / 2, left + wide, y + dy + LINE / 2)
            if left >= 0 and left + wide <= BROAD and not any(_meet(box, it) for it in taken):
                taken.append(box)
                found.setdefault((align, dx, dy), []).append(one)
                break
    return found


def _wide(name: str) -> float:
    """About how many pixels a name takes, in Helvetica."""
    return sum(3.7 if sign in "fijlrt-.,: " else 6.8 if sign.isascii() and not sign.isupper() else 9
               for sign in name)  # fmt: skip


def _meet(one: Box, other: Box) -> bool:
    return (one[0] < other[2] and other[0] < one[2]) and (one[1] < other[3] and other[1] < one[3])


def _apart(named: Sequence[Row], points: Sequence[Row]) -> list[Row]:
    """Those whose names do not run into one that came before."""
    wide, high = (max(p[axis] for p in points) - min(p[axis] for p in points) or 1.0
                  for axis in ("x", "y"))  # fmt: skip
    kept: list[Row] = []
    for one in named:
        if not any(
            abs(one["x"] - other["x"]) < 0.12 * wide and abs(one["y"] - other["y"]) < 0.045 * high
            for other in kept
        ):
            kept.append(one)
    return kept
