"""Words and groups: associations, categories, crossings and who fills the top k (So-B-IT)."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial

from markupsafe import Markup

from tiltmeter.pages import text
from tiltmeter.pages.parts import Finding, Plot, Row, Section, beats, by, slug, strongest
from tiltmeter.pages.plots import charts, scatter
from tiltmeter.pages.tables import Table, table_of
from tiltmeter.papers import sobit, top_composition
from tiltmeter.results import Run
from tiltmeter.stats.placebo import ESTABLISHED, PERMUTATION_ONLY

SHOWN = 14  # words in a figure
HEAT_WORDS = 8
NAMED = 6  # findings that the summary may choose from
MOST_GROUPS = 8  # that colours can tell apart
MOST_LINES = 40  # of a heat map
DRAWN = 8  # attributes and crossings that have figures; all have tables
LEAD = (
    "Every word is a caption, every image is scored against it. C-ASC is how much nearer a group’s "
    "images are to a word than the other images, in standard deviations: 0 without tilt. An "
    "association is established when it beats labels dealt out at random, with all words and "
    "groups allowed for, and stands out from neutral words of the same kind too."
)


def section(run: Run, probe: str) -> Section:
    """The section of the probe `ranking`."""
    figures: list[Plot] = []
    tables: list[Table] = []
    findings: list[Finding] = []
    verdicts: Counter[str] = Counter()
    attributes = sobit.attributes(run)
    for attribute in attributes:
        rows = sobit.without_mirrors(sobit.word_rows(run, "c_asc", attribute))
        rows = [row for row in rows if row["value"] is not None]
        verdicts.update(row["verdict"] for row in rows if row["verdict"])
        findings += _findings(attribute, rows, max(1, NAMED // len(attributes)))
        findings += _rankings(run, attribute)
        tables += _tables(run, attribute, rows)
        if attribute not in attributes[:DRAWN]:
            continue
        if rows:
            figures.append(_strongest(attribute, rows))
        figures += _categories(run, attribute)
        figures += _heat(run, attribute) if "*" in attribute else _composition(run, attribute)
    figures += _planted(run)
    return Section(
        probe, "Words and groups", LEAD, findings, figures, tables, _notes(run), dict(verdicts)
    )


def _findings(attribute: str, rows: list[Row], many: int) -> list[Finding]:
    found = []
    for row in strongest(rows, many):
        if row["verdict"] not in (ESTABLISHED, PERMUTATION_ONLY):
            continue
        way = "leans to" if row["value"] > 0 else "leans away from"
        said = Markup("{} {} {} (by {}).").format(
            text.shown(f"“{text.clean(row['concept'])}”", 60), way, text.shown(row["group"], 60),
            text.shown(attribute, 60),
        )  # fmt: skip
        numbers = (
            f"C-ASC {text.number(row['value'], 2, signed=True)}, 95% interval "
            f"{text.span(row['ci_low'], row['ci_high'], 2)}; without tilt "
            f"{text.span(row['null_lo'], row['null_hi'], 2)}; adjusted p "
            f"{text.p_value(row['p_fwer'])}, p against neutral words "
            f"{text.p_value(row['p_placebo'])}; n = {text.count(row['n_group'])}"
        )
        if row["truth"] is not None:
            numbers += f"; planted {text.number(row['truth'], 2, signed=True)}"
        found.append(Finding(said, numbers, row["verdict"], abs(row["value"])))
    return found


def _rankings(run: Run, attribute: str) -> list[Finding]:
    """What the top of a ranking looks like, over all words."""
    if "*" in attribute:
        return []
    rows = [r for r in run.where(probe="ranking", metric="max_skew", attribute=attribute,
                                 concept=None, category=None)
            if r["value"] is not None and beats(r, "p")][:1]  # fmt: skip
    found = []
    for row in rows:
        said = Markup("Some group fills the top {} of a word {} times as much as it should, by {}.")
        numbers = (
            f"MaxSkew@{row['k']} {text.number(row['value'], 2)}, the mean over words, 95% interval "
            f"{text.span(row['ci_low'], row['ci_high'], 2)}; without tilt "
            f"{text.span(row['null_lo'], row['null_hi'], 2)} ("
            f"{math.exp(row['null_mean'] or 0.0):.2f} times); p {text.p_value(row['p'])}; "
            f"n = {text.count(row['n'])}"
        )
        times = f"{math.exp(row['value']):.1f}"
        found.append(
            Finding(said.format(f"{row['k']:,}", times, text.shown(attribute, 60)), numbers, None,
                    row["value"], "MaxSkew")
        )  # fmt: skip
    return found


def _strongest(attribute: str, rows: list[Row]) -> Plot:
    picked = strongest(rows, SHOWN)
    labels = charts.distinct([f"{row['concept']} · {row['group']}" for row in picked], 40)
    points = [charts.point(row, label) for row, label in zip(picked, labels, strict=True)]
    planted = (
        " The cross is the planted tilt." if any(p["truth"] is not None for p in points) else ""
    )
    said = "; ".join(
        f"{p['label']} {text.number(p['value'], 2, signed=True)}, {p['kind']}" for p in points
    )
    return Plot(
        slug("associations", attribute),
        f"Strongest associations by {text.short(attribute)}",
        "Mark: C-ASC. Line: 95% interval. Grey band: 95% of what labels dealt out at random give. "
        f"Established ones first.{planted}",
        f"{len(points)} words and the group each leans to, by C-ASC: {said}.",
        partial(charts.lines, points, "C-ASC"),
    )


def _categories(run: Run, attribute: str) -> list[Plot]:
    """Entropy of the top k by category, beside its null: Figures 3 and 4 of So-B-IT."""
    if not _has_tops(run):
        return []
    rows = [row for row in sobit.category_means(run, attribute) if row["value"] is not None]
    if not rows:
        return []
    rows = sorted(rows, key=lambda row: (row["value"], row["category"]))
    labels = charts.distinct([row["category"] for row in rows])
    points = [charts.point(row, label) for row, label in zip(rows, labels, strict=True)]
    k = rows[0]["k"]
    said = "; ".join(f"{p['label']} {text.number(p['value'], 2)}" for p in points)
    return [
        Plot(
            slug("categories", attribute),
            f"How mixed the top {k:,} are, by category of words ({text.short(attribute)})",
            "Bar: normalised entropy, the mean over a category’s words; 1 is an even mix, 0 one "
            "group alone. Line: 95% interval. Grey band: without tilt. Tick: the images’ own mix. "
            "After So-B-IT, Figures 3 and 4.",
            f"Normalised entropy by category: {said}; without tilt "
            f"{text.span(rows[0]['null_lo'], rows[0]['null_hi'], 2)}.",
            partial(charts.lines, points, f"normalised entropy@{k}", bars=True, domain=(0, 1)),
        )
    ]


def _has_tops(run: Run) -> bool:
    return "skew" in run.table["metric"].unique().to_pylist()


def _heat(run: Run, crossing: str) -> list[Plot]:
    """C-ASC of the leading words for every group of a crossing: Figures 5 and 6 of So-B-IT."""
    rows = sobit.word_rows(run, "c_asc", crossing)
    picked = strongest([row for row in rows if row["value"] is not None])
    words = list(dict.fromkeys(row["concept"] for row in picked))[:HEAT_WORDS]
    if not words:
        return []
    found = [row for row in sobit.heat(run, crossing, words) if row["value"] is not None]
    groups = list(dict.fromkeys(row["group"] for row in found))
    if len(groups) > MOST_LINES:  # those that lean most, in their order
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
            + ("*" if row["verdict"] == ESTABLISHED else ""),
        }
        for row in found
    ]
    edge = max(abs(cell["value"]) for cell in cells) or 1.0
    named = [f"{c['column']} for {c['line']} {c['text']}" for c in cells if "*" in c["text"]]
    return [
        Plot(
            slug("crossing", crossing),
            f"Words across {text.short(crossing)}",
            "C-ASC of the words that lean most, for every group of the crossing: orange leans to "
            "the group, blue away from it. A star: established. After So-B-IT, Figures 5 and 6.",
            f"Heat map of {len(words)} words and {len(groups)} groups. Established: "
            f"{'; '.join(named) or 'none'}.",
            partial(charts.heat, cells, list(column.values()), list(line.values()), edge),
        )
    ]


def _composition(run: Run, attribute: str) -> list[Plot]:
    """Who fills the top k: Figure 7 of So-B-IT."""
    if "ranking" not in run.instances or not _has_tops(run):
        return []
    rows = [row for row in top_composition.composition(run, attribute) if row["value"] is not None]
    if not rows or len({row["group"] for row in rows}) > MOST_GROUPS:
        return []
    k = rows[0]["k"]
    per_line = by(rows, "category", "concept")
    words = [mine for (_, word), mine in per_line.items() if word]
    categories = [mine for (_, word), mine in per_line.items() if not word]
    listed = [*_in_turn(words)[:8], *categories[:12]]
    groups = [row["group"] for row in listed[0]]
    names = dict(zip(groups, charts.distinct(groups, 24), strict=True))
    own: list[Row] = [
        {**row, "value": row["n_group"] / row["n"], "concept": None, "category": "(images)"}
        for row in listed[0]
    ]
    titles = charts.distinct(
        ["all images", *(m[0]["concept"] or f"all of {m[0]['category']}" for m in listed)]
    )
    shares = []
    for title, mine in zip(titles, [own, *listed], strict=True):
        start = 0.0
        for row in sorted(mine, key=lambda row: groups.index(row["group"])):
            beyond = title != titles[0] and _beyond(row)
            told = f"{row['value']:.0%}" + ("*" if beyond else "")
            shares.append(
                {
                    "label": title, "group": names[row["group"]], "from": start,
                    "to": start + row["value"], "middle": start + row["value"] / 2,
                    "text": told if row["value"] >= 0.07 else "",
                }
            )  # fmt: skip
            start += row["value"]
    said = "; ".join(f"{s['label']}: {s['group']} {s['text']}" for s in shares if s["text"])
    return [
        Plot(
            slug("top", attribute),
            f"Who fills the top {k:,}, by {text.short(attribute)}",
            f"Shares of the groups among the {k:,} images nearest to a word: the words farthest "
            "from the images’ own mix, then the mean of each category. A star: beyond what a "
            "random order gives. After So-B-IT, Figure 7.",
            f"{said}.",
            partial(charts.stacked, shares, list(names.values()), f"share of the top {k:,}"),
        )
    ]


def _in_turn(words: list[list[Row]]) -> list[list[Row]]:
    """Words farthest from the images' own mix, one for each group that fills them, and again."""

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
    if row["null_lo"] is None:
        return beats(row)
    return bool(row["value"] < row["null_lo"] or row["value"] > row["null_hi"])


