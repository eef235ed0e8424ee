"""What the terminal shows of single probes: short tables of their main results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.lift_findings import LiftClass, chance, largest_words
from tiltmeter.pages.model import Column, Paragraph, Part, Row, Table, table
from tiltmeter.pages.sections.counterfactual import flips, lift_findings
from tiltmeter.pages.sections.harms import no_harm, whole_categories
from tiltmeter.pages.sections.stereotype import SCORE_COLUMNS, score_lines, scores_table
from tiltmeter.pages.selection import by, ends
from tiltmeter.pages.terminal.layout import STRONGEST
from tiltmeter.results import PLACEBO, Run

ENDS = 5  # captions shown from the top, and from the bottom
TWO = replace(col.INTERVAL, digits=2)  # of effects, whose third digit is noise
NULL_MEAN = Column("by chance", "null_mean", "value")
P_HOLM = replace(col.P_ADJUSTED, head="p Holm")


def parts(run: Run) -> Iterator[Part]:
    """Tables of every probe of a run but `lift` and `ranking`."""
    rows = run.rows
    if useful := [row for row in rows if row["metric"] in ("accuracy", "recall")
                  and row["target"] is None]:  # fmt: skip
        yield table("utility", useful, col.METRIC, ("experiment", "direction"), ("dataset", "data"),
                    col.VALUE, col.INTERVAL, NULL_MEAN,
                    col.N)  # fmt: skip
    for attribute, mine in by(run.where(probe="harms"), "attribute").items():
        yield harms(attribute, mine)
    if tests := [row for row in rows if row["metric"] == "weat" and row["probe"] != "ranking"]:
        kinds = [{**row, "kind": row["experiment"].partition(",")[0]} for row in tests]
        yield table("embedding association tests", kinds, ("category", "test"), "kind",
                    Column("d", "value", "signed", 2), TWO, replace(col.NULL, digits=2), col.P,
                    P_HOLM)  # fmt: skip
    if chosen := run.where(probe="stereotype"):
        yield choices([row for row in chosen if row["category"] is None])
        yield from by_category(chosen)
    yield from written_answers(rows)
    yield from propagated(run.where(probe="propagation"))
    yield from masked_words(run.where(probe="counterfactual"))
    yield from strengths(run.where(probe="strength"))


def lifts(found: LiftClass) -> Iterator[Part]:
    """The words with the largest lift, and how many are beyond neutral words."""
    if found.words:
        way = "likely" if found.likely else "high"
        title = f"{found.name}: how many times as {way} with a group as with the others"
        yield table(title,
                    largest_words(found, STRONGEST), Column("word", "concept", width=18),
                    Column("group", "group", width=18), *found.columns,
                    Column("verdict", "verdict", "verdict"))  # fmt: skip
    yield f"\n{chance(found)}" if not found.words else chance(found)


def harms(attribute: str, rows: list[Row]) -> Part:
    """Rates of each category by group, and the largest gap between groups."""
    kinds = whole_categories(rows)
    rates = [row for row in kinds if row["metric"] == "group_rates"]
    gaps = [row for row in kinds if row["metric"] == "gaps"]
    if not any(row["value"] for row in kinds):
        return f"\n{no_harm({attribute: rates})}"
    columns = [
        column
        for name in dict.fromkeys(row["category"] for row in kinds)
        for column in (Column(name, f"rate {name}", "percent"),
                       Column("95% interval", f"95% {name}", "cell"))
    ]  # fmt: skip

    def line(group: str, n: int, mine: list[Row], **more: str) -> Row:
        found: Row = {"group": group, "n": n, **more}
        for row in mine:
            name, p = row["category"], f"p adj. {text.p_value(row['p_fwer'])}"
            found[f"rate {name}"] = row["value"]
            interval = text.percent_span(row["ci_low"], row["ci_high"])
            found[f"95% {name}"] = p if row["metric"] == "gaps" else interval
        return found

    lines = [line(group, mine[0]["n_group"], mine) for group, mine in by(rates, "group").items()]
    lines.append(line("largest gap", gaps[0]["n"], gaps, tone="strong"))
    return table(f"{attribute}: rates of harmful classes", lines,
                 Column("group", "group", width=26), Column("images", "n", "count"),
                 *columns)  # fmt: skip


def choices(rows: list[Row]) -> Table:
    """Which captions are chosen, and which a model without bias would choose."""
    shown = [
        {**row, "experiment": row["experiment"].replace(" image", "")}
        for row in rows
        if row["value"] is not None
        and (row["metric"] == "shortest" or row["ideal"] is not None)
        and "wrong" not in row["experiment"]
    ]
    perfect = [replace(col.PLANTED, head="perfect", digits=2)]
    perfect *= any(row["truth"] is not None for row in shown)
    title = "caption choice (selected: images where the model picked the stereotype)"
    return table(title, shown, ("experiment", "reading"), col.METRIC, ("split", "images"),
                 replace(col.VALUE, digits=2), TWO, replace(NULL_MEAN, digits=2), *perfect, col.P,
                 col.N)  # fmt: skip


def by_category(rows: list[Row]) -> Iterator[Table]:
    """vlrs, vlbs and ivlas by category, with the excess over errors the other way."""
    lines = [line for line in score_lines(rows) if line["category"] is not None]
    if len({line["category"] for line in lines}) > 1:
        yield table("caption choice by category", lines, ("experiment", "reading"), "category",
                    *SCORE_COLUMNS)  # fmt: skip


def written_answers(rows: list[Row]) -> Iterator[Table]:
    """Generative models: the largest gap of each outcome, refusals first."""
    kinds = ("silence", "forced_choice", "pronoun", "description")
    gaps = [row for row in rows if row["probe"] in kinds and row["metric"] == "gaps"
            and row["value"] is not None and row["category"] != PLACEBO]  # fmt: skip
    largest = [max(mine, key=lambda row: row["value"]) for mine in
               by(gaps, "probe", "experiment", "target", "attribute").values()]  # fmt: skip
    largest.sort(key=lambda row: (row["probe"] != "silence", row["p_fwer"] or 1.0))
    if largest:
        yield table("generative answers: the group with the largest gap to the others",
                    largest[: 2 * STRONGEST], "probe", ("experiment", "asked"),
                    ("target", "outcome"), "attribute", "group", Column("gap", "value", "signed"),
                    col.INTERVAL, col.P_ADJUSTED, col.N)  # fmt: skip


def models_by_scores(rows: list[Row]) -> Iterator[Table]:
    """Several models: their scores, next to models with a known choice."""
    if len({row["model"] for row in rows}) > 1:
        yield scores_table(rows)


def masked_words(rows: list[Row]) -> Iterator[Part]:
    """CounterBias: mean absolute bias by word list, the words that change most, and the flips."""
    whole = [row for row in rows if row["template"] is None]
    for finding in lift_findings(rows):
        yield Paragraph(f"masked words: {finding.text}", "strong")
        yield finding.numbers
    totals = [{**row, "part": row["metric"].removeprefix("abs_bias_")} for row in whole
              if row["metric"].startswith("abs_bias")]  # fmt: skip
    if totals:
        yield table("masked words: mean absolute bias of image and text (VL), each alone", totals,
                    ("experiment", "images, softmax"), ("category", "words"), "part", col.VALUE,
                    col.INTERVAL, NULL_MEAN, col.P, col.N)  # fmt: skip
        experiment = totals[0]["experiment"]
        both, image, words = (
            {row["target"]: row["value"] if part != "VL" else row for row in whole
             if row["metric"] == f"bias_{part}" and row["experiment"] == experiment}
            for part in ("VL", "V", "L")
        )  # fmt: skip
        found = [{**row, "V": image.get(word), "L": words.get(word)}
                 for word, row in both.items() if row["value"] is not None]  # fmt: skip
        found.sort(key=lambda row: -abs(row["value"]))
        yield table(f"words that change most ({experiment}; above 0: towards the first group)",
                    found[:STRONGEST], ("target", "word"), Column("VL", "value", "signed"),
                    col.INTERVAL, replace(col.P_ADJUSTED, head="p adj."),
                    Column("V", "V", "signed"), Column("L", "L", "signed"))  # fmt: skip
        yield "p: that the word changes at all, as nearly every word does without bias too."
    for row in rows:
        if row["metric"] == "images_measured" and row["note"]:
            yield f"{row['value']:,.0f} images measured; {row['note']}"
    yield from flips(rows)


def propagated(rows: list[Row]) -> Iterator[Table]:
    """From embeddings to retrieval: rank correlations, and how far groups differ in each."""
    valued = [row for row in rows if row["value"] is not None]
    rhos = [{**row, "group": row["group"] or "all"} for row in valued if row["metric"] == "rho"]
    if rhos:
        yield table("propagation: does what is retrieved follow the association? (rho)", rhos,
                    "experiment", "group", Column("rho", "value", "signed", 2), TWO,
                    Column("permuted", "null_mean", "signed", 2), col.N)  # fmt: skip
    ranges = []
    for row in valued:
        if row["metric"] in ("intrinsic_range", "extrinsic_range"):
            kind = row["metric"].removesuffix("_range")
            extrinsic = "valence" if row["experiment"].startswith("1") else "share"
            unit = "effect" if kind == "intrinsic" else extrinsic
            ranges.append({**row, "measure": kind, "unit": unit})
    if ranges:
        yield table("propagation: largest difference between groups", ranges,
                    "experiment", "measure", "unit", "attribute", col.VALUE, col.P)  # fmt: skip


def strengths(rows: list[Row]) -> list[Part]:
    """Captions that fit the images best and least; words in which groups differ most."""
    valued = [row for row in rows if row["value"] is not None]
    strong = [row for row in valued if row["metric"] == "strength"]
    captions = [row for row in strong if row["attribute"] is None]
    captions = ends(sorted(captions, key=lambda row: -row["value"]), ENDS)
    shown: list[Part] = []
    if captions:
        shown.append(
            table("captions that fit these images best, and least (percentile)", captions,
                  ("target", "word"), "template", Column("percentile", "value", "percent"),
                  col.INTERVAL, col.N)
        )  # fmt: skip
    for attribute, gaps in by([r for r in valued if r["metric"] == "gaps"], "attribute").items():
        groups = by(strong, "attribute", "target", "template", "experiment")
        listed = []
        for gap in sorted(gaps, key=lambda row: -row["value"])[:STRONGEST]:
            mine = groups[attribute, gap["target"], gap["template"], gap["experiment"]]
            mine = sorted(mine, key=lambda row: row["value"])
            named = [f"{row['group']} {row['value']:.0%}" for row in (mine[-1], mine[0])]
            listed.append({**gap, "highest": named[0], "lowest": named[1]})
        shown.append(
            table(f"{attribute}: how far groups differ in a caption's percentile", listed,
                  ("target", "word"), "template", "highest", "lowest",
                  replace(col.VALUE, head="gap"), replace(col.NULL, head="frequent words"),
                  P_HOLM)
        )  # fmt: skip
    if captions:
        shown.append(f"Compared with {captions[0]['experiment']}.")
    notes = dict.fromkeys(row["note"] for row in rows if row["value"] is None)
    return [*shown, *(f"Strength is undefined: {note}." for note in notes)]
