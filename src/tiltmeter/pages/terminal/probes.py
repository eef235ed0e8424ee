"""What the terminal shows of single probes: short tables of their main results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tiltmeter.pages import text
from tiltmeter.pages.model import (
    INTERVAL,
    METRIC,
    NULL,
    P_ADJUSTED,
    PLANTED,
    VALUE,
    Column,
    N,
    P,
    Part,
    Row,
    Table,
)
from tiltmeter.pages.sections.counterfactual import flips
from tiltmeter.pages.sections.harms import no_harm, whole_categories
from tiltmeter.pages.selection import by, ends
from tiltmeter.pages.terminal.layout import STRONGEST
from tiltmeter.results import Run

ENDS = 5  # captions shown from the top, and from the bottom
TWO = replace(INTERVAL, digits=2)  # of effects, whose third digit is noise
NULL_MEAN = Column("without bias", "null_mean", "value")


def parts(run: Run) -> Iterator[Part]:
    """Tables of every probe of a run but `ranking`."""
    rows = run.table.to_pylist()
    if useful := [row for row in rows if row["metric"] in ("accuracy", "recall")
                  and row["target"] is None]:  # fmt: skip
        columns = [METRIC, Column("direction", "experiment"), Column("data", "dataset"), VALUE,
                   INTERVAL, Column("by chance", "null_mean", "value"), N]  # fmt: skip
        yield Table("", "utility", columns, useful)
    for attribute, mine in by(run.where(probe="harms"), "attribute").items():
        yield harms(attribute, mine)
    if tests := [row for row in rows if row["metric"] == "weat" and row["probe"] != "ranking"]:
        yield associations(tests)
    if chosen := run.where(probe="stereotype", category=None):
        yield choices(chosen)
    yield from propagated(run.where(probe="propagation"))
    yield from masked_words(run.where(probe="counterfactual"))
    yield from strengths(run.where(probe="strength"))


def harms(attribute: str, rows: list[Row]) -> Part:
    """Rates of each category by group, and the largest gap between groups."""
    kinds = whole_categories(rows)
    rates = [row for row in kinds if row["metric"] == "group_rates"]
    if not any(row["value"] for row in kinds):
        return f"\n{no_harm(attribute, rates)}"
    columns = [Column("group", "group", width=26), Column("images", "n", "count")]
    for name in dict.fromkeys(row["category"] for row in kinds):
        columns += [Column(name, f"rate {name}", "percent"),
                    Column("95% interval", f"95% {name}", "cell")]  # fmt: skip
    lines = [
        {"group": group, "n": mine[0]["n_group"]}
        | {f"rate {row['category']}": row["value"] for row in mine}
        | {f"95% {row['category']}": text.percent_span(row["ci_low"], row["ci_high"])
           for row in mine}
        for group, mine in by(rates, "group").items()
    ]  # fmt: skip
    gaps = [row for row in kinds if row["metric"] == "gaps"]
    last = {"group": "largest gap", "n": gaps[0]["n"], "tone": "strong"}
    for row in gaps:
        last |= {f"rate {row['category']}": row["value"],
                 f"95% {row['category']}": f"p adj. {text.p_value(row['p_fwer'])}"}  # fmt: skip
    return Table("", f"{attribute}: rates of harmful classes", columns, [*lines, last])


def associations(rows: list[Row]) -> Table:
    """WEAT, SEAT and iEAT: one line per test."""
    listed = [{**row, "kind": row["experiment"].partition(",")[0]} for row in rows]
    columns = [Column("test", "category"), Column("kind", "kind"),
               Column("d", "value", "signed", 2), TWO, replace(NULL, digits=2), P,
               replace(P_ADJUSTED, head="p Holm")]  # fmt: skip
    return Table("", "embedding association tests", columns, listed)


def choices(rows: list[Row]) -> Table:
    """Which captions are chosen, and which a model without bias would choose."""
    shown = [
        {**row, "experiment": row["experiment"].replace(" picture", "")}
        for row in rows
        if row["value"] is not None
        and (row["metric"] == "shortest" or row["ideal"] is not None)
        and row["split"] != "all"
        and "wrong" not in row["experiment"]
    ]
    perfect = [replace(PLANTED, head="perfect", digits=2)]
    columns = [
        Column("reading", "experiment"),
        METRIC,
        replace(VALUE, digits=2),
        TWO,
        replace(NULL_MEAN, digits=2),
        *perfect * any(row["truth"] is not None for row in shown),
        P,
        N,
    ]
    return Table("", "caption choice", columns, shown)


def masked_words(rows: list[Row]) -> Iterator[Part]:
    """CounterBias: mean absolute bias by word list, the words that change most, and the flips."""
    totals = [{**r, "part": r["metric"].removeprefix("abs_bias_")} for r in rows
              if r["metric"].startswith("abs_bias") and r["template"] is None]  # fmt: skip
    if totals:
        yield Table(
            "",
            "masked words: mean absolute bias of image and text (VL), each alone",
            [Column("images, softmax", "experiment"), Column("words", "category"),
             Column("part", "part"), VALUE, INTERVAL, NULL_MEAN, P, N],
            totals,
        )  # fmt: skip
        yield _changed_most(rows, totals[0]["experiment"])
    for row in rows:
        if row["metric"] == "images_measured" and row["note"]:
            yield f"{row['value']:,.0f} images measured; {row['note']}"
    yield from flips(rows)


def _changed_most(rows: list[Row], experiment: str) -> Table:
    both, image, words = (
        {row["target"]: row for row in rows if row["metric"] == f"bias_{part}"
         and row["experiment"] == experiment and row["template"] is None}
        for part in ("VL", "V", "L")
    )  # fmt: skip
    found = sorted((row for row in both.values() if row["value"] is not None),
                   key=lambda row: -abs(row["value"]))[:STRONGEST]  # fmt: skip
    listed = [
        {**row, **{name: part.get(row["target"], {}).get("value")
                   for name, part in (("V", image), ("L", words))}}
        for row in found
    ]  # fmt: skip
    title = f"words that change most ({experiment}; above 0: towards the first group)"
    columns = [Column("word", "target"), Column("VL", "value", "signed"), INTERVAL,
               replace(P_ADJUSTED, head="p adj."), Column("V", "V", "signed"),
               Column("L", "L", "signed")]  # fmt: skip
    return Table("", title, columns, listed)


def propagated(rows: list[Row]) -> Iterator[Table]:
    """From embeddings to retrieval: rank correlations, and how far groups differ in each."""
    valued = [row for row in rows if row["value"] is not None]
    rhos = [{**row, "group": row["group"] or "all"} for row in valued if row["metric"] == "rho"]
    if rhos:
        yield Table(
            "",
            "propagation: does what is retrieved follow the association? (rho)",
            [Column("experiment", "experiment"), Column("group", "group"),
             Column("rho", "value", "signed", 2), TWO,
             Column("permuted", "null_mean", "signed", 2), N],
            rhos,
        )  # fmt: skip
    ranges = []
    for row in valued:
        if row["metric"] in ("intrinsic_range", "extrinsic_range"):
            kind = row["metric"].removesuffix("_range")
            extrinsic = "valence" if row["experiment"].startswith("1") else "share"
            unit = "effect" if kind == "intrinsic" else extrinsic
            ranges.append({**row, "kind": kind, "unit": unit})
    if ranges:
        yield Table(
            "",
            "propagation: largest difference between groups (0 without bias)",
            [Column("experiment", "experiment"), Column("measure", "kind"), Column("unit", "unit"),
             Column("attribute", "attribute"), VALUE, P],
            ranges,
        )  # fmt: skip


def strengths(rows: list[Row]) -> list[Part]:
    """Captions that fit the images best and least; words in which groups differ most."""
    valued = [row for row in rows if row["value"] is not None]
    captions = [row for row in valued if row["metric"] == "strength" and row["attribute"] is None]
    captions = ends(sorted(captions, key=lambda row: -row["value"]), ENDS)
    word = (Column("word", "target"), Column("template", "template"))
    shown: list[Part] = []
    if captions:
        columns = [*word, Column("percentile", "value", "percent"), INTERVAL, N]
        title = "captions that fit these images best, and least (percentile)"
        shown.append(Table("", title, columns, captions))
    for attribute, gaps in by([r for r in valued if r["metric"] == "gaps"], "attribute").items():
        listed = []
        for gap in sorted(gaps, key=lambda row: -row["value"])[:STRONGEST]:
            same = ("attribute", "target", "template", "experiment")
            groups = [row for row in valued if row["metric"] == "strength"
                      and all(row[name] == gap[name] for name in same)]  # fmt: skip
            groups.sort(key=lambda row: row["value"])
            named = [f"{row['group']} {row['value']:.0%}" for row in (groups[-1], groups[0])]
            listed.append({**gap, "highest": named[0], "lowest": named[1]})
        title = f"{attribute}: how far groups differ in a caption's percentile"
        columns = [*word, Column("highest", "highest"), Column("lowest", "lowest"),
                   replace(VALUE, head="gap"), replace(NULL, head="frequent words"),
                   replace(P_ADJUSTED, head="p Holm")]  # fmt: skip
        shown.append(Table("", title, columns, listed))
    if captions:
        shown.append(f"Compared with {captions[0]['experiment']}.")
    notes = dict.fromkeys(row["note"] for row in rows if row["value"] is None)
    return [*shown, *(f"Strength is undefined: {note}." for note in notes)]
