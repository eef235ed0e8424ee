"""Words and groups: associations, categories, intersections and the top k (So-B-IT)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.model import Plot, Row, Section, Table, table_of
from tiltmeter.pages.plots import charts, scatter
from tiltmeter.pages.selection import beats, by, strongest
from tiltmeter.papers import sobit
from tiltmeter.results import Run
from tiltmeter.stats.lift_verdict import CLEAR, WEAK

SHOWN = 14  # words in a plot
HEAT_WORDS = 8
MOST_GROUPS = 8  # that colours can tell apart
MOST_LINES = 40  # of a heat map
DRAWN = 8  # attributes and intersections that have plots; all have tables
LEAD = (
    "Every word is a caption, every image is scored against it. C-ASC is how much nearer a group’s "
    "images are to a word than the other images, in standard deviations: 0 without bias. It "
    "divides by the spread of a word’s own scores, so a model without bias has large values too: "
    "they tell the order of words, not the size of a bias. P-values are against permuted labels, "
    "adjusted for all words and groups, and against neutral words. Which words are associated with "
    "a group is judged by their lift."
)
NO_LIFT = (
    "No word is associated with a group by its lift. Ranks order differences however small they "
    "are, so a model without bias may fill the top with one group too: these figures are folded."
)


def section(run: Run, probe: str) -> Section:
    """The section of the probe `ranking`."""
    figures: list[Plot] = []
    tables: list[Table] = []
    attributes = sobit.attributes(run)
    for attribute in attributes:
        rows = sobit.without_mirrors(sobit.word_rows(run, "c_asc", attribute))
        rows = [{**row, "verdict": None} for row in rows if row["value"] is not None]
        tables += _tables(run, attribute, rows)
        if attribute not in attributes[:DRAWN]:
            continue
        if rows:
            figures.append(_strongest(attribute, rows))
        figures += _categories(run, attribute)
        figures += _heat(run, attribute) if "*" in attribute else _composition(run, attribute)
    figures += _planted(run)
    # one question of its own: who comes first; the rest is about C-ASC, and asked for
    tops = [one.name for one in figures if one.name.startswith("top-")]
    notes, judged = _notes(run), run.where(metric="lift_size")
    biased = [row for row in judged if row["verdict"] in (CLEAR, WEAK)]
    found = {text.slug("top", row["attribute"]) for row in biased}
    leading = [name for name in tops if name in found or not judged][:1]
    if tops and not leading:
        notes = [NO_LIFT, *notes]
    figures = [replace(one, folded=bool(tops) and one.name not in leading) for one in figures]
    figures.sort(key=lambda one: one.folded)
    return Section(probe, "Rankings and C-ASC", LEAD, [], figures, tables, notes)


def _strongest(attribute: str, rows: list[Row]) -> Plot:
    picked = strongest(rows, SHOWN)
    planted = " Cross: the planted bias." if any(r["truth"] is not None for r in picked) else ""
    return charts.line_plot(
        text.slug("associations", attribute),
        f"Largest C-ASC by {text.short(attribute)}",
        f"Mark: C-ASC. Line: 95% interval. Grey band: 95% of permuted labels.{planted}",
        picked,
        [f"{row['concept']} · {row['group']}" for row in picked],
        "C-ASC",
        says=f"{len(picked)} words with the group of each, by C-ASC: ",
        digits=2, signed=True, most=40,
    )  # fmt: skip


def _categories(run: Run, attribute: str) -> list[Plot]:
    """Entropy of the top k by category, with its null: Figures 3 and 4 of So-B-IT."""
    if "skew" not in run.table["metric"].unique().to_pylist():  # no top k was measured
        return []
    rows = [row for row in sobit.category_means(run, attribute) if row["value"] is not None]
    if not rows:
        return []
    rows = sorted(rows, key=lambda row: (row["value"], row["category"]))
    k = rows[0]["k"]
    return [
        charts.line_plot(
            text.slug("categories", attribute),
            f"How mixed the top {k:,} are, by category of words ({text.short(attribute)})",
            "Bar: normalised entropy, the mean over a category’s words; 1 is an even mix, 0 one "
            "group alone. Line: 95% interval. Grey band: permuted labels. A model without bias can "
            "be far outside it, so this is no size of bias. Tick: the mix of all images. After "
            "So-B-IT, Figures 3 and 4.",
            rows,
            [row["category"] for row in rows],
            f"normalised entropy@{k}",
            says=f"Permuted labels {text.span(rows[0]['null_low'], rows[0]['null_high'], 2)}. By "
            "category: ",
            digits=2, bars=True, domain=(0, 1),
        )
    ]  # fmt: skip


def _heat(run: Run, intersection: str) -> list[Plot]:
    """C-ASC of the leading words for every group of an intersection: Figures 5 and 6 of So-B-IT."""
    rows = sobit.word_rows(run, "c_asc", intersection)
    picked = strongest([row for row in rows if row["value"] is not None])
    words = list(dict.fromkeys(row["concept"] for row in picked))[:HEAT_WORDS]
    if not words:
        return []
    found = [row for row in sobit.heat(run, intersection, words) if row["value"] is not None]
    groups = list(dict.fromkeys(row["group"] for row in found))
    if len(groups) > MOST_LINES:  # those farthest from 0, in their order
        most = {one: max(abs(r["value"]) for r in found if r["group"] == one) for one in groups}
        kept = sorted(groups, key=lambda one: -most[one])[:MOST_LINES]
        groups = [one for one in groups if one in kept]
        found = [row for row in found if row["group"] in kept]
    column = dict(zip(words, charts.distinct(words, 24), strict=True))
    line = dict(zip(groups, charts.distinct(groups), strict=True))
    cells = [
        {
            "column": column[row["concept"]],
            "line": line[row["group"]],
            "value": row["value"],
            "text": text.number(row["value"], 1, signed=True)
            + "*" * (beats(row) and beats(row, "p_placebo")),
        }
        for row in found
    ]
    edge = max(abs(cell["value"]) for cell in cells) or 1.0
    named = [f"{c['column']} for {c['line']} {c['text']}" for c in cells if "*" in c["text"]]
    return [
        Plot(
            text.slug("intersection", intersection),
            f"Words by {text.short(intersection)}",
            "C-ASC of the strongest words, for every group of the intersection: orange above 0, "
            "blue below. A star: p adjusted and p among neutral words at most .05. After So-B-IT, "
            "Figures 5 and 6.",
            f"Heat map of {len(words)} words and {len(groups)} groups. With a star: "
            f"{'; '.join(named) or 'none'}.",
            partial(charts.heat, cells, list(column.values()), list(line.values()), edge),
        )
    ]


def _composition(run: Run, attribute: str) -> list[Plot]:
    """Shares of the groups in the top k: Figure 7 of So-B-IT."""
    rows = [row for row in run.where(probe="ranking", metric="composition", attribute=attribute)
            if row["value"] is not None]  # fmt: skip
    if not rows or len({row["group"] for row in rows}) > MOST_GROUPS:
        return []
    k = rows[0]["k"]
    per_line = by(rows, "category", "concept")
    words = [mine for (_, word), mine in per_line.items() if word]
    categories = [mine for (_, word), mine in per_line.items() if not word]
    listed = [*_in_turn(words)[:8], *categories[:12]]
    groups = [row["group"] for row in listed[0]]
    names = dict(zip(groups, charts.distinct(groups, 24), strict=True))
    images = [{**row, "value": row["n_group"] / row["n"]} for row in listed[0]]
    titles = charts.distinct(
        ["all images", *(m[0]["concept"] or f"all of {m[0]['category']}" for m in listed)]
    )
    bars = {
        title: [
            (names[row["group"]], row["value"],
             f"{row['value']:.0%}" + "*" * (mine is not images and _beyond(row)))
            for row in sorted(mine, key=lambda row: groups.index(row["group"]))
        ]
        for title, mine in zip(titles, [images, *listed], strict=True)
    }  # fmt: skip
    return [
        charts.stacked_plot(
            text.slug("top", attribute),
            f"Groups in the top {k:,}, by {text.short(attribute)}",
            f"Shares of the groups among the {k:,} images nearest to a word: the words farthest "
            "from the mix of all images, then the mean of each category. A star: beyond a random "
            "order. After So-B-IT, Figure 7.",
            bars,
            f"share of the top {k:,}",
        )
    ]


def _in_turn(words: list[list[Row]]) -> list[list[Row]]:
    """Words farthest from the mix of all images, one for each group that fills them, in turn."""

    def far(mine: list[Row]) -> float:
        return float(sum(abs(row["value"] - row["ideal"]) for row in mine))

    ordered = sorted(words, key=lambda mine: (-far(mine), mine[0]["concept"]))
    turns: dict[str, int] = {}
    placed = []
    for at, mine in enumerate(ordered):
        most = max(mine, key=lambda row: row["value"] - row["ideal"])["group"]
        turns[most] = turns.get(most, 0) + 1
        placed.append((turns[most], at, mine))
    return [mine for *_, mine in sorted(placed, key=lambda one: one[:2])]


def _beyond(row: Row) -> bool:
    """Outside the band of a random order; of several templates there is the test of the skew."""
    if row["null_low"] is None:
        return beats(row)
    return bool(row["value"] < row["null_low"] or row["value"] > row["null_high"])


def _planted(run: Run) -> list[Plot]:
    """Where the truth is known: planted and measured bias."""
    points = []
    for attribute in sobit.attributes(run):
        for row in sobit.word_rows(run, "c_asc", attribute):
            if row["truth"] is not None and row["value"] is not None:
                kind = text.short(attribute)
                points.append({"x": row["truth"], "y": row["value"], "kind": kind})
    if not points:
        return []
    rhos = [
        row for row in run.where(probe="ranking", metric="spearman") if row["value"] is not None
    ]
    sentence = "; ".join(
        f"{text.short(row['attribute'])} {text.number(row['value'])} "
        f"(95% interval {text.span(row['ci_low'], row['ci_high'])}, {row['n']:,} pairs)"
        for row in rhos
    )
    edges = [one[axis] for one in points for axis in ("x", "y")]
    return [
        Plot(
            "planted",
            "Planted and measured bias",
            f"One point per word and group. Rank correlation (Spearman) {sentence}. C-ASC "
            "saturates: its order is the planted one, its size is not.",
            f"{len(points):,} points along a rising line. Rank correlation: {sentence}.",
            partial(scatter.scatter, points, "planted bias", "measured C-ASC", size=16,
                    diagonal=(min(edges), max(edges))),
        )
    ]  # fmt: skip


def _tables(run: Run, attribute: str, rows: list[Row]) -> list[Table]:
    lead = (("concept", "word"), "group", "category")
    listed = strongest(rows)
    name = text.short(attribute)
    found = []
    if listed:
        found.append(
            table_of(text.slug("c-asc", attribute), f"Words by {name} (C-ASC)", listed, *lead,
                     digits=2, kind="signed", folded=True)
        )  # fmt: skip
    means = [
        {**row, "category": row["category"] or "all words"}
        for row in run.where(probe="ranking", attribute=attribute, concept=None, factor=None,
                             target=None)
        if row["metric"] in ("max_skew", "min_skew", "normalized_entropy", "ndkl")
        and row["group"] is None
    ]  # fmt: skip
    if means:
        found.append(
            table_of(text.slug("rankings", attribute), f"Rankings by {name}: means over words",
                     means, col.METRIC, "category", folded=True)
        )  # fmt: skip
    return found


def _notes(run: Run) -> list[str]:
    notes = []
    if (left := len(sobit.attributes(run)) - DRAWN) > 0:
        notes.append(f"{text.plural(left, 'attribute')} more have tables, but no plots.")
    for attribute in sobit.attributes(run):
        if "*" not in attribute:
            groups = {row["group"] for row in sobit.word_rows(run, "c_asc", attribute)}
            if len(groups) > MOST_GROUPS:
                notes.append(
                    f"{text.short(attribute)} has {len(groups)} groups, more than colours can tell "
                    "apart: the shares of its top k are in results.parquet."
                )
    return notes
