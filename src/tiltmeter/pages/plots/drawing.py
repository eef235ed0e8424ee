"""How plots look, and how they become SVG and PNG.

A plot is drawn once, in the colours of the light page. On the page each colour gives way to its
name (`var(--accent)`), so that light, dark and print share one drawing, without scripts.
"""

from __future__ import annotations

import copy
import json
import re
import textwrap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

from markupsafe import Markup, escape

from tiltmeter.pages.model import Plot

WIDTH = 760  # of every plot
NARROW = 352  # of its second drawing, for a phone
PADDING = 12  # of both sides
PLOT, LETTER = 230, 6.5  # least width of the area with the marks; of a letter of a label
LABEL = 30  # letters of a label in one line
LEGEND = 20  # letters of a name in the legend, which stands above the marks
TITLE = 24  # letters of an axis title that fit below that area; the caption has longer ones
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
NEEDED = ("altair", "vl_convert")
#: By name: on the light page, on the dark page. Groups: Okabe and Ito (2008), who chose colours
#: that those who see no red or no green can tell apart; the heat map runs from blue to orange.
PALETTE = {
    "ink": ("#1c232b", "#e9ecf0"),
    "muted": ("#59626d", "#a7b0bb"),
    "grid": ("#e4e7eb", "#303841"),
    "paper": ("#fffffe", "#14181d"),
    "surface": ("#f6f7f9", "#1b2026"),
    "rule": ("#d5dae0", "#3a434d"),
    "accent": ("#0a66a0", "#62b5ea"),
    "band": ("#d9dee5", "#3d4751"),
    "warm": ("#b4480f", "#f29a5c"),
    "soft": ("#8fb9d6", "#37688a"),
    "bad": ("#a8231b", "#ff9189"),
    "good": ("#1f6b45", "#6fce9e"),
    "group-1": ("#0072b2", "#1c7ab5"),
    "group-2": ("#e69f00", "#e8ab2a"),
    "group-3": ("#009e73", "#2bb58c"),
    "group-4": ("#cc79a7", "#d68fb7"),
    "group-5": ("#56b4e9", "#8accf0"),
    "group-6": ("#d55e00", "#e5762a"),
    "group-7": ("#f0e442", "#efe560"),
    "group-8": ("#999999", "#9c9c9c"),
    "heat-1": ("#1f6ea6", "#7cc0f2"),
    "heat-2": ("#74acd1", "#356f9c"),
    "heat-3": ("#b3d2e6", "#2c587b"),
    "heat-4": ("#dfeaf2", "#25435b"),
    "heat-5": ("#f3f3f1", "#232a31"),
    "heat-6": ("#fae5d3", "#54402d"),
    "heat-7": ("#f3c096", "#744821"),
    "heat-8": ("#de8b4c", "#965a26"),
    "heat-9": ("#ae5410", "#f7a45c"),
}
INK, MUTED, GRID, PAPER, ACCENT, BAND, WARM, SOFT = (
    PALETTE[name][0] for name in ("ink", "muted", "grid", "paper", "accent", "band", "warm", "soft")
)
GROUPS = [light for name, (light, _) in PALETTE.items() if name.startswith("group")]
HEAT = [light for name, (light, _) in PALETTE.items() if name.startswith("heat")]
#: What can be read on each of GROUPS, on the light page and on the dark one.
ON_GROUPS = ["#ffffff", "#111111", "#111111", "#111111", "#111111", "#111111", "#111111", "#111111"]
_VARIABLES = {light: f"var(--{name})" for name, (light, _) in PALETTE.items()}


def missing() -> list[str]:
    """Packages that plots need and that are not installed."""
    return [name for name in NEEDED if find_spec(name) is None]


def variables() -> Markup:
    """The colours as CSS: light, dark where the system or the reader wants it, light on paper."""
    light, dark = (
        "".join(f"--{name}:{pair[at]};" for name, pair in PALETTE.items()) for at in (0, 1)
    )
    return Markup(
        f":root{{color-scheme:light;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=light]{{color-scheme:light;{light}}}"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}}}"
    )


def svg(plot: Plot) -> str:
    """A drawing of its own, on white."""
    return _drawn(_file_spec(plot))


def png(plot: Plot) -> bytes:
    """The same in pixels, twice the size."""
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(_file_spec(plot), vl_version=_version(), scale=2))


def _file_spec(plot: Plot) -> dict[str, Any]:
    """With several fonts: the renderer omits text if the only font is not installed."""
    spec = _spec(plot, "#ffffff")
    spec["config"]["font"] = FONT
    return spec


def inline(plot: Plot) -> Markup:
    """A drawing for the page: its title and description are read aloud, its marks are not."""
    return inline_all([plot])[plot.name]


def inline_all(plots: Sequence[Plot]) -> dict[str, Markup]:
    """`inline` of many plots by name: while one is drawn, the next is described to the renderer.

    A plot that is shown at once is drawn twice, and the page shows the one for its width.
    """
    with ThreadPoolExecutor(1) as renderer:  # more would wait for each other
        drawn = [
            (plot, spec, renderer.submit(_drawn, spec), name, kind)
            for plot in plots
            for spec, name, kind in _variants(plot)
        ]
        found = {plot.name: Markup() for plot in plots}
        for plot, spec, svg, name, kind in drawn:
            found[plot.name] += _on_page(plot, spec, svg.result(), name, kind)
        return found


def _variants(plot: Plot) -> list[tuple[dict[str, Any], str, str]]:
    """Specifications of a plot, with a name and a class of their own."""
    spec = _spec(plot, None)
    narrow = None if plot.folded else _narrow(spec)
    if narrow is None:
        return [(spec, plot.name, "")]
    return [(spec, plot.name, "wide"), (narrow, f"{plot.name}-narrow", "narrow")]


