"""What the terminal shows of an audit of captions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Paragraph, Row, table
from tiltmeter.pages.selection import farthest_words, present
from tiltmeter.pages.terminal.layout import STRONGEST, show
from tiltmeter.results import Run


def captions_summary(run: Run) -> dict[str, Any]:
    """An audit of captions for machines: what was read, and the words most associated."""
    return {
        **run.meta["data"]["captions"],
        "words": run.meta["words"],
        "seed": run.meta["seed"],
        "rows": run.table.num_rows,
        "leaning": [present(row) for row in _strongest(run)],
        "correlations": [present(row) for row in run.where(metric="spearman")],
    }


def captions(run: Run) -> None:
    """Words associated with women or men in a corpus, and whether a model agrees with them."""
    corpus = run.meta["data"]["captions"]
    broken = list(corpus["broken"].values())
    show(
        Paragraph(
            f"{corpus['name']}: {corpus['captions']:,} captions of "
            f"{text.plural(corpus['files'] - len(broken), 'file')}, "
            f"{run.meta['words']['distinct']:,} words",
            "strong",
        ),
        *(f"Left out: {reason}" for reason in broken[:STRONGEST]),
    )
    if len(broken) > STRONGEST:
        show(f"Left out: {len(broken) - STRONGEST:,} more files")
    shares = {row["concept"]: row for row in run.where(experiment="pronoun both", group="female")}
    counts = {row["concept"]: row["n_group"] for row in run.where(metric="frequency")}
    rows = [
        {**row, "captions": counts[row["concept"]], "she": shares[row["concept"]]["value"],
         "n_she": shares[row["concept"]]["n"]}
        for row in _strongest(run)
    ]  # fmt: skip
    show(
        table("words most associated with women (above 0) or men (below)", rows,
              Column("word", "concept", width=24), Column("captions", "captions", "count"),
              Column("log-odds", "value", "signed", 2), replace(col.INTERVAL, digits=2),
              Column("she, of she + he", "she", "percent"), Column("n", "n_she", "count"))
    )  # fmt: skip
    if found := run.where(metric="spearman"):
        show(
            table("does the data explain the model? (Spearman over words)", found,
                  ("experiment", "corpus ~ model"), "group", replace(col.VALUE, head="rho"),
                  replace(col.INTERVAL, digits=2), Column("words", "n", "count"))
        )  # fmt: skip
        for note in dict.fromkeys(row["note"] for row in found if row["note"]):
            show(Paragraph(f"Undefined: {note}.", "weak"))


def _strongest(run: Run) -> list[Row]:
    """The words farthest from 0, from women's to men's."""
    found = farthest_words(run.where(metric="log_odds"))
    women, men = ([row for row in found if (row["value"] > 0) == above] for above in (True, False))
    return [*women[:STRONGEST], *reversed(men[:STRONGEST])]
