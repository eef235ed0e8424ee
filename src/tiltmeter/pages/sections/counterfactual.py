"""Masked words: how they change with who is seen, and with who is named (CounterBias)."""

from __future__ import annotations

from functools import partial

from tiltmeter.pages import text
from tiltmeter.pages.model import Plot, Row, Section, table_of
from tiltmeter.pages.plots import charts, scatter
from tiltmeter.results import Run

LEAD = (
    "A word is masked, and the person in the image, in the text, or in both is changed to the "
    "other group. The bias of a word is how far its probability moves with the group: above 0 "
    "towards the first group. P-values test that it moves at all, which nearly every word does, "
    "also in a model without bias: compare sizes, and see the lift of masked words for a verdict."
)
PARTS = {"VL": "image and text", "V": "image", "L": "text"}
NAMED = 12  # words that are named in the scatter
OF_WORDS = ("bias_VL", "bias_V", "bias_L")


def section(run: Run, probe: str) -> Section:
    """The section of the probe `counterfactual`."""
    rows = run.where(probe=probe)
    over = [row for row in rows if row["template"] is None and row["value"] is not None]
    figures: list[Plot] = []
    for experiment in dict.fromkeys(r["experiment"] for r in over if r["metric"] == "bias_V"):
        mine = [row for row in over if row["experiment"] == experiment]
        figures += _quadrants(experiment, mine)
        if sizes := [row for row in mine if row["metric"].startswith("abs_bias_")]:
            figures.append(_sizes(experiment, sizes))
    lead = (("experiment", "images, softmax"), ("category", "words"), ("metric", "measure"),
            ("target", "word"))  # fmt: skip
    words = [row for row in over if row["metric"] in OF_WORDS]
    words.sort(key=lambda row: -abs(row["value"]))
    totals = [r for r in rows if r["metric"] not in (*OF_WORDS, "quadrant")
              and (r["target"] is None or r["metric"] == "text_bias")]  # fmt: skip
    tables = [
        table_of("hidden-words", "Bias of every masked word", words, *lead, kind="signed"),
        table_of("hidden-totals", "Sizes, flips and shifts", totals, *lead,
                 "template", folded=True),
    ]  # fmt: skip
    return Section(probe, "Masked words", LEAD, [], figures, tables, flips(rows))


def flips(rows: list[Row]) -> list[str]:
    """How often an image, once changed, is recognised as the other group."""
    return [
        f"{text.short(row['experiment'])}: of {row['n']:,} images recognised correctly, "
        f"{row['value']:.0%} are recognised as the other group after the change "
        f"(95% interval {text.span(row['ci_low'], row['ci_high'], 2)})."
        for row in rows
        if row["metric"] == "flip_rate" and row["value"] is not None
    ]


def _quadrants(experiment: str, rows: list[Row]) -> list[Plot]:
    """Visual against language bias: Figure 7 of the paper."""
    image, words = (
        {(r["category"], r["target"]): r["value"] for r in rows if r["metric"] == part}
        for part in ("bias_V", "bias_L")
    )
    places = {key: (words[key], image[key]) for key in image if key in words}
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
            f"One point per word: bias by the text and by the image. In the upper right and lower "
            f"left quadrant both have the same sign: {alike} of {len(places)} words.",
            f"{alike} of {len(places)} words have the same sign in image and text. {counts}.",
            partial(scatter.scatter, points, "bias by the text (L)", "bias by the image (V)",
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
