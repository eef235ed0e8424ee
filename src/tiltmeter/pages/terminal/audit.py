"""What the terminal shows of an audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tiltmeter.pages.terminal import probes
from tiltmeter.pages.terminal.layout import (
    SHORT,
    STRONGEST,
    Row,
    by,
    console_of,
    interval,
    label,
    number,
    p_value,
    present,
    table_of,
)
from tiltmeter.pages.text import plural
from tiltmeter.papers import sobit
from tiltmeter.papers.published import beside, told
from tiltmeter.results import Run, over_templates
from tiltmeter.stats.placebo import ESTABLISHED, FEWEST_PLACEBOS, NOT_ESTABLISHED, PERMUTATION_ONLY

#: Measures of several models together.
TOGETHER = {"rho_mean": "mean rho", "size_trend": "with size", "vlbs_change": "vlbs",
            "pearson": "correlation"}  # fmt: skip


def summary(run: Run) -> dict[str, Any]:
    """The run in short: what it was made of, its totals, and what it established."""
    associations = _associations(_concepts(run))
    return {
        **{
            name: run.meta[name]
            for name in ("model", "data", "convention", "seed", "failed")
            if name in run.meta
        },
        "rows": run.table.num_rows,
        "verdicts": dict(Counter(row["verdict"] for row in associations if row["verdict"])),
        "overall": [present(row) for row in _overall(run)],
        "established": [present(row) for row in associations if row["verdict"] == ESTABLISHED],
    }


def run(run: Run) -> None:
    """The tables of an audit."""
    console = console_of()
    meta = run.meta
    if faces := meta["data"].get("faces"):
        said = meta["prompts"]
        prompts = f", {said['words']:,} prompts, {said['placebos']:,} placebos"
        prompts = prompts if said["words"] else ""
        console.print(
            f"{meta['model']['name']} on {faces['name']}: "
            f"{faces['images']:,} images{prompts}; convention {meta['convention']['name']}",
            style="bold",
        )
    _data_notes(console, meta["data"])
    concepts = _concepts(run)
    for attribute in dict.fromkeys(row["attribute"] for row in concepts):
        mine = [row for row in concepts if row["attribute"] == attribute]
        console.print(
            _totals(attribute, [r for r in _overall(run) if r["attribute"] == attribute], mine)
        )
        console.print(_strongest(attribute, _associations(mine)))
        for row in run.where(metric="spearman", attribute=attribute, probe="ranking"):
            console.print(
                f"C-ASC orders {row['n']:,} words and groups as planted: Spearman "
                f"{row['value']:.3f} ({interval(row['ci_low'], row['ci_high'])})"
            )
    if concepts:
        console.print(_counts(_associations(concepts)))
    if useful := [row for row in run.table.to_pylist() if row["metric"] in ("accuracy", "recall")]:
        console.print(probes.usefulness([row for row in useful if row["target"] is None]))
    for attribute, found in by(run.where(probe="harms"), "attribute"):
        console.print(probes.harms(attribute, found))
    if tests := [row for row in run.where(metric="weat") if row["probe"] != "ranking"]:
        console.print(probes.associations(tests))
    if choices := run.where(probe="stereotype", category=None):
        console.print(probes.choices(choices))
    for table in probes.propagated(run.where(probe="propagation")):
        console.print(table)
    for shown in probes.hidden_words(run.where(probe="counterfactual")):
        console.print(shown)
    for shown in probes.strengths(run.where(probe="strength")):
        console.print(shown)
    for row in beside(run):
        console.print(told(row))
    for name, reason in meta["not_run"].items():
        console.print(f"Not run: {name} {reason}.", style="dim")
    for name, reason in meta.get("failed", {}).items():
        console.print(f"Failed: {name}: {reason}.", style="bold")


def panel(run: Run) -> None:
    """Ranks of the models, and how far each measure spreads."""
    console = console_of()
    ranks = run.where(probe="panel", experiment="rank among models")
    for attribute in dict.fromkeys(row["attribute"] for row in ranks):
        title = f"{attribute}: rank among models, 1 the least tilted (mean over words)"
        table = table_of(title, "model", "metric", "rank", "95% interval", left=2)
        for row in ranks:
            if row["attribute"] == attribute:
                table.add_row(
                    row["model"],
                    label(row["metric"], row["k"]),
                    f"{row['value']:g}",
                    interval(row["ci_low"], row["ci_high"], digits=0),
                )
        console.print(table)
    table = table_of("spread (standard deviation of the mean over words)", "over", "attribute",
                   "metric", "value", "n", left=3)  # fmt: skip
    for row in run.table.to_pylist():
        if (row["experiment"] or "").startswith("spread over ") and row["group"] is None:
            over = row["experiment"].removeprefix("spread over ")
            metric = label(row["metric"], row["k"])
            table.add_row(over, row["attribute"], metric, number(row["value"]), str(row["n"]))
    if table.row_count:
        console.print(table)
    together = [r for r in run.where(probe="panel", category=None) if r["metric"] in TOGETHER]
    if together:
        table = table_of("over models", "what", "measure", "value", "95% interval", "p", "n",
                         left=2)  # fmt: skip
        for row in together:
            table.add_row(
                row["experiment"],
                TOGETHER[row["metric"]],
                number(row["value"]),
                interval(row["ci_low"], row["ci_high"]),
                p_value(row["p"]),
                f"{row['n']:,}",
            )
        console.print(table)


def saved(place: Path) -> None:
    """Where the run is kept."""
    console_of(soft_wrap=True).print(f"Kept in {place} (results.parquet, run.json).")


def _data_notes(console: Console, data: Mapping[str, Mapping[str, Any]]) -> None:
    """Pictures that are missing or could not be read."""
    for one in data.values():
        missing = one.get("found", {}).get("missing", {}).get("count", 0)
        unreadable = one.get("unreadable", {"count": 0, "first": []})
        if missing or unreadable["count"]:
            named = f" ({', '.join(unreadable['first'])})" if unreadable["first"] else ""
            console.print(
                f"{one['name']}: {missing:,} listed pictures are not there, "
                f"{unreadable['count']:,} could not be read{named}; these are left out."
            )


def _totals(attribute: str, overall: list[Row], concepts: list[Row]) -> Table:
    """Means over all words, by metric; where there is one word, its own figures."""
    table = table_of(f"{attribute}: mean over words", "metric", "value", "95% interval",
                   "without tilt", "p")  # fmt: skip
    for row in overall or [row for row in concepts if row["group"] is None]:
        if row["group"] is not None:
            continue
        table.add_row(
            label(row["metric"], row["k"]),
            number(row["value"]),
            interval(row["ci_low"], row["ci_high"]),
            interval(row["null_lo"], row["null_hi"]),
            p_value(row["p"]),
        )
    return table


def _strongest(attribute: str, rows: list[Row]) -> Table:
    order = {ESTABLISHED: 0, PERMUTATION_ONLY: 1}
    rows = sorted(
        (row for row in rows if row["value"] is not None),
        key=lambda row: (order.get(row["verdict"], 2), -abs(row["value"])),
    )[:STRONGEST]
    known = any(row["truth"] is not None for row in rows)
    columns = ["word", "group", "n", "C-ASC", *(["planted"] if known else []), "95% int.", "p maxT"]
    title = f"{attribute}: strongest associations (C-ASC)"
    table = table_of(title, *columns, "p plac.", "tilt", left=2)
    table.columns[0].max_width, table.columns[1].max_width = 18, 26
    for column in table.columns[2:]:
        column.no_wrap = True  # names are folded before a number is cut
    for row in rows:
        truth = "-" if row["truth"] is None else f"{row['truth']:+.2f}"
        table.add_row(
            row["concept"],
            row["group"],
            f"{row['n_group']:,}",
            f"{row['value']:+.2f}",
            *([truth] if known else []),
            interval(row["ci_low"], row["ci_high"], digits=2),
            p_value(row["p_fwer"]),
            p_value(row["p_placebo"]),
            SHORT.get(row["verdict"], "-"),
            style="bold" if row["verdict"] == ESTABLISHED else "",
        )
    return table


def _counts(rows: list[Row]) -> str:
    count = Counter(row["verdict"] for row in rows)
    if not any(count[name] for name in SHORT):
        return (
            f"No verdicts: these take p-values and at least {FEWEST_PLACEBOS} placebos of the same "
            "part of speech in the same templates."
        )
    unjudged = len(rows) - sum(count[name] for name in SHORT)
    sure, weak, none = (count[name] for name in (ESTABLISHED, PERMUTATION_ONLY, NOT_ESTABLISHED))
    told = [
        f"{sure:,} {'is' if sure == 1 else 'are'} established (yes)",
        f"{weak:,} {'beats' if weak == 1 else 'beat'} the permutation null but "
        f"{'does' if weak == 1 else 'do'} not stand out from neutral words (perm.)",
        f"{none:,} {'does' if none == 1 else 'do'} not beat the null (no)",
    ]
    if unjudged:
        have = "has" if unjudged == 1 else "have"
        told.append(f"{unjudged:,} {have} too few placebos to judge (-)")
    return f"\nOf {plural(len(rows), 'association')} (C-ASC, word x group), {'; '.join(told)}."


def _concepts(run: Run) -> list[Row]:
    """Rows of words, with all their templates; not placebos, categories or totals."""
    return over_templates(row for row in run.where(probe="ranking") if row["concept"])[0]


def _associations(concepts: list[Row]) -> list[Row]:
    return sobit.without_mirrors([row for row in concepts if row["metric"] == "c_asc"])


def _overall(run: Run) -> list[Row]:
    rows = run.where(concept=None, category=None, factor=None, target=None)
    return [row for row in rows if row["probe"] == "ranking" and row["metric"] != "spearman"]
