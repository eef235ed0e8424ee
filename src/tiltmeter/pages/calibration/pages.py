"""A calibration on disk: its table, one page in Markdown, and a plot for each metric.

The page is made from the table alone, so that the two never differ.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from tiltmeter.errors import InputError
from tiltmeter.judge.calibration.measurement import Calibration
from tiltmeter.judge.calibration.verdict import (
    FALSE_POSITIVES,
    FLOOR,
    LEVEL,
    PARTLY,
    POWER,
    RECOVERS,
    MetricSummary,
)
from tiltmeter.pages import markdown as md
from tiltmeter.pages import text
from tiltmeter.pages.calibration import plots
from tiltmeter.pages.calibration.lift_tables import lift_tables, trust_table
from tiltmeter.pages.model import Column, Row, Table, table
from tiltmeter.pages.selection import by
from tiltmeter.results import atomic_directory

TABLE, PAGE, FIGURES = "calibration.parquet", "calibration.md", "figures"


def save(found: Calibration, path: str | os.PathLike[str], *, replace: bool = False) -> list[str]:
    """Writes the directory `path`, whole or not at all; returns packages that plots lack."""
    path = Path(path)
    check_place(path, replace=replace)
    lacking = plots.missing()
    rows = found.table.to_pylist()
    with atomic_directory(path) as place:
        pq.write_table(found.table, place / TABLE, compression="zstd")
        if not lacking:
            (place / FIGURES).mkdir()
            for one in found.summaries:
                drawn = plots.svg([row for row in rows if row["metric"] == one.metric])
                (place / FIGURES / f"{one.metric}.svg").write_text(drawn, encoding="utf-8")
        page = markdown(found, with_figures=not lacking)
        (place / PAGE).write_text(page, encoding="utf-8")
    return lacking


def check_place(path: Path, *, replace: bool) -> None:
    """Refuses a path that exists, unless it is a calibration and may be replaced."""
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
        md.table(summary_table(found.summaries), caption=False),
        READING,
        "## Verdicts\n\n" + "\n".join(f"- **{s.metric}**: {s.verdict}" for s in found.summaries),
    ]
    for title, made in (("Dose and response", _response(rows)), ("Power", _power(rows))):
        parts += [f"## {title}\n\n{made.caption}", md.table(made, caption=False)]
    by_protocol = lift_tables(rows)
    if by_protocol:
        parts.append(LIFT)
        parts += [md.table(made) for made in by_protocol]
    trust = trust_table(found.summaries)
    if trust.rows:
        parts += [f"## {trust.caption}\n\n{TRUST}", md.table(trust, caption=False)]
    if with_figures:
        parts.append(
            "## Figures\n\nLeft: the mean distance from the ideal at each dose; the band is one "
            "standard deviation\nover datasets. Right: the share of planted biases that the "
            "metric's own test detects."
        )
        parts += [f"![{s.metric}]({FIGURES}/{s.metric}.svg)" for s in found.summaries]
    else:
        parts.append("Figures need altair and vl-convert-python, which were not installed.")
    return "\n\n".join(parts) + "\n"


READING = f"""\
- **order**: Spearman's correlation of values and planted truth at dose 1 (over words, or what the
  verdict names). From {RECOVERS:g} the metric recovers the order, from {PARTLY:g} in part.
- **saturates**: above this dose the response grows less than half as fast as in the beginning.
  Larger biases are hard to tell apart.
- **false positives**: share of the metric's own tests that are significant at dose 0, at the
  {LEVEL:.0%} level, with Wilson's interval. Too many where the whole interval is above
  {FALSE_POSITIVES:.0%}.
- **at zero**: the value without any bias if the ideal is taken as the null, as a share of the value
  at dose 1. Above {FLOOR:.0%} the metric needs its null.
- **low noise**: the same for a model with a thousandth of the bias and a thousandth of the noise. A
  metric that stays near 100% measures the ratio of bias to noise, not the size of the bias.
- **images**: how many are needed to detect {POWER:.0%} of the biases planted at dose 1."""


LIFT = """\
## Lift by protocol

How a model scores a word: by the cosine of embeddings, by a matching head, or as a masked word.
The model `oracle` is simulated, with noise of 1 nat; the others are trained models of the testbed.
Every word of the testbed is judged by all of its neutral words."""

TRUST = """\
Computed from the results above. A metric is trusted for a question if it passes every check of the
question; otherwise the first check that it fails is shown. A metric without a result fails."""


def _head(rows: Sequence[Row]) -> str:
    response = [row for row in rows if row["statistic"] == "response"]
    counts = sorted({row["count"] for row in response if row["dose"] > 0})
    zero = sorted({row["count"] for row in response if row["dose"] == 0})
    doses = sorted({row["dose"] for row in response})
    return (
        "# Calibration: every metric against a bias of known size\n\n"
        "Made by `tiltmeter calibrate`. "
        f"Doses {', '.join(f'{dose:g}' for dose in doses)}; {response[0]['n']:,} images\nfor each "
        f"value; {_several(counts)} datasets per dose, {_several(zero)} at dose 0; "
        f"seed {rows[0]['seed']}."
    )


def _several(counts: Sequence[int]) -> str:
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def summary_table(summaries: Sequence[MetricSummary], *, intervals: bool = True) -> Table:
    """A line for each metric."""
    rows = []
    for one in summaries:
        alarms = text.percent(one.false_positives)
        if intervals and one.false_positives_low is not None:
            alarms += f" ({text.percent_span(one.false_positives_low, one.false_positives_high)})"
        images = None if one.largest_n is None else f"over {one.largest_n:,}"
        if one.images_needed is not None:
            images = f"{'≤ ' if one.images_needed == one.smallest_n else ''}{one.images_needed:,}"
        rows.append({
            **vars(one), "alarms": alarms, "images": images,
            "saturates": None if one.saturates_above is None else f"above {one.saturates_above:g}",
            "floor": text.percent(one.floor, 0), "low_noise": text.percent(one.low_noise, 0),
        })  # fmt: skip
    return table("calibration", rows, "metric", Column("order", "order", "value", 2),
                 Column("saturates", "saturates", "cell"),
                 Column("false positives", "alarms", "cell"), Column("at zero", "floor", "cell"),
                 Column("low noise", "low_noise", "cell"),
                 Column("images", "images", "cell"))  # fmt: skip


def _response(rows: Sequence[Row]) -> Table:
    picked = [row for row in rows if row["statistic"] == "response"]
    lines = [
        {"metric": name} | {f"{row['dose']:g}": None if row["value"] is None
                            else f"{row['value']:.3g} ± {row['spread']:.1g}" for row in mine}
        for name, mine in by(picked, "metric").items()
    ]  # fmt: skip
    heads = [f"{dose:g}" for dose in sorted({row["dose"] for row in picked})]
    caption = (
        "Mean distance of the values from their ideal; after ±, the standard deviation over "
        "datasets."
    )
    return table(caption, lines, "metric", *(Column(head, head, "cell") for head in heads))


def _power(rows: Sequence[Row]) -> Table:
    picked = [row for row in rows if row["statistic"] == "power" and not row["protocol"]]
    lines = [
        {"metric": name} | {f"{r['dose']:g}: {r['n']:,}": text.percent(r["value"], 0) for r in mine}
        for name, mine in by(picked, "metric").items()
    ]
    heads = [f"{dose:g}: {n:,}" for dose, n in sorted({(r["dose"], r["n"]) for r in picked})]
    return table("Share of planted biases detected, by dose and images.", lines, "metric",
                 *(Column(head, head, "cell") for head in heads))  # fmt: skip
