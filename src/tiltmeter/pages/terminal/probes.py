"""Tables of single probes."""

from __future__ import annotations

from rich.table import Table

from tiltmeter.pages.terminal.layout import (
    STRONGEST,
    Row,
    by,
    interval,
    number,
    p_value,
    percent,
    percents,
    table_of,
)

ENDS = 5  # captions shown from the top, and from the bottom


def usefulness(rows: list[Row]) -> Table:
    """What the model is good for."""
    table = table_of("utility", "figure", "data", "value", "95% interval", "by chance", "n", left=2)
    for row in rows:
        what = f"{row['metric']}@{row['k']} {row['experiment'] or ''}".strip()
        table.add_row(
            what if row["metric"] == "recall" else "zero-shot accuracy",
            row["dataset"],
            number(row["value"]),
            interval(row["ci_low"], row["ci_high"]),
            number(row["null_mean"]),
            f"{row['n']:,}",
        )
    return table


def harms(attribute: str, rows: list[Row]) -> Table | str:
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
    table = table_of(f"{attribute}: taken for what does harm", "group", "images", *columns)
    table.columns[0].max_width = 26
    for group, found in by([row for row in kinds if row["metric"] == "group_rates"], "group"):
        cells = [(percent(row["value"]), percents(row)) for row in found]
        table.add_row(group, f"{found[0]['n_group']:,}", *(cell for pair in cells for cell in pair))
    gaps = [row for row in kinds if row["metric"] == "gaps"]
    cells = [(percent(row["value"]), f"p maxT {p_value(row['p_fwer'])}") for row in gaps]
    told = [cell for pair in cells for cell in pair]
    table.add_row("largest gap", f"{gaps[0]['n']:,}", *told, style="bold")
    return table


def associations(rows: list[Row]) -> Table:
    """WEAT, SEAT and iEAT: one line a test."""
    table = table_of("embedding association tests", "test", "which", "d", "95% interval",
                   "without tilt", "p", "p Holm", left=2)  # fmt: skip
    for row in rows:
        table.add_row(
            row["category"],
            row["experiment"].partition(",")[0],
            "undefined" if row["value"] is None else f"{row['value']:+.2f}",
            interval(row["ci_low"], row["ci_high"], digits=2),
            interval(row["null_lo"], row["null_hi"], digits=2),
            p_value(row["p"]),
            p_value(row["p_fwer"]),
        )
    return table


def choices(rows: list[Row]) -> Table:
    """Which captions are picked, beside what a model without a tilt would pick."""
    shown = [
        row
        for row in rows
        if row["value"] is not None
        and (row["metric"] == "shortest" or row["ideal"] is not None)
        and row["split"] != "all"
        and "wrong" not in row["experiment"]
    ]
    known = any(row["truth"] is not None for row in shown)
    head = ["reading", "measure", "value", "95% int.", "without tilt", *(["perfect"] * known)]
    table = table_of("caption choice", *head, "p", "n", left=2)
    for row in shown:
        table.add_row(
            row["experiment"].replace(" picture", ""),
            row["metric"].replace("_", " "),
            f"{row['value']:.2f}",
            interval(row["ci_low"], row["ci_high"], digits=2),
            "-" if row["null_mean"] is None else f"{row['null_mean']:.2f}",
            *(["-" if row["truth"] is None else f"{row['truth']:.2f}"] * known),
            p_value(row["p"]),
            f"{row['n']:,}",
        )
    return table


def hidden_words(rows: list[Row]) -> list[Table | str]:
    """CounterBias: mean absolute bias by list of words, the words that move most, and the flips."""
    totals = [r for r in rows if r["metric"].startswith("abs_bias") and r["template"] is None]
    shown: list[Table | str] = []
    table = table_of("hidden words: mean absolute bias of picture and text (VL), each alone",
                     "pictures, softmax", "words", "part", "value", "95% int.", "without tilt",
                     "p", "n", left=3)  # fmt: skip
    for row in totals:
        table.add_row(
            row["experiment"],
            row["category"],
            row["metric"].removeprefix("abs_bias_"),
            number(row["value"]),
            interval(row["ci_low"], row["ci_high"]),
            number(row["null_mean"]),
            p_value(row["p"]),
            f"{row['n']:,}",
        )
    if totals:
        shown.append(table)
        shown.append(_moved(rows, totals[0]["experiment"]))
    for row in rows:
        if row["metric"] == "images_measured" and row["note"]:
            shown.append(f"{row['value']:,.0f} images measured; {row['note']}")
        if row["metric"] == "flip_rate" and row["value"] is not None:
            shown.append(
                f"{row['experiment']}: of {row['n']:,} pictures read right, {row['value']:.0%} are "
                f"read as the other group ({interval(row['ci_low'], row['ci_high'], digits=2)})"
            )
    return shown


