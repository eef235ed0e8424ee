"""Masked words: how they change with who is seen, and with who is named (CounterBias)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from markupsafe import Markup

from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Finding, Plot, Row, Section, Table, table_of
from tiltmeter.pages.plots import charts, scatter
from tiltmeter.pages.selection import by
from tiltmeter.results import PLACEBO, Run
from tiltmeter.stats.lift_verdict import (
    ASSOCIATED,
    CANNOT_TELL,
    CLEAR,
    NO_LARGER,
    NONE_FOUND,
    WEAK,
)

LEAD = (
    "A word is masked, and the person in the image, in the text, or in both is changed to the "
    "other group. Lift is how many times as likely the word is with one group as with the other, "
    "compared with neutral words in the same sentences: the verdict rests on it. The paper's bias "
    "of a word is how far its probability moves, above 0 towards the first group. Its p-values "
    "test that it moves at all, which nearly every word does, also in a model without bias."
)
PARTS = {"VL": "image and text", "V": "image", "L": "text"}
VERDICTS = {
    CLEAR: "clear bias",
    WEAK: "weak bias",
    NONE_FOUND: "no bias found",
    CANNOT_TELL: "cannot tell",
}
SHOWN = 8  # words of a plot of lift
NAMED = 12  # words that are named in the scatter
OF_WORDS = ("bias_VL", "bias_V", "bias_L")


def section(run: Run, probe: str) -> Section:
    """The section of the probe `counterfactual`."""
    rows = run.where(probe=probe)
    over = [row for row in rows if row["template"] is None and row["value"] is not None]
    figures = _lift_plots(rows)
    for experiment in dict.fromkeys(r["experiment"] for r in over if r["metric"] == "bias_V"):
        mine = [row for row in over if row["experiment"] == experiment]
        figures += quadrants(experiment, mine)
        if sizes := [row for row in mine if row["metric"].startswith("abs_bias_")]:
            figures.append(_sizes(experiment, sizes))
    lead = (("experiment", "images, softmax"), ("category", "words"), ("metric", "measure"),
            ("target", "word"))  # fmt: skip
    words = [row for row in over if row["metric"] in OF_WORDS]
    words.sort(key=lambda row: -abs(row["value"]))
    totals = [r for r in rows if r["metric"] not in (*OF_WORDS, "quadrant")
              and (r["target"] is None or r["metric"] == "text_bias")]  # fmt: skip
    tables = [
        _lift_table(over),
        table_of("hidden-words", "Bias of every masked word", words, *lead, kind="signed",
                 folded=True),
        table_of("hidden-totals", "Sizes, flips and shifts", totals, *lead,
                 "template", folded=True),
    ]  # fmt: skip
    return Section(probe, "Masked words", LEAD, lift_findings(rows), figures, tables, flips(rows))


def lift_findings(rows: list[Row]) -> list[Finding]:
    """A sentence for each part that was swapped: the size of lift first, then the words."""
    findings = []
    for size in (size for sizes in pair_sizes(rows) for size in sizes):
        words = pair_words(rows, size)
        sure, small = (
            sum(row["verdict"] == verdict for row in words) for verdict in (ASSOCIATED, NO_LARGER)
        )
        swapped = "image and text" if size["part"] == "both" else size["part"]
        edges = text.ratio_span(size["ci_low"], size["ci_high"])
        kinds = text.short((size["category"] or "words").replace("+", ", "), 60)
        said = (
            f"{kinds}, {swapped} swapped ({size['source']}): {VERDICTS[size['verdict']]}. Size of "
            f"lift {text.ratio(size['value'])} (95% interval {edges}, images only): {sure} of "
            f"{text.plural(len(words), 'word')} associated, {small} no larger than 1.25x."
        )
        basis = [f"{text.capitalized(size['note'])}."]
        if size["null_high"] is not None:
            most = text.ratio(size["null_high"])
            basis.append(f"Pairs with their groups swapped at random: up to {most} in 95% of them.")
        if words:
            basis.append(f"Largest: {text.plain(_largest(words))}.")
        findings.append(Finding(said, " ".join(basis), size["verdict"]))
    return findings


def pair_sizes(rows: Iterable[Row]) -> list[list[Row]]:
    """The sizes of lift, by attribute and source of the pairs: of image, text and both."""
    sizes = []
    for row in rows:
        if row["metric"] == "pair_lift_size" and row["verdict"]:
            source, _, part = row["experiment"].rpartition(", ")
            sizes.append({**row, "source": source, "part": part})
    return list(by(sizes, "model", "attribute", "source", "category").values())


def pair_words(rows: Iterable[Row], size: Row) -> list[Row]:
    """The words behind a size."""
    return [row for row in _lift_rows(rows) if row["experiment"] == size["experiment"]
            and row["category"] in (size["category"] or "").split("+")]  # fmt: skip


def pairs_found(rows: Iterable[Row], sizes: list[Row]) -> Markup:
    """The sizes of image, text and both in one sentence, and the word with the largest lift."""
    words = [pair_words(rows, size) for size in sizes]
    parts: list[str] = []
    for size, mine in zip(sizes, words, strict=True):
        sure, typical = sum(row["verdict"] == ASSOCIATED for row in mine), text.ratio(size["value"])
        counted = f"{sure} ({typical})"
        if not parts:
            counted = f"{sure} of {len(mine)} words are associated (typical size {typical})"
        parts.append(f"with {size['part']} swapped {counted}")
    found = Markup("{}.").format(text.capitalized("; ".join(parts)))
    largest = [row for mine in words for row in mine]
    return found + Markup(" {}.").format(_largest(largest)) if largest else found


def _largest(words: list[Row]) -> Markup:
    row = max(words, key=lambda row: abs(row["value"]))
    return Markup("{} is {} as likely with {} as with the other group").format(
        text.shown(f"“{text.clean(row['target'])}”", 60), text.ratio(row["value"]),
        text.shown(row["group"], 60),
    )  # fmt: skip


def _lift_rows(rows: Iterable[Row]) -> list[Row]:
    """Lift of words, not of neutral ones."""
    return [row for row in rows if row["metric"] == "pair_lift" and row["target"] is not None
            and row["category"] != PLACEBO and row["value"] is not None]  # fmt: skip


def _lift_plots(rows: list[Row]) -> list[Plot]:
    """The words with the largest lift, beside the range of neutral words; one for each part."""
    found = []
    for size in (size for sizes in pair_sizes(rows) for size in sizes):
        words = sorted(pair_words(rows, size), key=lambda row: (row["verdict"] != ASSOCIATED,
                                                                -abs(row["value"])))  # fmt: skip
        shown = words[:SHOWN]
        if not shown:
            continue
        axis = f"times as likely with {text.short(shown[0]['group'])} as with the other group"
        found.append(charts.line_plot(
            text.slug("hidden-lift", size["attribute"], size["experiment"]),
            f"Largest lifts of masked words, {size['part']} swapped ({size['source']})",
            f"Mark: how many {axis}. Line: 95% interval, images only. Grey band: 95% of neutral "
            "words.",
            shown, [row["target"] for row in shown], axis,
            says=f"{len(shown)} words, {axis}: ", kinds=True, ratios=True,
        ))  # fmt: skip
    return found


def _lift_table(rows: list[Row]) -> Table:
    words = sorted(_lift_rows(rows), key=lambda row: (row["verdict"] != ASSOCIATED,
                                                      -abs(row["value"])))  # fmt: skip
    return Table(
        "hidden-lift",
        "Lift of every masked word: times as likely with the first group as with the second",
        [Column("swapped", "experiment"), Column("words", "category"), Column("word", "target"),
         Column("first group", "group"), Column("lift", "value", "ratio"),
         Column("95% int.", ("ci_low", "ci_high"), "ratios"),
         Column("neutral", ("null_low", "null_high"), "ratios"),
         Column("verdict", "verdict", "verdict"), Column("p", "p", "p"), Column("q", "p_bh", "p"),
         Column("pairs", "n", "count")],
        words,
        folded=True,
    )  # fmt: skip


def flips(rows: list[Row]) -> list[str]:
    """How often an image, once changed, is recognised as the other group."""
    return [
        f"{text.short(row['experiment'])}: of {row['n']:,} images recognised correctly, "
        f"{row['value']:.0%} are recognised as the other group after the change "
        f"(95% interval {text.percent_span(row['ci_low'], row['ci_high'])})."
        for row in rows
        if row["metric"] == "flip_rate" and row["value"] is not None
    ]


def quadrants(experiment: str, rows: list[Row]) -> list[Plot]:
    """Visual against language bias: Figure 7 of the paper."""
    image, words = (
        {(r["category"], r["target"]): r["value"] for r in rows if r["metric"] == part}
        for part in ("bias_V", "bias_L")
    )
    places = {key: (image[key], words[key]) for key in image if key in words}
    if len(places) < 2:
        return []
    far = sorted(places, key=lambda key: (-(places[key][0] ** 2 + places[key][1] ** 2), str(key)))
    points = [
        {
            "x": places[key][0],
            "y": places[key][1],
            "kind": text.short(key[0] or "words"),
            "text": text.short(key[1], 18) if key in far[:NAMED] else "",
        }
        for key in far
    ]
    alike = sum(x * y > 0 for x, y in places.values())
    counts = "; ".join(
        f"{text.short(row['category'] or 'words')}, {text.short(row['group'], 50)}: "
        f"{row['value']:.0f} of {row['n']}"
        for row in rows
        if row["metric"] == "quadrant"
    )
    return [
        Plot(
            text.slug("quadrants", experiment),
            f"Image against text ({text.short(experiment, 50)})",
            f"One point per word: bias by the image and by the text. In the upper right and lower "
            f"left quadrant both have the same sign: {alike} of {len(places)} words.",
            f"{alike} of {len(places)} words have the same sign in image and text. {counts}.",
            partial(scatter.scatter, points, "bias by the image (V)", "bias by the text (L)",
                    size=60, height=380),
        )
    ]  # fmt: skip


def _sizes(experiment: str, rows: list[Row]) -> Plot:
    return charts.line_plot(
        text.slug("hidden-sizes", experiment),
        f"Mean absolute bias ({text.short(experiment, 50)})",
        "Bar: mean absolute bias over the words of a list. Line: 95% interval. Grey band: "
        "without bias. An absolute value is above 0 even then.",
        rows,
        [f"{row['category'] or 'words'}: {PARTS[row['metric'][9:]]}" for row in rows],
        "mean absolute bias",
        says="Mean absolute bias: ",
        bars=True,
    )