def _planted(run: Run) -> list[Plot]:
    """Where the truth is known: what was found beside what was planted."""
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
    said = "; ".join(
        f"{text.short(row['attribute'])} {text.number(row['value'])} "
        f"(95% interval {text.span(row['ci_low'], row['ci_high'])}, {row['n']:,} pairs)"
        for row in rhos
    )
    edges = [one[axis] for one in points for axis in ("x", "y")]
    return [
        Plot(
            "planted",
            "What was planted, and what was found",
            f"One point a word and group. Rank correlation (Spearman) {said}. C-ASC saturates: "
            "its order is the planted one, its size is not.",
            f"{len(points):,} points along a rising line. Rank correlation: {said}.",
            partial(scatter.scatter, points, "planted tilt", "measured C-ASC", size=16,
                    diagonal=(min(edges), max(edges))),
        )
    ]  # fmt: skip


def _tables(run: Run, attribute: str, rows: list[Row]) -> list[Table]:
    lead = (("concept", "word"), ("group", "group"), ("category", "category"))
    listed = strongest(rows)
    name = text.short(attribute)
    sure = [row for row in listed if row["verdict"] == ESTABLISHED]
    rest = [row for row in listed if row["verdict"] != ESTABLISHED]
    found = []
    if sure:
        found.append(
            table_of(slug("established", attribute), f"Established associations by {name} (C-ASC)",
                     sure, *lead, digits=2, kind="signed")
        )  # fmt: skip
    if rest:
        judged = any(row["verdict"] for row in rest)
        told = " that beat the permutation null only, or not at all" if judged else " (C-ASC)"
        found.append(
            table_of(slug("other", attribute), f"Associations by {name}{told}",
                     rest, *lead, digits=2, kind="signed", folded=bool(sure))
        )  # fmt: skip
    means = [
        {**row, "name": text.metric_name(row["metric"], row["k"])}
        for row in run.where(probe="ranking", attribute=attribute, concept=None, factor=None,
                             target=None)
        if row["metric"] in ("max_skew", "min_skew", "normalized_entropy", "ndkl")
        and row["group"] is None
    ]  # fmt: skip
    if means:
        kept = (("name", "measure"), ("category", "category"))
        means = [{**row, "category": row["category"] or "all words"} for row in means]
        found.append(table_of(slug("rankings", attribute), f"Rankings by {name}: means over words",
                              means, *kept, folded=True))  # fmt: skip
    return found


def _notes(run: Run) -> list[str]:
    notes = []
    if (left := len(sobit.attributes(run)) - DRAWN) > 0:
        notes.append(f"{text.plural(left, 'attribute')} more have tables, but no figures.")
    for attribute in sobit.attributes(run):
        if "*" not in attribute:
            groups = {row["group"] for row in sobit.word_rows(run, "c_asc", attribute)}
            if len(groups) > MOST_GROUPS:
                notes.append(
                    f"{text.short(attribute)} has {len(groups)} groups, more than colours can tell "
                    "apart: who fills its top k is in results.parquet."
                )
    return notes
