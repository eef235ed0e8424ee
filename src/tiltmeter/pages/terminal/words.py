"""What the terminal shows of So-B-IT's tables and figures: tables that fit 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tiltmeter.pages.terminal.layout import (
    SHORT,
    console_of,
    interval,
    label,
    number,
    p_value,
    table_of,
)
from tiltmeter.pages.terminal.probes import strengths
from tiltmeter.papers.sobit import (
    Row,
    attributes,
    category_means,
    category_of,
    changes,
    heat,
    leading,
    marked,
    of_category,
    top_words,
)
from tiltmeter.papers.top_composition import composition
from tiltmeter.results import Run
from tiltmeter.stats.placebo import ESTABLISHED

WIDTH = 6  # words side by side in a heat table
MOST = 2  # groups named for a word's top k
FARTHEST = 10  # words whose top k is shown


def tables(
    run: Run,
    *,
    before: Run | None = None,
    attribute: str | None = None,
    category: str | None = None,
    valence: dict[str, float] | None = None,
    many: int = 1,
) -> dict[str, list[Row]]:
    """The rows of every table, by its name; `before` is the same audit before debiasing."""
    names = [attribute] if attribute else attributes(run)
    single = [name for name in names if "*" not in name or attribute]
    whole = run
    if category:  # words lead, and change most, among those of their category
        run = of_category(run, category)
        before = None if before is None else of_category(before, category)
    found: dict[str, list[Row]] = {
        "top_words": [row for name in single for row in top_words(run, name, many=many)],
        "category_means": [row for name in single for row in category_means(run, name)],
        "heat": [row for name in names if "*" in name for row in _heat(run, before, name)],
        "composition": [row for name in names for row in composition(whole, name)],
        "strength": run.where(probe="strength", metric="strength", attribute=None),
        "changes": [],
    }
    if before is not None:
        found["changes"] = [row for row in changes(before, run) if row["attribute"] in names]
    if valence:
        found["top_words"] = marked(found["top_words"], valence)
    if category:
        of = [row for row in found["composition"] if category_of(row) == category]
        found["composition"] = of
    return found


def words(found: dict[str, list[Row]]) -> None:
    """Prints what `tables` found."""
    console = console_of()
    shown = False
    for name, table in (("category_means", _means), ("top_words", _tops), ("heat", _heats),
                        ("composition", _compositions), ("changes", _changes)):  # fmt: skip
        for attribute in dict.fromkeys(row["attribute"] for row in found[name]):
            table(console, attribute, [r for r in found[name] if r["attribute"] == attribute])
            shown = True
    if found["strength"]:
        for part in strengths(found["strength"]):
            console.print(part)
    if not shown:
        console.print("The run has no rows of words for this: tiltmeter audit --words sobit")


def _heat(run: Run, before: Run | None, crossing: str) -> list[Row]:
    """Words that lead for each group of the crossing's last attribute, as the paper chose them.

    Of a pair of runs those of the first are taken: the same words are seen before and after.
    """
    last = crossing.split("*")[-1]
    base = before if before is not None and crossing in attributes(before) else run
    if last not in attributes(base):
        return []
    groups = dict.fromkeys(row["group"] for row in top_words(base, last))
    return [
        {**row, "experiment": f"words nearest to {group}"}
        for group in groups
        for row in heat(run, crossing, leading(base, last, group, many=WIDTH))
    ]


def _means(console: Console, attribute: str, rows: list[Row]) -> None:
    several = len({row["model"] for row in rows}) > 1
    metric = label(rows[0]["metric"], rows[0]["k"])
    title = f"{attribute}: {metric}, mean over each category's words (ideal {rows[0]['ideal']:.3f})"
    columns = ["category", *(["model"] if several else [])]
    table = table_of(title, *columns, "value", "95% interval", "without tilt", "p maxT",
                   left=len(columns))  # fmt: skip
    for row in sorted(rows, key=lambda row: (row["model"], row["value"])):
        table.add_row(
            row["category"],
            *([row["model"]] if several else []),
            number(row["value"]),
            interval(row["ci_low"], row["ci_high"]),
            interval(row["null_lo"], row["null_hi"]),
            p_value(row["p_fwer"]),
        )
    console.print(table)


def _tops(console: Console, attribute: str, rows: list[Row]) -> None:
    signed = any("valence" in row for row in rows)
    table = table_of(f"{attribute}: the words nearest to each group (C-ASC)", "category", "group",
                   "word", "C-ASC", "95% int.", "p maxT", "p plac.", "tilt", left=3)  # fmt: skip
    for column, width in zip(table.columns, (14, 17, 18), strict=False):
        column.max_width = width
    last = None
    for row in rows:
        word = row["concept"] + (_sign(row["valence"]) if signed else "")
        table.add_row(
            row["category"] if row["category"] != last else "",
            row["group"],
            word,
            f"{row['value']:+.2f}",
            interval(row["ci_low"], row["ci_high"], digits=2),
            p_value(row["p_fwer"]),
            p_value(row["p_placebo"]),
            SHORT.get(row["verdict"], "-"),
            style="bold" if row["verdict"] == ESTABLISHED else "",
        )
        last = row["category"]
    console.print(table)
    if signed:
        console.print("By the lexicon: (+) pleasant, (-) unpleasant.", style="dim")


def _sign(valence: float | None) -> str:
    """Pleasant and unpleasant thirds of the scale."""
    if valence is None or 1 / 3 <= valence <= 2 / 3:
        return ""
    return " (+)" if valence > 2 / 3 else " (-)"


def _heats(console: Console, attribute: str, rows: list[Row]) -> None:
    for experiment in dict.fromkeys(row["experiment"] for row in rows):
        mine = [row for row in rows if row["experiment"] == experiment]
        listed = list(dict.fromkeys(row["concept"] for row in mine))
        title = f"{attribute}: C-ASC of the {experiment} (* established)"
        console.print(_grid(title, mine, listed))


def _grid(title: str, rows: Sequence[Row], words: Sequence[str]) -> Table:
    table = table_of(title, "group", *words)
    table.columns[0].max_width = 24
    for column in table.columns[1:]:
        column.max_width = 9
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        star = "*" if row["verdict"] == ESTABLISHED else " "
        value = "undefined" if row["value"] is None else f"{row['value']:+.2f}{star}"
        cells.setdefault(row["group"], {})[row["concept"]] = value
    for group, by_word in cells.items():
        table.add_row(group, *(by_word.get(word, "-") for word in words))
    return table


def _compositions(console: Console, attribute: str, rows: list[Row]) -> None:
    """Words whose top k is farthest from the images, then categories."""
    title = f"{attribute}: who fills the top {rows[0]['k']} above its share (in brackets: no tilt)"
    table = table_of(title, "word", "groups", left=2)
    table.columns[0].max_width = 20
    by_word: dict[tuple[Any, Any], list[Row]] = {}
    for row in rows:
        by_word.setdefault((row["concept"], row["category"]), []).append(row)

    def far(mine: list[Row]) -> float:
        return float(sum(abs(row["value"] - row["ideal"]) for row in mine))

    of_words = sorted((m for (word, _), m in by_word.items() if word), key=far, reverse=True)
    unlike = {mine[0]["concept"]: mine for mine in reversed(of_words)}  # one line a word
    of_words = sorted(unlike.values(), key=far, reverse=True)[:FARTHEST]
    of_categories = [mine for (word, _), mine in by_word.items() if not word]
    for mine in [*of_words, *of_categories]:
        above = [row for row in mine if row["value"] > row["ideal"]]
        best = sorted(above, key=lambda row: row["ideal"] - row["value"])[:MOST]
        name = mine[0]["concept"] or f"all {mine[0]['category']}"
        table.add_row(name, ", ".join(map(_share, best)))
    console.print(table)


def _share(row: Row) -> str:
    told = f"{row['group']} {row['value']:.0%}"
    if row["null_lo"] is None:
        return told
    return f"{told} ({row['null_lo']:.0%}…{row['null_hi']:.0%})"


def _changes(console: Console, attribute: str, rows: list[Row]) -> None:
    table = table_of(f"{attribute}: words whose C-ASC changed most", "group", "word", "before",
                   "after", "change", "95% int.", "p BH", "tilt", left=2)  # fmt: skip
    table.columns[0].max_width, table.columns[1].max_width = 18, 14
    last = None
    for row in rows:
        told = [SHORT.get(row[f"verdict_{when}"], "-") for when in ("before", "after")]
        table.add_row(
            row["group"] if row["group"] != last else "",
            row["concept"],
            f"{row['before']:+.2f}",
            f"{row['after']:+.2f}",
            f"{row['difference']:+.2f}",
            interval(row["ci_low"], row["ci_high"], digits=2),
            p_value(row["p_bh"]),
            "→".join(told),
            style="bold" if row["direction"] == "worse" else "",
        )
        last = row["group"]
    console.print(table)
