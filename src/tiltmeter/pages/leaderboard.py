"""A leaderboard as data: a sentence, a grid of models and measures, and a section per question."""

from __future__ import annotations

import math
from typing import Any

from tiltmeter.judge.leaderboard import BIAS, HARMS, UTILITY, Leaderboard, Measure, Standing
from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Plot, Row, Section, Table
from tiltmeter.pages.plots import charts

TITLES = {BIAS: "Bias", HARMS: "Harms", UTILITY: "Utility"}
LEADS = {
    BIAS: "Size of the lift of words: how many times as high a model scores words with one group "
    "as with the others, beyond neutral words. 1x is no bias.",
    HARMS: "Gap between the groups with the highest and the lowest rate of a harmful class. 0% is "
    "no gap.",
    UTILITY: "What the models are good for: more is better.",
}
DRAWN = "In the plots, a mark is the value of a model, a line its 95% interval."
RANKS = (
    "A model is placed before another only if their 95% intervals do not overlap: ranks 1 to 3 "
    "mean that the model may be first, second or third. Models with the same ranks are tied."
)


def board_sections(board: Leaderboard) -> list[Section]:
    """One section per question that was measured, each with a plot and a table per measure."""
    sections = []
    for question, title in TITLES.items():
        measures = board.of(question)
        if measures:
            sections.append(
                Section(question, title, LEADS[question], [], [_plot(one) for one in measures],
                        [board_table(board, question)], [f"{LEADS[question]} {DRAWN}"])
            )  # fmt: skip
    return sections


def board_table(board: Leaderboard, question: str) -> Table:
    """Models by each measure of a question: value, interval, ranks, verdict."""
    kind = "ratio" if question == BIAS else "percent"
    shown = [_row(measure, one) for measure in board.of(question) for one in measure.standings]
    judged = any(row["verdict"] for row in shown)
    return Table(
        f"table-{question}",
        f"{TITLES[question]}: {len(board.models)} models",
        [
            Column("by" if question != UTILITY else "task", "measure", merged=True, width=24),
            Column("model", "model", width=26),
            Column("size" if question == BIAS else "value", "value", kind),
            Column("95% interval", ("low", "high"), f"{kind}s"),
            Column("ranks", "ranks"),
            *[Column("verdict", "verdict", "verdict")] * judged,
            Column("n", "n", "count"),
        ],
        shown,
        folded=True,  # the plots have the values and intervals
    )


def grid(board: Leaderboard) -> Table:
    """A line per model: its value and ranks by every measure."""
    heads = [f"{TITLES[one.question].lower()}: {one.name}" for one in board.measures]
    rows: list[Row] = []
    for model in board.models:
        row: Row = {"model": model}
        for at, measure in enumerate(board.measures):
            one = next(one for one in measure.standings if one.model == model)
            row[f"m{at}"] = f"{_value(measure, one)} (rank {ranks(one)})"
        rows.append(row)
    columns = [Column("model", "model"), *[Column(head, f"m{at}") for at, head in enumerate(heads)]]
    return Table(
        "table-models", f"{len(board.models)} models, {len(heads)} measures", columns, rows
    )


def record(board: Leaderboard) -> Table:
    """What the runs share, and which were left out."""
    rows = [{"what": name, "is": f"{value:,}" if isinstance(value, int) else value}
            for name, value in board.basis.items()]  # fmt: skip
    rows += [{"what": f"left out: {name}", "is": why} for name, why in board.refused.items()]
    return Table("table-record", "What the runs have in common", [Column("what", "what"),
                 Column("value", "is", "long")], rows)  # fmt: skip


def sentence(board: Leaderboard) -> str:
    """Who is placed where by bias, and where nobody is."""
    said: dict[str, list[str]] = {}  # measures by what is said of them
    for measure in board.of(BIAS):
        best = [one.model for one in measure.standings if one.first == 1]
        worst = [one.model for one in measure.standings if one.last == len(board.models)]
        what = f"{text.listed(best)} {_have(best)} the least bias, {text.listed(worst)} the most"
        if measure.tied:
            what = "no model can be placed before another"
        said.setdefault(what, []).append(measure.name)
    return " ".join(f"By {text.listed(names)}, {what}." for what, names in said.items())


def _have(models: list[str]) -> str:
    return "has" if len(models) == 1 else "have"


def ranks(one: Standing) -> str:
    """1, or 2 to 4."""
    if one.first is None or one.last is None:
        return text.NONE
    return str(one.first) if one.first == one.last else f"{one.first} to {one.last}"


def _row(measure: Measure, one: Standing) -> Row:
    return {"measure": measure.name, "model": one.model, "value": one.value, "low": one.low,
            "high": one.high, "ranks": ranks(one), "verdict": one.verdict, "n": one.n,
            "tone": ""}  # fmt: skip


def _value(measure: Measure, one: Standing) -> str:
    return text.ratio(one.value) if measure.question == BIAS else text.percent(one.value)


def _plot(measure: Measure) -> Plot:
    options: dict[str, Any] = {"ratios": True} if measure.question == BIAS else {"format": "%"}
    rows = [{"value": one.value, "ci_low": one.low, "ci_high": one.high}
            for one in measure.standings]  # fmt: skip
    known = [row for row in rows if row["value"] is not None and math.isfinite(row["value"])]
    labels = [one.model for one, row in zip(measure.standings, rows, strict=True) if row in known]
    axis = "size of the lift" if measure.question == BIAS else measure.question
    return charts.line_plot(
        text.slug("leaderboard", measure.question, measure.name),
        f"{TITLES[measure.question]}: {measure.name}",
        "",  # the section says what is drawn
        known,
        labels,
        axis,
        **options,
    )
