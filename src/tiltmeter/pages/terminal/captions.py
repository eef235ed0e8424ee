"""What the terminal shows of an audit of captions."""

from __future__ import annotations

from typing import Any

from tiltmeter.pages.terminal.layout import (
    STRONGEST,
    Row,
    console_of,
    interval,
    number,
    present,
    table_of,
)
from tiltmeter.results import Run


def captions_summary(run: Run) -> dict[str, Any]:
    """An audit of captions in short: what was read, and the words that lean most."""
    return {
        **run.meta["data"]["captions"],
        "words": run.meta["words"],
        "seed": run.meta["seed"],
        "rows": run.table.num_rows,
        "leaning": [present(row) for row in _leaning(run)],
        "correlations": [present(row) for row in run.where(metric="spearman")],
    }


def captions(run: Run) -> None:
    """Words that lean to women or men in a corpus, and whether a model leans with them."""
    console = console_of()
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
    table = table_of("words that lean most: to women above 0, to men below", "word", "captions",
                   "log-odds", "95% interval", "she, of she + he", "n")  # fmt: skip
    table.columns[0].max_width = 24
    counts = {row["concept"]: row["n_group"] for row in run.where(metric="frequency")}
    for row in _leaning(run):
        share = shares[row["concept"]]
        table.add_row(
            row["concept"],
            f"{counts[row['concept']]:,}",
            f"{row['value']:+.2f}",
            interval(row["ci_low"], row["ci_high"], digits=2),
            "-" if share["value"] is None else f"{share['value']:.1%}",
            f"{share['n']:,}",
        )
    console.print(table)
    if rows := run.where(metric="spearman"):
        table = table_of("does the data explain the model? (Spearman over words)", "corpus ~ model",
                       "group", "rho", "95% interval", "words", left=2)  # fmt: skip
        for row in rows:
            table.add_row(row["experiment"], row["group"], number(row["value"]),
                          interval(row["ci_low"], row["ci_high"], digits=2),
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
