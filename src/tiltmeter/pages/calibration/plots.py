"""A plot of each metric: its response to each dose, and the share of biases it detects."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Literal

from tiltmeter.judge.calibration.verdict import POWER
from tiltmeter.pages.model import Row
from tiltmeter.pages.plots.charts import chart_of

WIDTH, HEIGHT = 260, 180
#: Told apart by those who see no red or no green, and by their dashes (Okabe and Ito 2008).
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"
NEEDED = ("altair", "vl_convert")

Baseline = Literal["top", "middle", "bottom"]


def missing() -> list[str]:
    """Packages that plots need and that are not installed."""
    return [name for name in NEEDED if find_spec(name) is None]


def svg(rows: Sequence[Row]) -> str:
    """The plot of one metric, from its rows of the calibration's table."""
    import altair as alt

    chart = (
        alt.hconcat(_response(rows), _power(rows), spacing=30)
        .resolve_scale(color="independent", strokeDash="independent")
        .properties(title=alt.Title(rows[0]["metric"], anchor="start", fontSize=15))
    )
    # the page names the plot; labels for every mark would double the file
    styled = (
        chart.configure(aria=False)
        .configure_axis(grid=False, labelFontSize=11, titleFontSize=12)
        .configure_view(stroke=None)
    )
    out = io.StringIO()
    styled.save(out, format="svg")
    return out.getvalue()


def _response(rows: Sequence[Row]) -> Any:
    """Mean distance from the ideal by dose, one standard deviation about it, and the ideal."""
    import altair as alt

    points = [
        {"dose": row["dose"], "mean": row["value"],
         "low": max(0.0, row["value"] - row["spread"]), "high": row["value"] + row["spread"]}
        for row in rows
        if row["statistic"] == "response" and row["value"] is not None
    ]  # fmt: skip
    zero = [{"y": point["mean"], "text": "without bias"} for point in points if not point["dose"]]
    dose = alt.X("dose:Q", title="planted dose", axis=alt.Axis(tickCount=6))
    mean = alt.Y("mean:Q", title="mean distance from the ideal", scale=alt.Scale(zero=True))
    base = chart_of(points)
    band = base.mark_area(color=BLUE, opacity=0.25).encode(
        x=dose, y=alt.Y("low:Q"), y2=alt.Y2("high:Q")
    )
    line = base.mark_line(color=BLUE, point=alt.OverlayMarkDef(color=BLUE, size=30)).encode(
        x=dose, y=mean
    )
    ideal = _rule([{"y": 0.0, "text": "ideal"}], GREY, [1, 0], "top")
    return alt.layer(band, line, *ideal, *_rule(zero, ORANGE, [4, 3], "bottom")).properties(
        width=WIDTH, height=HEIGHT
    )


def _power(rows: Sequence[Row]) -> Any:
    """Share of biases detected by number of images, at each dose."""
    import altair as alt

    points = [
        {"n": row["n"], "power": row["value"], "dose": f"dose {row['dose']:g}"}
        for row in rows
        if row["statistic"] == "power" and row["value"] is not None and not row["protocol"]
    ]
    frame = {"width": WIDTH, "height": HEIGHT}
    if not points:
        text = chart_of([{"text": "no test of its own"}])
        return text.mark_text(fontSize=12, color=GREY).encode(text="text:N").properties(**frame)
    sizes = sorted({point["n"] for point in points})
    n = alt.X(
        "n:Q",
        title="images",
        scale=alt.Scale(type="log", domain=[sizes[0], sizes[-1]]),
        axis=alt.Axis(values=sizes, format=",d"),
    )
    power = alt.Y("power:Q", title="share of biases detected", scale=alt.Scale(domain=[0, 1]))
    names = sorted({point["dose"] for point in points})
    colour = alt.Color(
        "dose:N", title=None, scale=alt.Scale(domain=names, range=[ORANGE, BLUE]),
        legend=alt.Legend(orient="bottom-right"),
    )  # fmt: skip
    dash = alt.StrokeDash(
        "dose:N", title=None, scale=alt.Scale(domain=names, range=[[4, 3], [1, 0]])
    )
    lines = (
        chart_of(points)
        .mark_line(point=alt.OverlayMarkDef(size=30))
        .encode(x=n, y=power, color=colour, strokeDash=dash)
    )
    wanted = _rule([{"y": POWER, "text": f"{POWER:.0%}"}], GREY, [1, 2], "middle")
    return alt.layer(lines, *wanted).properties(**frame)


def _rule(at: list[Row], colour: str, dash: list[int], baseline: Baseline) -> list[Any]:
    """A level, with its name next to the panel."""
    import altair as alt

    base = chart_of(at).encode(y=alt.Y("y:Q"))
    name = base.mark_text(align="left", dx=4, baseline=baseline, fontSize=10, color=colour)
    return [
        base.mark_rule(color=colour, strokeDash=dash),
        name.encode(text="text:N", x=alt.value(WIDTH)),
    ]
