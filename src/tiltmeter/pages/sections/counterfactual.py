"""Hidden words: what they owe to who is seen, and to who is named (CounterBias)."""

from __future__ import annotations

from functools import partial

from markupsafe import Markup

from tiltmeter.pages import text
from tiltmeter.pages.parts import Finding, Plot, Row, Section, beats, slug
from tiltmeter.pages.plots import charts, scatter
from tiltmeter.pages.tables import table_of
from tiltmeter.results import Run

LEAD = (
    "A word is hidden, and the person in the picture, in the text, or in both is changed to the "
    "other group. The bias of a word is how far its probability moves with the group: above 0 "
    "towards the first group."
)
PARTS = {"VL": "picture and text", "V": "picture", "L": "text"}
NAMED = 12  # words that are named in the scatter


def section(run: Run, probe: str) -> Section:
    """The section of the probe `counterfactual`."""
    rows = run.where(probe=probe)
    over = [row for row in rows if row["template"] is None and row["value"] is not None]
    figures, findings = [], []
    experiments = dict.fromkeys(row["experiment"] for row in over if row["metric"] == "bias_V")
    for experiment in experiments:
        mine = [row for row in over if row["experiment"] == experiment]
        figures += _quadrants(experiment, mine)
        figures += _sizes(experiment, mine)
    for row in over:
        if row["metric"] == "abs_bias_VL" and beats(row):
            findings.append(_finding(row))
    lead = (("experiment", "pictures, softmax"), ("category", "words"), ("metric", "measure"),
            ("target", "word"))  # fmt: skip
    words = [row for row in over if row["metric"] in ("bias_VL", "bias_V", "bias_L")]
    words.sort(key=lambda row: -abs(row["value"]))
    tables = [
        table_of("hidden-words", "Bias of every hidden word", words, *lead, kind="signed"),
        table_of("hidden-totals", "Sizes, flips and shifts",
                 [r for r in rows if r["metric"] not in ("bias_VL", "bias_V", "bias_L", "quadrant")
                  and (r["target"] is None or r["metric"] == "text_bias")],
                 *lead, ("template", "template"), folded=True),
    ]  # fmt: skip
    notes = [
        f"{text.short(row['experiment'])}: of {row['n']:,} pictures read right, "
        f"{row['value']:.0%} are read as the other group "
        f"(95% interval {text.span(row['ci_low'], row['ci_high'], 2)})."
        for row in rows
        if row["metric"] == "flip_rate" and row["value"] is not None
    ]
    return Section(probe, "Hidden words", LEAD, findings, figures, tables, notes)


def _quadrants(experiment: str, rows: list[Row]) -> list[Plot]:
    """Visual against language bias: Figure 7 of the paper."""
    of = {
        part: {(r["category"], r["target"]): r["value"] for r in rows if r["metric"] == part}
        for part in ("bias_V", "bias_L")
    }
    shared = [key for key in of["bias_V"] if key in of["bias_L"]]
    if len(shared) < 2:
        return []
    ends = {key: (of["bias_L"][key], of["bias_V"][key]) for key in shared}
    far = sorted(shared, key=lambda key: (-(ends[key][0] ** 2 + ends[key][1] ** 2), str(key)))
    points = [
        {
            "x": ends[key][0],
            "y": ends[key][1],
            "kind": text.short(key[0] or "words"),
            "text": text.short(key[1], 18) if key in far[:NAMED] else "",
        }
        for key in far
    ]
    alike = sum(x * y > 0 for x, y in ends.values())
    counts = "; ".join(
        f"{text.short(row['category'] or 'words')}, {text.short(row['group'], 50)}: "
        f"{row['value']:.0f} of {row['n']}"
        for row in rows
        if row["metric"] == "quadrant"
    )
    return [
        Plot(
            slug("quadrants", experiment),
            f"Picture against text ({text.short(experiment, 50)})",
            f"One point a word: bias by the text and by the picture. In the upper right and lower "
            f"left quadrant both point the same way: {alike} of {len(shared)} words.",
            f"{alike} of {len(shared)} words point the same way in picture and text. {counts}.",
            partial(scatter.scatter, points, "bias by the text (L)", "bias by the picture (V)",
                    size=60, height=380),
        )
    ]  # fmt: skip


def _sizes(experiment: str, rows: list[Row]) -> list[Plot]:
    drawn = [row for row in rows if row["metric"].startswith("abs_bias_")]
    if not drawn:
        return []
    names = [f"{row['category'] or 'words'}: {PARTS[row['metric'][9:]]}" for row in drawn]
    points = [charts.point(row, label)
              for row, label in zip(drawn, charts.distinct(names), strict=True)]  # fmt: skip
    said = "; ".join(f"{p['label']} {text.number(p['value'])}" for p in points)
    return [
        Plot(
            slug("hidden-sizes", experiment),
            f"Mean absolute bias ({text.short(experiment, 50)})",
            "Bar: mean absolute bias over the words of a list. Line: 95% interval. Grey band: "
            "without tilt. An absolute value is above 0 without any.",
            f"Mean absolute bias: {said}.",
            partial(charts.lines, points, "mean absolute bias", bars=True),
        )
    ]


def _finding(row: Row) -> Finding:
    said = Markup("Hidden words of {} move with the group that is seen and named ({}).").format(
        text.shown(f"“{text.clean(row['category'] or 'all')}”", 60),
        text.shown(row["experiment"], 60),
    )
    numbers = (
        f"mean absolute bias {text.number(row['value'])}, 95% interval "
        f"{text.span(row['ci_low'], row['ci_high'])}; without tilt "
        f"{text.span(row['null_lo'], row['null_hi'])}; adjusted p {text.p_value(row['p_fwer'])}; "
        f"n = {text.count(row['n'])} words"
    )
    return Finding(said, numbers, None, row["value"] / (row["null_hi"] or 1.0), "times the null")
