"""Contact sheets: small images side by side, as a plot."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tiltmeter.pages import text
from tiltmeter.pages.model import Plot
from tiltmeter.pages.plots import charts

SIDE = 96  # pixels of a thumbnail
ROOM = 8  # between two


def contact_sheet(
    name: str, title: str, caption: str, lines: Mapping[str, Sequence[Path]]
) -> Plot | None:
    """Images by line, cut to squares; None if no image can be read.

    Parameters
    ----------
    name, title, caption
        Of the plot.
    lines
        Image files by label.
    """
    tiles: list[dict[str, Any]] = [
        {"line": label, "column": column, "url": url}
        for label, paths in zip(charts.distinct(list(lines)), lines.values(), strict=True)
        for column, url in enumerate(filter(None, map(thumbnail, paths)))
    ]
    if not tiles:
        return None
    count = text.plural(len(tiles), "image")
    shown = list(dict.fromkeys(str(tile["line"]) for tile in tiles))
    return Plot(name, title, caption, f"{count} of: {'; '.join(shown)}.",
                partial(_draw, tiles, shown))  # fmt: skip


def thumbnail(path: Path) -> str | None:
    """A square of SIDE pixels as a data URL; None if it cannot be read."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            square = ImageOps.fit(image.convert("RGB"), (SIDE, SIDE))
    except (OSError, ValueError):
        return None
    out = io.BytesIO()
    square.save(out, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()


def _draw(tiles: Sequence[Mapping[str, Any]], lines: Sequence[str]) -> Any:
    import altair as alt

    columns = range(max(int(tile["column"]) for tile in tiles) + 1)
    layer = charts.chart_of(dict(tile) for tile in tiles).mark_image(width=SIDE, height=SIDE)
    return charts.sized(
        [layer.encode(
            x=alt.X("column:O", axis=None, scale=alt.Scale(domain=list(columns))),
            y=alt.Y("line:N", title=None, sort=None, scale=alt.Scale(domain=list(lines))),
            url="url:N",
        )],
        (SIDE + ROOM) * len(lines),
    )  # fmt: skip
