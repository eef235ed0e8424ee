"""What the terminal shows of an audit of captions."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Paragraph, table
from tiltmeter.pages.sections.captions import (
    COMPARED,
    WITH_MODEL,
    more_often,
    slope_sentences,
    times,
)
from tiltmeter.pages.selection import present
from tiltmeter.pages.terminal.layout import STRONGEST, show
from tiltmeter.results import PLACEBO, Run

REASONS = 3  # shown, the most frequent first


def captions_summary(run: Run) -> dict[str, Any]:
    """An audit of captions for machines: what was read, words by group, and slopes."""
    often = [row for mine in more_often(run).values() for row in mine[:STRONGEST]]
    return {
        **run.meta["data"]["captions"],
        "words": run.meta["words"],
        "seed": run.meta["seed"],
        "rows": run.table.num_rows,
        "more_often": [present(row) for row in often],
        "slopes": slope_sentences(run),
        "compared": [present(row) for name in COMPARED for row in run.where(metric=name)],
    }


def captions(run: Run) -> None:
    """Words that occur more often with a group, and whether a model repeats it."""
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
    counts = {row["concept"]: row["n_group"] for row in run.where(metric="frequency")}
    often = more_often(run)
    rows = [
        {**row, "captions": counts[row["concept"]], "times": times(row["value"]),
         "interval": f"{times(row['ci_low'])} to {times(row['ci_high'])}"}
        for mine in often.values() for row in mine[:STRONGEST]
    ]  # fmt: skip
    if rows:
        reference = run.meta["neutral"].get(rows[0]["experiment"], 0)
        against = (
            f"{reference} neutral words"
            if reference
            else "all captions: few neutral words occur in them"
        )
        show(
            table("words that occur more often with a group", rows,
                  Column("group", "group", merged=True), Column("word", "concept", width=24),
                  Column("captions", "captions", "count"), Column("as often", "times"),
                  Column("95% interval", "interval"),
                  Column("n, one group named", "n", "count")),
            Paragraph(f"Compared with {against}.", "weak"),
        )  # fmt: skip
    else:
        show("No word occurs significantly more often with one group.")
        for (attribute, note), words in _reasons(run).most_common(REASONS):
            show(Paragraph(f"  {attribute}, {text.plural(words, 'word')}: {note}", "weak"))
    if sentences := slope_sentences(run):
        show(Paragraph("\nlift in the model against lift in these captions", "strong"))
        show(*sentences)
        if run.where(metric="ceiling"):
            show(Paragraph(WITH_MODEL, "weak"))


def _reasons(run: Run) -> Counter[tuple[str, str]]:
    """Why words have no lift, or none that is significant: words by attribute and reason."""
    reasons = {
        (row["attribute"], row["concept"]): row["note"]
        if row["value"] is None
        else "not beyond chance"
        for row in run.where(metric="lift")
        if row["concept"] and row["category"] != PLACEBO
    }
    return Counter((attribute, note) for (attribute, _), note in reasons.items())
