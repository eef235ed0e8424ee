"""What the terminal shows of an audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiltmeter.datasets.found_images import describe_missing
from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.lift_findings import lift_classes
from tiltmeter.pages.model import Column, Paragraph, Part, Row, table
from tiltmeter.pages.selection import by, present, strongest
from tiltmeter.pages.terminal import probes
from tiltmeter.pages.terminal.layout import STRONGEST, show
from tiltmeter.papers import sobit
from tiltmeter.papers.published import describe, published_rows
from tiltmeter.results import Run, over_templates
from tiltmeter.stats.lift_verdict import ASSOCIATED
from tiltmeter.stats.placebo import BEYOND

#: Measures of several models together.
TOGETHER = {"rho_mean": "mean rho", "size_trend": "with size", "vlbs_change": "vlbs",
            "pearson": "correlation"}  # fmt: skip
#: How sure a C-ASC is, in few characters.
ASSURANCE = (
    replace(col.INTERVAL, head="95% int.", digits=2),
    replace(col.P_ADJUSTED, head="p adj."),
    replace(col.P_NEUTRAL, head="p neutr."),
)


def summary(run: Run) -> dict[str, Any]:
    """The run for machines: what it was made of, verdicts of lift, totals, words by C-ASC."""
    associations = _associations(_concepts(run))
    return {
        **{
            name: run.meta[name]
            for name in ("model", "data", "convention", "seed", "failed")
            if name in run.meta
        },
        "rows": run.table.num_rows,
        "lift": [present(row) for row in run.where(metric="lift_size")],
        "associated": [present(row) for row in run.where(metric="lift", verdict=ASSOCIATED)],
        "verdicts": dict(Counter(row["verdict"] for row in associations if row["verdict"])),
        "overall": [present(row) for row in _overall(run)],
        "c_asc_beyond_neutral_words": [
            present(row) for row in associations if row["verdict"] == BEYOND
        ],
    }


def run(run: Run) -> None:
    """The tables of an audit."""
    lifts = (part for one in lift_classes(run.rows) for part in probes.lifts(one))
    show(*_head(run.meta), *lifts, *_words(run), *probes.parts(run),
         *map(describe, published_rows(run)))  # fmt: skip
    for name, reason in run.meta["not_run"].items():
        show(Paragraph(f"Not run: {name} {reason}.", "weak"))
    for name, reason in run.meta.get("failed", {}).items():
        show(Paragraph(f"Failed: {name}: {reason}.", "strong"))


def panel(run: Run) -> None:
    """Ranks of the models, and how far each measure spreads."""
    rows = run.where(probe="panel")
    ranks = [row for row in rows if row["experiment"] == "rank among models"]
    for attribute, mine in by(ranks, "attribute").items():
        title = f"{attribute}: rank among models, 1 the least biased (mean over words)"
        show(table(title, mine, "model", col.METRIC, Column("rank", "value", "value", 0),
                   replace(col.INTERVAL, digits=0)))  # fmt: skip
    spread = [
        {**row, "over": row["experiment"].removeprefix("spread over ")}
        for row in run.rows
        if (row["experiment"] or "").startswith("spread over ") and row["group"] is None
    ]
    if spread:
        show(table("spread (standard deviation of the mean over words)", spread, "over",
                   "attribute", col.METRIC, col.VALUE, col.N))  # fmt: skip
    together = [{**row, "measure": TOGETHER[row["metric"]]} for row in rows
                if row["category"] is None and row["metric"] in TOGETHER]  # fmt: skip
    show(*probes.models_by_scores(run.where(probe="stereotype")))
    if together:
        show(table("over models", together, ("experiment", "what"), "measure", col.VALUE,
                   col.INTERVAL, Column("permuted", "null_mean", "value"), col.P,
                   col.N))  # fmt: skip


def saved(place: Path) -> None:
    """Where the run is kept."""
    show(f"Kept in {place} (results.parquet, run.json).", soft_wrap=True)


def tables(runs: Sequence[Run], together: Run) -> None:
    """The tables of every audit, and of several together."""
    for single in runs:
        run(single)
    if len(runs) > 1:
        panel(together)


def _head(meta: Mapping[str, Any]) -> Iterator[Part]:
    if faces := meta["data"].get("faces"):
        made = meta["prompts"]
        prompts = f", {made['words']:,} prompts, {made['placebos']:,} of neutral words"
        yield Paragraph(
            f"{meta['model']['name']} on {faces['name']}: {faces['images']:,} images"
            f"{prompts if made['words'] else ''}; convention {meta['convention']['name']}",
            "strong",
        )
    elif meta["data"]:  # tables of several models must name theirs
        names = text.listed([str(data.get("name")) for data in meta["data"].values()])
        yield Paragraph(f"{meta['model']['name']} on {names}", "strong")
    yield from left_out(meta)


def left_out(meta: Mapping[str, Any]) -> Iterator[str]:
    """Images that are missing, unreadable, or known to a correction."""
    for data in (meta.get("data") or {}).values():
        missing = describe_missing(data.get("found") or {})
        unreadable = data.get("unreadable") or {"count": 0, "first": []}
        if missing or unreadable["count"]:
            named = f" ({', '.join(unreadable['first'])})" if unreadable["first"] else ""
            not_read = f"{unreadable['count']:,} could not be read{named}"
            counts = [*[missing] * bool(missing), *[not_read] * bool(unreadable["count"])]
            yield f"{data['name']}: {', '.join(counts)}; left out."
        if unseen := data.get("unseen"):
            yield f"{data['name']}: {text.left_out(unseen)}."


def _words(run: Run) -> Iterator[Part]:
    """Means over words and the largest C-ASC, by attribute."""
    concepts, overall = _concepts(run), _overall(run)
    for attribute, mine in by(concepts, "attribute").items():
        means = [row for row in overall if row["attribute"] == attribute] or mine
        yield table(f"{attribute}: mean over words", [r for r in means if r["group"] is None],
                    col.METRIC, col.VALUE, col.INTERVAL, col.NULL, col.P)  # fmt: skip
        found = strongest([row for row in _associations(mine) if row["value"] is not None])
        found = found[:STRONGEST]
        planted = [replace(col.PLANTED, kind="signed", digits=2)]
        planted *= any(row["truth"] is not None for row in found)
        yield table(f"{attribute}: largest C-ASC", found,
                    Column("word", "concept", width=18), Column("group", "group", width=26),
                    Column("n", "n_group", "count"), Column("C-ASC", "value", "signed", 2),
                    *planted, *ASSURANCE)  # fmt: skip
        for row in run.where(metric="spearman", attribute=attribute, probe="ranking"):
            yield (
                f"C-ASC orders {row['n']:,} words and groups as planted: Spearman "
                f"{row['value']:.3f} ({text.span(row['ci_low'], row['ci_high'])})"
            )


def _concepts(run: Run) -> list[Row]:
    """Rows of words, over all their templates; not neutral words, categories or totals."""
    return over_templates(row for row in run.where(probe="ranking") if row["concept"])[0]


def _associations(concepts: list[Row]) -> list[Row]:
    return sobit.without_mirrors([row for row in concepts if row["metric"] == "c_asc"])


def _overall(run: Run) -> list[Row]:
    rows = run.where(concept=None, category=None, factor=None, target=None)
    return [row for row in rows if row["probe"] == "ranking" and row["metric"] != "spearman"]