def _drawn(spec: dict[str, Any]) -> str:
    import vl_convert

    return str(vl_convert.vegalite_to_svg(spec, vl_version=_version()))


def _on_page(plot: Plot, spec: dict[str, Any], drawn: str, name: str, kind: str) -> Markup:
    size = re.match(r'<svg[^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
    assert size is not None, "the renderer always says how large its drawing is"
    inner = drawn[drawn.index(">") + 1 : drawn.rindex("</svg>")]
    inner = re.sub(r"<[^>]*>", lambda tag: _slim(tag.group()), inner)
    inner = _own_ids(inner, name)
    width, height = (
        max(spec.get("width", 0) + PADDING, round(float(size[1]))),
        round(float(size[2])),
    )
    return Markup(
        f'<svg viewBox="0 0 {width} {height}" class="{kind}" role="img" '
        f'aria-labelledby="{name}-t" aria-describedby="{name}-d">'
        f'<title id="{name}-t">{escape(plot.title)}</title>'
        f'<desc id="{name}-d">{escape(plot.description)}</desc>{inner}</svg>'
    )


def _narrow(spec: dict[str, Any]) -> dict[str, Any] | None:
    """The same plot for a phone, as narrow as its labels allow; None if it would not fit."""
    layers = copy.deepcopy(spec.get("layer", ()))
    channels = [channel for layer in layers for channel in layer["encoding"].values()]
    lines = [one for one in channels if one.get("field") == "label" and "scale" in one]
    labels = {name: _two_lines(name) for y in lines for name in y["scale"]["domain"]}
    named = [name for one in channels if one.get("legend") for name in one["scale"]["domain"]]
    if not labels or any(len(name) > LEGEND for name in named):
        return None
    longest = max(len(line) for parts in labels.values() for line in parts)
    width = round(min(WIDTH, max(NARROW, PLOT + LETTER * longest)))
    for channel in channels:
        legend, axis = channel.get("legend") or {}, channel.get("axis") or {}
        if "columns" in legend:
            legend["columns"] = max(1, legend["columns"] * width // WIDTH)
        if len(axis.get("title") or "") > TITLE:
            axis["title"] = None
    long = sum(len(parts) > 1 for parts in labels.values())
    written = {"labelExpr": f"{json.dumps(labels)}[datum.label]", "labelFontSize": 10,
               "labelLineHeight": 11,
               "labelOffset": -5 if 2 * long > len(labels) else 0}  # fmt: skip
    for y in lines if long else ():
        y["axis"] = written
    return {**spec, "layer": layers, "width": width - PADDING}


def _two_lines(label: str) -> list[str]:
    """A label in one line, or in two of about the same length."""
    if len(label) <= LABEL:
        return [label]
    return textwrap.wrap(label, max(LABEL, len(label) // 2 + 6), max_lines=2)


def _version() -> str:
    import altair as alt

    return ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])


def _spec(plot: Plot, background: str | None) -> dict[str, Any]:
    from altair.utils.schemapi import debug_mode

    with debug_mode(False):  # checking every mark against the schema takes longer than drawing
        spec: dict[str, Any] = plot.chart().to_dict(validate=False)
    axis = {
        "domain": False, "ticks": False, "grid": False, "gridColor": GRID, "labelColor": INK,
        "titleColor": MUTED, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal",
        "labelPadding": 8, "titlePadding": 10, "labelLimit": 0, "titleLimit": 0,
    }  # fmt: skip
    # nothing is cut short by the renderer, which cuts through signs like 👩; see text.short
    spec["background"] = background
    spec["padding"] = PADDING / 2
    spec["config"] = {
        "aria": False,  # the plot is described as a whole
        "font": FONT.split(",")[0],
        "view": {"stroke": None},
        "axis": axis,
        "axisX": {"grid": True, "tickCount": 6},
        "legend": {
            "orient": "top", "direction": "horizontal", "title": None, "labelColor": INK,
            "labelFontSize": 12, "symbolSize": 90, "columnPadding": 18, "labelLimit": 0,
            "offset": 8, "columns": 5,
        },
        "header": {"labelColor": INK, "labelFontSize": 12, "title": None, "labelPadding": 4},
        "text": {"color": INK, "fontSize": 12},
    }  # fmt: skip
    return spec


#: What a browser needs no telling, or what only the renderer's own page needs.
_NOISE = re.compile(
    r' (?:class|role|aria-[a-z]+|pointer-events|font-family)="[^"]*"| opacity="1"| stroke-width="1"'
)
_COLOUR = re.compile(r'(fill|stroke)="(#[0-9a-f]{6})"')


def _slim(tag: str) -> str:
    tag = _NOISE.sub("", tag)
    tag = re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found.group()):.2f}", tag)
    return _COLOUR.sub(lambda hit: f'{hit[1]}="{_VARIABLES.get(hit[2], hit[2])}"', tag)


def _own_ids(inner: str, name: str) -> str:
    """Ids that no other plot has, and that do not depend on what was drawn before."""
    inner = re.sub(r'<text[^>]* opacity="0"[^>]*>[^<]*</text>', "", inner)
    inner = re.sub(r"<path(?: [a-z]+=\"[^\"]*\")* d=\"\"[^>]*/>", "", inner)
    inner = re.sub(r'<path d="M0,0h0v0h0Z"/>', "", inner)
    found = dict.fromkeys(re.findall(r'id="([^"]+)"', inner))
    for at, old in enumerate(found):
        inner = inner.replace(f'id="{old}"', f'id="{name}-i{at}"')
        inner = inner.replace(f"url(#{old})", f"url(#{name}-i{at})")
    return inner