def _moved(rows: list[Row], experiment: str) -> Table:
    of = [
        {row["target"]: row for row in rows if row["metric"] == f"bias_{part}"
         and row["experiment"] == experiment and row["template"] is None}
        for part in ("VL", "V", "L")
    ]  # fmt: skip
    words = [row for row in of[0].values() if row["value"] is not None]
    words = sorted(words, key=lambda row: -abs(row["value"]))[:STRONGEST]
    table = table_of(f"words that move most ({experiment}; above 0: to the first group)", "word",
                     "VL", "95% int.", "p maxT", "V", "L")  # fmt: skip
    for row in words:
        parts = [found.get(row["target"], {}).get("value") for found in of[1:]]
        table.add_row(
            row["target"],
            f"{row['value']:+.3f}",
            interval(row["ci_low"], row["ci_high"]),
            p_value(row["p_fwer"]),
            *("undefined" if part is None else f"{part:+.3f}" for part in parts),
        )
    return table


def propagated(rows: list[Row]) -> list[Table]:
    """From representation to result: rank correlations, and how far groups differ in each."""
    rho = table_of("propagation: does what is retrieved follow the association? (rho)",
                   "experiment", "group", "rho", "95% int.", "permuted", "n",
                   left=2)  # fmt: skip
    for row in rows:
        if row["metric"] == "rho" and row["value"] is not None:
            rho.add_row(
                row["experiment"],
                row["group"] or "all",
                f"{row['value']:+.2f}",
                interval(row["ci_low"], row["ci_high"], digits=2),
                "-" if row["null_mean"] is None else f"{row['null_mean']:+.2f}",
                f"{row['n']:,}",
            )
    apart = table_of("propagation: how far groups lie apart (0 without bias)", "experiment",
                     "measure", "unit", "attribute", "value", "p", left=4)  # fmt: skip
    for row in rows:
        if row["metric"] in ("intrinsic_range", "extrinsic_range") and row["value"] is not None:
            kind = row["metric"].removesuffix("_range")
            valence = row["experiment"].startswith("1")
            unit = "effect" if kind == "intrinsic" else "valence" if valence else "share"
            apart.add_row(row["experiment"], kind, unit, row["attribute"], number(row["value"]),
                          p_value(row["p"]))  # fmt: skip
    return [table for table in (rho, apart) if table.row_count]


def strengths(rows: list[Row]) -> list[Table | str]:
    """Captions that say most and least of the images; words in which groups lie farthest apart."""
    whole = [row for row in rows if row["metric"] == "strength" and row["attribute"] is None]
    ordered = sorted((row for row in whole if row["value"] is not None), key=lambda r: -r["value"])
    if len(ordered) > 2 * ENDS:
        ordered = [*ordered[:ENDS], *ordered[-ENDS:]]
    table = table_of("captions that say most, and least, of these images (percentile)", "word",
                     "template", "percentile", "95% interval", "n", left=2)  # fmt: skip
    for row in ordered:
        table.add_row(row["target"], row["template"], f"{row['value']:.1%}",
                      interval(row["ci_low"], row["ci_high"]), f"{row['n']:,}")  # fmt: skip
    shown: list[Table | str] = [table] if ordered else []
    gaps = [row for row in rows if row["metric"] == "gaps" and row["value"] is not None]
    for attribute, mine in by(gaps, "attribute"):
        table = table_of(f"{attribute}: how far groups lie apart in a caption's percentile", "word",
                         "template", "highest", "lowest", "gap", "frequent words", "p Holm",
                         left=4)  # fmt: skip
        for row in sorted(mine, key=lambda row: -row["value"])[:STRONGEST]:
            same = ("attribute", "target", "template", "experiment")
            groups = [
                one
                for one in rows
                if one["metric"] == "strength"
                and one["value"] is not None
                and all(one[c] == row[c] for c in same)
            ]
            groups = sorted(groups, key=lambda one: one["value"])
            ends = [f"{one['group']} {one['value']:.0%}" for one in (groups[-1], groups[0])]
            table.add_row(
                row["target"],
                row["template"],
                *ends,
                f"{row['value']:.3f}",
                interval(row["null_lo"], row["null_hi"]),
                p_value(row["p_fwer"]),
            )
        shown.append(table)
    if ordered:
        shown.append(f"Held against {ordered[0]['experiment']}.")
    shown += [f"Strength is undefined: {note}." for note in
              dict.fromkeys(row["note"] for row in rows if row["value"] is None)]  # fmt: skip
    return shown
