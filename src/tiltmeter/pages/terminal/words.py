"""What the terminal shows of So-B-IT's tables and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Paragraph, Part, Row, table
from tiltmeter.pages.selection import beats, by
from tiltmeter.pages.terminal.audit import ASSURANCE
from tiltmeter.pages.terminal.layout import show
from tiltmeter.pages.terminal.probes import strengths
from tiltmeter.papers.sobit_tables import tables

__all__ = ["tables", "words"]

MOST = 2  # groups named for a word's top k
FARTHEST = 10  # words whose top k is shown


def words(by_model: Mapping[str | None, dict[str, list[Row]]]) -> None:
    """Prints what `tables` found: what several models share first, then each model by itself."""
    several = len(by_model) > 1
    means = [row for found in by_model.values() for row in found["category_means"]]
    shown: list[Part] = []
    for attribute, rows in by(means, "attribute").items():
        shown += _means(attribute, rows)
    for model, found in by_model.items():
        mine: list[Part] = []
        for name, make in (("top_words", _top_words), ("heat", _heat),
                           ("composition", _composition), ("changes", _changes)):  # fmt: skip
            for attribute, rows in by(found[name], "attribute").items():
                mine += make(attribute, rows)
        mine += strengths(found["strength"])
        if several and mine:
            shown.append(Paragraph(f"\n{model}", "strong"))
        shown += mine
    if not shown:
        shown.append("The run has no rows of words for this: tiltmeter audit --words sobit")
    show(*shown)


def _means(attribute: str, rows: list[Row]) -> Iterator[Part]:
    several = len({row["model"] for row in rows}) > 1
    metric = text.metric_name(rows[0]["metric"], rows[0]["k"])
    title = f"{attribute}: {metric}, mean over each category's words"
    yield table(f"{title} (ideal {rows[0]['ideal']:.3f})",
                sorted(rows, key=lambda row: (row["model"], row["value"])), "category",
                *["model"] * several, col.VALUE, col.INTERVAL, col.NULL,
                replace(col.P_ADJUSTED, head="p adj."))  # fmt: skip


def _top_words(attribute: str, rows: list[Row]) -> Iterator[Part]:
    named = [{**row, "word": row["concept"] + _sign(row.get("valence"))} for row in rows]
    yield table(f"{attribute}: the words nearest to each group (C-ASC)", named,
                Column("category", "category", width=14, merged=True),
                Column("group", "group", width=17), Column("word", "word", width=18),
                Column("C-ASC", "value", "signed", 2), *ASSURANCE)  # fmt: skip
    if any("valence" in row for row in rows):
        yield Paragraph("By the lexicon: (+) pleasant, (-) unpleasant.", "weak")


def _sign(valence: float | None) -> str:
    """Pleasant and unpleasant thirds of the scale."""
    if valence is None or 1 / 3 <= valence <= 2 / 3:
        return ""
    return " (+)" if valence > 2 / 3 else " (-)"


def _heat(attribute: str, rows: list[Row]) -> Iterator[Part]:
    """Words side by side, one line per group."""
    for experiment, mine in by(rows, "experiment").items():
        listed = dict.fromkeys(row["concept"] for row in mine)
        words = [Column(word, f"word {word}", "cell", width=9) for word in listed]
        lines: dict[str, Row] = {}
        for row in mine:
            line = lines.setdefault(row["group"], {"group": row["group"]})
            star = "*" if beats(row) and beats(row, "p_placebo") else " "
            line[f"word {row['concept']}"] = text.number(row["value"], 2, signed=True) + star
        title = f"{attribute}: C-ASC of the {experiment} (* p adj. and p neutr. ≤ .05)"
        yield table(title, list(lines.values()), Column("group", "group", width=24), *words)


def _composition(attribute: str, rows: list[Row]) -> Iterator[Part]:
    """Words whose top k is farthest from the images, then categories."""

    def far(mine: list[Row]) -> float:
        return float(sum(abs(row["value"] - row["ideal"]) for row in mine))

    by_word = by(rows, "concept", "category")
    of_words = sorted((m for (word, _), m in by_word.items() if word), key=far, reverse=True)
    unlike = {mine[0]["concept"]: mine for mine in reversed(of_words)}  # one line per word
    of_words = sorted(unlike.values(), key=far, reverse=True)[:FARTHEST]
    lines = []
    for mine in [*of_words, *(m for (word, _), m in by_word.items() if not word)]:
        above = [row for row in mine if row["value"] > row["ideal"]]
        best = sorted(above, key=lambda row: row["ideal"] - row["value"])[:MOST]
        name = mine[0]["concept"] or f"all {mine[0]['category']}"
        lines.append({"word": name, "groups": ", ".join(map(_share, best))})
    title = f"{attribute}: groups above their share in the top {rows[0]['k']} (by chance)"
    yield table(title, lines, Column("word", "word", width=20), "groups")


def _share(row: Row) -> str:
    shown = f"{row['group']} {row['value']:.0%}"
    if row["null_low"] is None:
        return shown
    return f"{shown} ({row['null_low']:.0%} to {row['null_high']:.0%})"


def _changes(attribute: str, rows: list[Row]) -> Iterator[Part]:
    named = [{**row, "tone": "strong" if row["direction"] == "worse" else ""} for row in rows]
    yield table(f"{attribute}: words whose C-ASC changed most", named,
                Column("group", "group", width=18, merged=True),
                Column("word", "concept", width=14), Column("before", "before", "signed", 2),
                Column("after", "after", "signed", 2), Column("change", "difference", "signed", 2),
                replace(col.INTERVAL, head="95% int.", digits=2),
                Column("q", "p_bh", "p"))  # fmt: skip
