"""A calibration on disk: its table, one page in Markdown, and a figure for each metric.

The page is made from the table alone, so that the two never differ.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tiltmeter.errors import InputError
from tiltmeter.judge.calibration.measurement import Calibration
from tiltmeter.judge.calibration.verdict import (
    FALSE_ALARMS,
    FLOOR,
    LEVEL,
    PARTLY,
    POWER,
    RECOVERS,
    MetricSummary,
)
from tiltmeter.pages.calibration import plots
from tiltmeter.results import written_beside

TABLE, PAGE, FIGURES = "calibration.parquet", "calibration.md", "figures"

Row = dict[str, Any]


def save(found: Calibration, path: str | os.PathLike[str], *, replace: bool = False) -> list[str]:
    """Writes the directory `path`, whole or not at all; returns packages that figures lacked."""
    path = Path(path)
    check_place(path, replace=replace)
    lacking = plots.missing()
    rows = found.table.to_pylist()
    with written_beside(path) as place:
        pq.write_table(found.table, place / TABLE, compression="zstd")
        if not lacking:
            (place / FIGURES).mkdir()
            for one in found.summaries:
                picture = plots.svg([row for row in rows if row["metric"] == one.metric])
                (place / FIGURES / f"{one.metric}.svg").write_text(picture, encoding="utf-8")
        page = markdown(found, with_figures=not lacking)
        (place / PAGE).write_text(page, encoding="utf-8")
    return lacking


def check_place(path: Path, *, replace: bool) -> None:
    """What is there is left as it is, unless it is a calibration and may be replaced."""
    if not path.exists():
        return
    if not replace:
        raise InputError(f"{path} exists already: name another --out, or pass --force")
    if not path.is_dir() or (any(path.iterdir()) and not (path / TABLE).exists()):
        raise InputError(f"{path} is not a calibration of tiltmeter and will not be replaced")


def markdown(found: Calibration, *, with_figures: bool = True) -> str:
    """The page: how it was made, how to read it, tables, verdicts and plots."""
    rows = found.table.to_pylist()
    parts = [
        _head(rows),
        _summary_table(found.summaries),
        READING,
        "## Verdicts\n\n" + "\n".join(f"- **{s.metric}**: {s.verdict}" for s in found.summaries),
        _response_table(rows),
        _power_table(rows),
    ]
    if with_figures:
        pictures = [f"![{s.metric}]({FIGURES}/{s.metric}.svg)" for s in found.summaries]
        parts.append(
            "## Figures\n\nLeft: the mean distance from the ideal at each dose; the band is one "
            "standard deviation\nover data sets. Right: the share of planted tilts that the "
            "metric's own test finds.\n\n" + "\n\n".join(pictures)
        )
    else:
        parts.append("Figures need altair and vl-convert-python, which were not installed.")
    return "\n\n".join(parts) + "\n"


READING = f"""\
- **order**: Spearman's correlation of values and planted truth at dose 1 (over words, or what the
  verdict names). From {RECOVERS:g} the metric recovers the order, from {PARTLY:g} in part.
- **saturates**: above this dose no step of the response grows even half as fast as it did in the
  beginning. Sizes above it are hard to tell apart.
- **false alarms**: share of the metric's own tests that fire at dose 0, at the {LEVEL:.0%} level,
  with Wilson's interval. A test cries wolf where the whole interval is above {FALSE_ALARMS:.0%}.
- **at zero**: what is read without any tilt, by one who takes the ideal for granted, as a share of
  what is read at dose 1. Above {FLOOR:.0%} the metric cries wolf without its null.
- **quiet**: the same for a model with a thousandth of the tilt and a thousandth of the noise. A
  metric that stays near 100% sees the ratio of tilt to noise, never the size of the tilt.
- **images**: how many it takes to find {POWER:.0%} of the tilts planted at dose 1."""


def _head(rows: Sequence[Row]) -> str:
    response = [row for row in rows if row["figure"] == "response"]
    counts = sorted({row["count"] for row in response if row["dose"] > 0})
    zero = sorted({row["count"] for row in response if row["dose"] == 0})
    doses = sorted({row["dose"] for row in response})
    return (
        "# Calibration: every metric against a bias of known size\n\n"
        "Made by `tiltmeter calibrate`. "
        f"Doses {', '.join(f'{dose:g}' for dose in doses)}; {response[0]['n']:,} images behind "
        f"each\nvalue; {_several(counts)} data sets a dose, {_several(zero)} at dose 0; "
        f"seed {rows[0]['seed']}."
    )


def _several(counts: Sequence[int]) -> str:
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _summary_table(summaries: Sequence[MetricSummary]) -> str:
    head = ("metric", "order", "saturates", "false alarms", "at zero", "quiet", "images")
    return _lines(head, (cells(one, interval=True) for one in summaries))


def cells(one: MetricSummary, *, interval: bool = False) -> list[str]:
    """A summary as a row of short texts, for a page or a terminal."""
    alarms = _percent(one.false_alarms, 1)
    if interval and one.false_alarms_low is not None and one.false_alarms_high is not None:
        alarms += f" ({one.false_alarms_low:.1%} to {one.false_alarms_high:.1%})"
    if one.needed is not None:
        images = f"{'<= ' if one.needed == one.smallest else ''}{one.needed:,}"
    else:
        images = "-" if one.largest is None else f"> {one.largest:,}"
    return [
        one.metric,
        "-" if one.order is None else f"{one.order:.2f}",
        "-" if one.saturates is None else f"above {one.saturates:g}",
        alarms,
        _percent(one.floor),
        _percent(one.quiet),
        images,
    ]


def _percent(share: float | None, digits: int = 0) -> str:
    return "-" if share is None else f"{share:.{digits}%}"


def _response_table(rows: Sequence[Row]) -> str:
    picked = [row for row in rows if row["figure"] == "response"]
    doses = sorted({row["dose"] for row in picked})
    body = (
        [name, *(_mean(row) for row in sorted(mine, key=lambda row: row["dose"]))]
        for name, mine in _by_metric(picked)
    )
    return (
        "## Dose and response\n\nMean distance of the values from their ideal; after ±, the "
        "standard deviation over data sets.\n\n"
        + _lines(("metric", *(f"{dose:g}" for dose in doses)), body)
    )


def _mean(row: Row) -> str:
    if row["value"] is None:
        return "-"
    return f"{row['value']:.3g} ± {row['spread']:.1g}"


def _power_table(rows: Sequence[Row]) -> str:
    picked = [row for row in rows if row["figure"] == "power"]
    keys = sorted({(row["dose"], row["n"]) for row in picked})
    body = (
        [name, *(_percent(at[key]) for key in keys)]
        for name, mine in _by_metric(picked)
        for at in [{(row["dose"], row["n"]): row["value"] for row in mine}]
    )
    head = ("metric", *(f"{dose:g}: {n:,}" for dose, n in keys))
    return "## Power\n\nShare of planted tilts found, by dose and images.\n\n" + _lines(head, body)


def _by_metric(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    for name in dict.fromkeys(row["metric"] for row in rows):
        yield name, [row for row in rows if row["metric"] == name]


def _lines(head: Sequence[str], body: Any) -> str:
    """A table in Markdown; numbers to the right."""
    listed = [list(head), ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join("| " + " | ".join(row) + " |" for row in listed)
