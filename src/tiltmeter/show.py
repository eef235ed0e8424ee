"""What the terminal shows of results: tables that fit 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tiltmeter.doctor import Finding
from tiltmeter.embedding import Embedded
from tiltmeter.metrics.convention import CHOICES, Convention
from tiltmeter.planning import AttributePlan
from tiltmeter.results import Run
from tiltmeter.stats.placebo import (
    ESTABLISHED,
    FEWEST_PLACEBOS,
    NOT_ESTABLISHED,
    PERMUTATION_ONLY,
)

if TYPE_CHECKING:
    from tiltmeter.calibration.verdict import Summary

STRONGEST = 8  # findings shown for each attribute
SHORT = {ESTABLISHED: "yes", PERMUTATION_ONLY: "perm.", NOT_ESTABLISHED: "no"}
LABELS = {"c_asc": "C-ASC", "max_skew": "MaxSkew", "min_skew": "MinSkew", "ndkl": "NDKL",
          "normalized_entropy": "entropy"}  # fmt: skip

Row = dict[str, Any]


def summary(run: Run) -> dict[str, Any]:
    """The run in short: what it was made of, its totals, and what it established."""
    concepts = _concepts(run)
    return {
        **{
            name: run.meta[name]
            for name in ("model", "data", "convention", "seed")
            if name in run.meta
        },
        "rows": run.table.num_rows,
        "verdicts": dict(Counter(row["verdict"] for row in concepts if row["verdict"])),
        "overall": [_present(row) for row in _overall(run)],
        "established": [_present(row) for row in concepts if row["verdict"] == ESTABLISHED],
    }


def run(run: Run) -> None:
    """The tables of an audit."""
    console = _console()
    meta = run.meta
    if faces := meta["data"].get("faces"):
        console.print(
            f"{meta['model']['name']} on {faces['name']}: "
            f"{faces['images']:,} images, {meta['prompts']['words']:,} prompts, "
            f"{meta['prompts']['placebos']:,} placebos; convention {meta['convention']['name']}",
            style="bold",
        )
    _data_notes(console, meta["data"])
    concepts = _concepts(run)
    for attribute in dict.fromkeys(row["attribute"] for row in concepts):
        mine = [row for row in concepts if row["attribute"] == attribute]
        console.print(
            _totals(attribute, [r for r in _overall(run) if r["attribute"] == attribute], mine)
        )
        console.print(_strongest(attribute, [row for row in mine if row["metric"] == "c_asc"]))
        for row in run.where(metric="spearman", attribute=attribute, probe="ranking"):
            console.print(
                f"C-ASC orders {row['n']:,} words and groups as planted: Spearman "
                f"{row['value']:.3f} ({_interval(row['ci_low'], row['ci_high'])})"
            )
    if concepts:
        console.print(_counts(concepts))
    if useful := [row for row in run.table.to_pylist() if row["metric"] in ("accuracy", "recall")]:
        console.print(_usefulness([row for row in useful if row["target"] is None]))
    for attribute, found in _by(run.where(probe="harms"), "attribute"):
        console.print(_harms(attribute, found))
    if tests := run.where(metric="weat"):
        console.print(_associations(tests))
    for name, reason in meta["not_run"].items():
        console.print(f"Not run: {name} {reason}.", style="dim")


def panel(run: Run) -> None:
    """Ranks of the models, and how far each measure spreads."""
    console = _console()
    ranks = run.where(probe="panel", experiment="rank among models")
    for attribute in dict.fromkeys(row["attribute"] for row in ranks):
        title = f"{attribute}: rank among models, 1 the least tilted (mean over words)"
        table = _table(title, "model", "metric", "rank", "95% interval", left=2)
        for row in ranks:
            if row["attribute"] == attribute:
                table.add_row(
                    row["model"],
                    _label(row["metric"], row["k"]),
                    f"{row['value']:g}",
                    _interval(row["ci_low"], row["ci_high"], digits=0),
                )
        console.print(table)
    table = _table("spread (standard deviation of the mean over words)", "over", "attribute",
                   "metric", "value", "n", left=3)  # fmt: skip
    for row in run.table.to_pylist():
        if (row["experiment"] or "").startswith("spread over ") and row["group"] is None:
            over = row["experiment"].removeprefix("spread over ")
            label = _label(row["metric"], row["k"])
            table.add_row(over, row["attribute"], label, _number(row["value"]), str(row["n"]))
    console.print(table)


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


def _usefulness(rows: list[Row]) -> Table:
    """What the model is good for."""
    table = _table("utility", "figure", "data", "value", "95% interval", "by chance", "n", left=2)
    for row in rows:
        what = f"{row['metric']}@{row['k']} {row['experiment'] or ''}".strip()
        table.add_row(
            what if row["metric"] == "recall" else "zero-shot accuracy",
            row["dataset"],
            _number(row["value"]),
            _interval(row["ci_low"], row["ci_high"]),
            _number(row["null_mean"]),
            f"{row['n']:,}",
        )
    return table


def saved(place: Path) -> None:
    """Where the run is kept."""
    _console(soft_wrap=True).print(f"Kept in {place} (results.parquet, run.json).")


def embedded(done: Embedded, found: Sequence[str], store: Path) -> None:
    """What an embedding did."""
    console = _console(soft_wrap=True)
    for line in found:
        console.print(line)
    count = len(done.rows)
    console.print(
        f"{done.new:,} pictures embedded at {done.rate:,.1f} a second and kept in {store}; "
        f"{count - done.new:,} were there already, or are copies."
    )
    if done.unreadable:
        console.print(f"{len(done.unreadable):,} could not be read and are left out:")
        for reason in list(done.unreadable.values())[:STRONGEST]:
            console.print(f"  {reason}")


def spaces(found: Sequence[Mapping[str, Any]]) -> None:
    """What a store holds."""
    table = _table("store", "model", "space", "pictures", "dimensions", "MB", left=2)
    for one in found:
        table.add_row(one["model"], one["space"], f"{one['pictures']:,}", str(one["dimensions"]),
                      f"{one['bytes'] / 1e6:,.1f}")  # fmt: skip
    _console().print(table)


def plan(
    plans: Sequence[AttributePlan],
    *,
    images: int,
    words: int,
    power: float,
    convention: Convention,
) -> None:
    """Smallest effects and noise floors."""
    console = _console()
    console.print(
        f"{images:,} images; effects found in {power:.0%} of audits at the 5% level, for one word "
        f"and for any of {words:,} words (Bonferroni). C-ASC is in standard deviations."
    )
    for one in plans:
        table = _table(one.attribute, "group", "images", "share", "one word", "any word")
        for group in one.groups:
            table.add_row(
                group.name, f"{group.n:,}", f"{group.share:.1%}", f"{group.smallest:.3f}",
                f"{group.smallest_of_many:.3f}",
            )  # fmt: skip
        console.print(table)
        for floor in one.floors:
            console.print(
                f"  {_label(floor.metric, floor.k)} without any tilt: mean {floor.mean:.3f}, "
                f"97.5% below {floor.high:.3f} ({convention.name})"
            )


def catalogue(found: Mapping[str, Mapping[str, str]]) -> None:
    """Names and what they stand for."""
    console = _console()
    for kind, names in found.items():
        table = _table(kind, "name", "what it is", left=2)
        for name, text in names.items():
            table.add_row(Text(name, style="bold"), Text(text))
        console.print(table)
        if kind == "conventions" and len(found) == 1:
            for field, choices in CHOICES.items():
                table = _table(f"choices for {field}", "choice", "what it means", left=2)
                for choice, text in choices.items():
                    table.add_row(Text(choice, style="bold"), Text(text))
                console.print(table)


def findings(found: Sequence[Finding]) -> None:
    """What the doctor saw."""
    console = _console()
    signs = {True: Text("ok", "green"), False: Text("missing", "red"), None: Text("-", "dim")}
    table = _table("tiltmeter doctor", "", "what", "found", left=3)
    for finding in found:
        table.add_row(signs[finding.ok], finding.name, finding.detail)
    console.print(table)


def calibration(summaries: Sequence[Summary]) -> None:
    """A line for each metric, and what it means in words."""
    from tiltmeter.calibration import pages

    console = _console()
    table = _table("calibration", "metric", "order", "saturates", "false alarms", "at zero",
                   "quiet", "images")  # fmt: skip
    for one in summaries:
        table.add_row(*pages.cells(one))
    console.print(table)
    console.print()
    for one in summaries:
        console.print(Text.assemble((one.metric, "bold"), ": ", one.verdict))


def calibration_saved(place: Path, lacking: Sequence[str]) -> None:
    """Where the calibration is kept, and what it lacks."""
    console = _console(soft_wrap=True)
    console.print(f"Kept in {place} (calibration.parquet, calibration.md, figures).")
    if lacking:
        console.print(f"No figures: these need {' and '.join(lacking)}, not installed here.")


def _console(**options: Any) -> Console:
    """What users name is printed as it is: brackets in a label are no markup."""
    return Console(markup=False, highlight=False, emoji=False, **options)


def _totals(attribute: str, overall: list[Row], concepts: list[Row]) -> Table:
    """Means over all words, by metric; where there is one word, its own figures."""
    table = _table(f"{attribute}: mean over words", "metric", "value", "95% interval",
                   "without tilt", "p")  # fmt: skip
    for row in overall or [row for row in concepts if row["group"] is None]:
        if row["group"] is not None:
            continue
        table.add_row(
            _label(row["metric"], row["k"]),
            _number(row["value"]),
            _interval(row["ci_low"], row["ci_high"]),
            _interval(row["null_lo"], row["null_hi"]),
            _p(row["p"]),
        )
    return table


def _strongest(attribute: str, rows: list[Row]) -> Table:
    groups = {row["group"] for row in rows}
    # of two groups one mirrors the other: show the one that a word leans to
    if len(groups) == 2:
        rows = [row for row in rows if row["value"] is not None and row["value"] > 0]
    order = {ESTABLISHED: 0, PERMUTATION_ONLY: 1}
    rows = sorted(
        (row for row in rows if row["value"] is not None),
        key=lambda row: (order.get(row["verdict"], 2), -abs(row["value"])),
    )[:STRONGEST]
    known = any(row["truth"] is not None for row in rows)
    columns = ["word", "group", "C-ASC", *(["planted"] if known else []), "95% int.", "p maxT"]
    title = f"{attribute}: strongest associations (C-ASC)"
    table = _table(title, *columns, "p plac.", "tilt", left=2)
    table.columns[0].max_width, table.columns[1].max_width = 18, 26
    for row in rows:
        truth = "-" if row["truth"] is None else f"{row['truth']:+.2f}"
        table.add_row(
            row["concept"],
            row["group"],
            f"{row['value']:+.2f}",
            *([truth] if known else []),
            _interval(row["ci_low"], row["ci_high"], digits=2),
            _p(row["p_fwer"]),
            _p(row["p_placebo"]),
            SHORT.get(row["verdict"], "-"),
            style="bold" if row["verdict"] == ESTABLISHED else "",
        )
    return table


def _counts(concepts: list[Row]) -> str:
    rows = [row for row in concepts if row["metric"] == "c_asc"]
    count = Counter(row["verdict"] for row in rows)
    if not any(count[name] for name in SHORT):
        return (
            f"No verdicts: these take p-values and at least {FEWEST_PLACEBOS} placebos of the same "
            "part of speech in the same templates."
        )
    unjudged = len(rows) - sum(count[name] for name in SHORT)
    return (
        f"\nOf {len(rows):,} associations (C-ASC, word x group), {count[ESTABLISHED]:,} are "
        f"established (yes); {count[PERMUTATION_ONLY]:,} beat the permutation null but do not "
        f"stand out from neutral words (perm.); {count[NOT_ESTABLISHED]:,} do not beat the null "
        "(no)" + (f"; {unjudged:,} have too few placebos to judge (-)." if unjudged else ".")
    )


def _concepts(run: Run) -> list[Row]:
    """Rows of words, with all their templates; not placebos, categories or totals."""
    rows: list[Row] = run.table.to_pylist()
    several = {
        (row["attribute"], row["concept"]) for row in rows if row["concept"] and not row["template"]
    }
    return [
        row
        for row in rows
        if row["concept"]
        and row["category"] != "placebo"
        and not (row["template"] and (row["attribute"], row["concept"]) in several)
    ]


def _overall(run: Run) -> list[Row]:
    rows = run.where(concept=None, category=None, factor=None, target=None)
    return [row for row in rows if row["probe"] == "ranking" and row["metric"] != "spearman"]


def _present(row: Row) -> Row:
    return {name: value for name, value in row.items() if value is not None}


def _table(title: str, *columns: str, left: int = 1) -> Table:
    table = Table(
        title=Text(f"\n{title}", style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for position, name in enumerate(columns):
        table.add_column(name, justify="left" if position < left else "right")
    return table


def _label(metric: str, k: int | None) -> str:
    """MaxSkew@100."""
    return LABELS.get(metric, metric) + (f"@{k}" if k else "")


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _interval(low: float | None, high: float | None, digits: int = 3) -> str:
    if low is None or high is None:
        return "-"
    return f"{low:.{digits}f}…{high:.{digits}f}"


def _p(p: float | None) -> str:
    if p is None:
        return "-"
    return f"{p:.3f}" if p >= 0.001 else "<.001"


def captions_summary(run: Run) -> dict[str, Any]:
    """An audit of captions in short: what was read, and the words that lean most."""
    return {
        **run.meta["data"]["captions"],
        "words": run.meta["words"],
        "seed": run.meta["seed"],
        "rows": run.table.num_rows,
        "leaning": [_present(row) for row in _leaning(run)],
        "correlations": [_present(row) for row in run.where(metric="spearman")],
    }


def captions(run: Run) -> None:
    """Words that lean to women or men in a corpus, and whether a model leans with them."""
    console = _console()
    corpus = run.meta["data"]["captions"]
    broken = list(corpus["broken"].values())
    read = corpus["files"] - len(broken)
    console.print(
        f"{corpus['name']}: {corpus['captions']:,} captions of {read:,} "
        f"file{'s' if read > 1 else ''}, {run.meta['words']['distinct']:,} words",
        style="bold",
    )
    for reason in broken[:STRONGEST]:
        console.print(f"Left out: {reason}")
    if len(broken) > STRONGEST:
        console.print(f"Left out: {len(broken) - STRONGEST:,} more files")
    shares = {row["concept"]: row for row in run.where(experiment="pronoun both", group="female")}
    table = _table("words that lean most: to women above 0, to men below", "word", "captions",
                   "log-odds", "95% interval", "she, of she + he", "n")  # fmt: skip
    table.columns[0].max_width = 24
    counts = {row["concept"]: row["n_group"] for row in run.where(metric="frequency")}
    for row in _leaning(run):
        share = shares[row["concept"]]
        table.add_row(
            row["concept"],
            f"{counts[row['concept']]:,}",
            f"{row['value']:+.2f}",
            _interval(row["ci_low"], row["ci_high"], digits=2),
            "-" if share["value"] is None else f"{share['value']:.1%}",
            f"{share['n']:,}",
        )
    console.print(table)
    if rows := run.where(metric="spearman"):
        table = _table("does the data explain the model? (Spearman over words)", "corpus ~ model",
                       "group", "rho", "95% interval", "words", left=2)  # fmt: skip
        for row in rows:
            table.add_row(row["experiment"], row["group"], _number(row["value"]),
                          _interval(row["ci_low"], row["ci_high"], digits=2),
                          f"{row['n']:,}")  # fmt: skip
        console.print(table)
        for note in dict.fromkeys(row["note"] for row in rows if row["note"]):
            console.print(f"Undefined: {note}.", style="dim")


def _leaning(run: Run) -> list[Row]:
    """Words whose interval of the log-odds (by nouns) is farthest from 0, women's first."""
    by_word = {row["concept"]: row for row in run.where(metric="log_odds", experiment="noun")}
    rows = [row for row in by_word.values() if row["value"] is not None]
    women = sorted((r for r in rows if r["ci_low"] > 0), key=lambda r: (-r["ci_low"], r["concept"]))
    men = sorted((r for r in rows if r["ci_high"] < 0), key=lambda r: (r["ci_high"], r["concept"]))
    return [*women[:STRONGEST], *reversed(men[:STRONGEST])]


def _harms(attribute: str, rows: list[Row]) -> Table | str:
    """Rates of each category by group, and the largest gap between groups."""
    kinds = [row for row in rows if row["target"] == row["category"] and row["experiment"] is None]
    if not any(row["value"] for row in kinds):
        most = max(row["ci_high"] for row in kinds if row["metric"] == "group_rates")
        return (
            f"\n{attribute}: none of {kinds[0]['n']:,} images was taken for what does harm "
            f"(of no group more than {100 * most:.1f}%, with 95% confidence)."
        )
    categories = list(dict.fromkeys(row["category"] for row in kinds))
    columns = [part for name in categories for part in (f"{name} %", "95% interval")]
    table = _table(f"{attribute}: taken for what does harm", "group", "images", *columns)
    table.columns[0].max_width = 26
    for group, found in _by([row for row in kinds if row["metric"] == "group_rates"], "group"):
        cells = [(_percent(row["value"]), _percents(row)) for row in found]
        table.add_row(group, f"{found[0]['n_group']:,}", *(cell for pair in cells for cell in pair))
    gaps = [row for row in kinds if row["metric"] == "gaps"]
    cells = [(_percent(row["value"]), f"p maxT {_p(row['p_fwer'])}") for row in gaps]
    told = [cell for pair in cells for cell in pair]
    table.add_row("largest gap", f"{gaps[0]['n']:,}", *told, style="bold")
    return table


def _associations(rows: list[Row]) -> Table:
    """WEAT, SEAT and iEAT: one line a test."""
    table = _table("embedding association tests", "test", "which", "d", "95% interval",
                   "without tilt", "p", "p Holm", left=2)  # fmt: skip
    for row in rows:
        table.add_row(
            row["category"],
            row["experiment"].partition(",")[0],
            "undefined" if row["value"] is None else f"{row['value']:+.2f}",
            _interval(row["ci_low"], row["ci_high"], digits=2),
            _interval(row["null_lo"], row["null_hi"], digits=2),
            _p(row["p"]),
            _p(row["p_fwer"]),
        )
    return table


def _by(rows: list[Row], column: str) -> list[tuple[str, list[Row]]]:
    """Rows that share what stands in a column, in order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[column], []).append(row)
    return list(found.items())


def _percent(share: float | None) -> str:
    return "undefined" if share is None else f"{100 * share:.1f}"


def _percents(row: Row) -> str:
    return f"{100 * row['ci_low']:.1f}…{100 * row['ci_high']:.1f}"
