"""From representation to result: intrinsic against extrinsic bias (Ghate et al. 2025)."""

from __future__ import annotations

from functools import partial

import pyarrow.compute as pc
from markupsafe import Markup

from tiltmeter.pages import columns as col
from tiltmeter.pages import measured, text
from tiltmeter.pages.model import Finding, Plot, Row, Section, table_of
from tiltmeter.pages.plots import charts, scatter
from tiltmeter.pages.selection import beats, by, by_unit
from tiltmeter.results import Run

LEAD = (
    "Does the bias of a model’s embeddings come out in what it retrieves? Every query has two "
    "numbers. Intrinsic: the association of its embedding, an SC-EAT effect. Extrinsic: what its "
    "top k are like; in experiments 1 their mean valence (0 unpleasant, 1 pleasant), in "
    "experiments 2 the share of them that belongs to a group. Bias is a difference between groups "
    "in either; rho says whether one follows the other. Numbers in different units do not compare."
)
#: Sentences on what is retrieved: 1-a and 1-b measure its valence, 2-a and 2-b shares of groups.
DIFFERENCE = {
    "1-a": "The words retrieved for faces of {a} are {less} pleasant than those for {b}.",
    "1-b": "The images retrieved for phrases that name {a} are {less} pleasant than those for {b}.",
    "2-a": "Phrases for {a} are a {smaller} share of what images retrieve than those for {b}.",
    "2-b": "Faces of {a} are a {smaller} share of what words retrieve than those of {b}.",
}
#: Of pleasant queries minus that of unpleasant ones.
LEAN = {
    "2-a": "Pleasant images retrieve {fewer} phrases that name {a} than unpleasant images do.",
    "2-b": "Pleasant words retrieve {fewer} faces of {a} than unpleasant words do.",
}
POINTS = 300  # of each scatter; evenly spaced among the queries
FINDINGS = 6
SCATTERS = 8


def section(run: Run, probe: str) -> Section:
    """The section of the probe `propagation`."""
    rows = run.where(probe=probe)
    valued = [row for row in rows if row["value"] is not None]
    figures = [
        *_rhos([row for row in valued if row["metric"] == "rho"], measured.permutations(run)),
        *_scatters(run),
        *_bars([row for row in valued if row["metric"] == "intrinsic_z"]),
    ]
    findings = [
        _finding(row)
        for row in valued
        if row["metric"] in ("extrinsic_difference", "extrinsic_lean")
        and "*" not in row["experiment"]
        and beats(row)
    ]
    lead = ("experiment", col.METRIC, "unit", "group",
            ("target", "minus"), ("category", "queries"))  # fmt: skip
    named = [{**row, "unit": unit(row)} for row in rows]
    tables = [
        table_of("propagation", "All propagation results", named, *lead, kind="signed", folded=True)
    ]
    found = by_unit(findings)[:FINDINGS]
    return Section(probe, "From embeddings to retrieval", LEAD, found, figures, tables)


def _rhos(rows: list[Row], permutations: int | None) -> list[Plot]:
    plot = charts.line_plot(
        "propagation-rho",
        "Does what is retrieved follow the association?",
        "Bar: Spearman’s rho of the intrinsic and the extrinsic number, over queries. Line: "
        "95% interval. Grey band: 95% of the same with the items’ labels permuted"
        + (f" {permutations:,} times." if permutations else "."),
        rows,
        [f"{row['experiment']} · {row['group'] or 'all'}" for row in rows],
        "rho",
        says="Spearman’s rho: ", digits=2, signed=True, most=44, bars=True,
    )  # fmt: skip
    return [plot] * bool(rows)


def _scatters(run: Run) -> list[Plot]:
    table = run.instances.get("propagation")
    if table is None:
        return []
    names = dict.fromkeys(table["experiment"].to_pylist())
    inner = [name for name in names if name.endswith(" intrinsic")]
    found = []
    for name in inner[:SCATTERS]:
        experiment = name.removesuffix(" intrinsic")
        other = next((n for n in names if n.startswith(f"{experiment} extrinsic")), None)
        if other is None:
            continue
        pairs = _pairs(*(table.filter(pc.equal(table["experiment"], n)) for n in (name, other)))
        if len(pairs) < 3:
            continue
        k = other.rpartition("@")[2]
        valence = _by_valence(experiment)
        inner_axis = "pleasant v unpleasant" if valence else "the group v all groups"
        every = max(1, len(pairs) // POINTS)
        points = pairs[::every][:POINTS]
        found.append(
            Plot(
                text.slug("propagation", experiment),
                f"Experiment {text.short(experiment)}: association and retrieval",
                f"One point per query: {len(points):,} of {len(pairs):,}, evenly spaced. Across: "
                f"the intrinsic SC-EAT effect, {inner_axis}. Up: the extrinsic "
                f"{extrinsic_unit(experiment, k)}.",
                f"Scatter of {len(points):,} queries; its rank correlation is in the figure above.",
                partial(scatter.scatter, points, f"intrinsic: SC-EAT effect, {inner_axis}",
                        f"extrinsic: {extrinsic_unit(experiment, k)}", axes=False, size=18,
                        height=260),
            )
        )  # fmt: skip
    return found


def _pairs(inner: object, outer: object) -> list[Row]:
    """Both numbers of each query, by its id, concept and template."""

    def keyed(table: object) -> dict[tuple[object, ...], Row]:
        return {
            (row["id"], row["concept"], row["template"]): row
            for row in table.to_pylist()  # type: ignore[attr-defined]
            if row["score"] is not None
        }

    first, second = keyed(inner), keyed(outer)
    return [
        {"x": one["score"], "y": second[key]["score"],
         "kind": text.short(one["concept"]) if one["concept"] else "value"}
        for key, one in first.items()
        if key in second
    ]  # fmt: skip


def _bars(rows: list[Row]) -> list[Plot]:
    found = []
    for (experiment, category), mine in by(rows, "experiment", "category").items():
        queries = f", {category} queries" if category else ""
        if len(mine) > 2:  # of two groups both are 1 and -1 by construction
            found.append(
                charts.line_plot(
                    text.slug("propagation-z", experiment, category),
                    f"Groups in experiment {text.short(experiment)}{text.short(queries)}",
                    "Bar: the group’s mean intrinsic effect as a z-score over groups (Figures 6 "
                    "and 7 of the paper).",
                    [{**row, "ideal": 0.0} for row in mine],
                    [row["group"] for row in mine],
                    "intrinsic effect, z-score",
                    says="z-scores: ", digits=2, signed=True, bars=True,
                )
            )  # fmt: skip
    return found


def _by_valence(experiment: str) -> bool:
    """Whether items are looked at for their valence (1*-a ... 1-b) or for their group (2*-a ...).

    >>> _by_valence("1*-a (own)"), _by_valence("2-b")
    (True, False)
    """
    return experiment.startswith("1")


def extrinsic_unit(experiment: str, k: object) -> str:
    """What the extrinsic number of an experiment is.

    >>> extrinsic_unit("1-a", 500)
    'mean valence of the top 500'
    """
    of = "mean valence" if _by_valence(experiment) else "share of the group"
    return f"{of} {'of' if _by_valence(experiment) else 'in'} the top {k}"


def unit(row: Row) -> str | None:
    """The unit of a row of results.

    >>> unit({"metric": "extrinsic_lean", "experiment": "2-a", "k": 500})
    'share of the group in the top 500'
    """
    metric, experiment = row["metric"], row["experiment"]
    if metric == "intrinsic_z":
        return "z-score over groups"
    if metric.startswith("rho"):
        return "rank correlation"
    if metric.startswith("extrinsic"):
        return extrinsic_unit(experiment, row["k"])
    if metric.startswith("intrinsic"):
        return f"SC-EAT effect, {'valence' if _by_valence(experiment) else 'group'}"
    return None


def _finding(row: Row) -> Finding:
    sentences = LEAN if row["metric"] == "extrinsic_lean" else DIFFERENCE
    up = row["value"] > 0
    sentence = Markup(sentences[row["experiment"].partition(" ")[0]]).format(
        a=text.shown(row["group"], 60),
        b=text.shown(row["target"] or "", 60),
        less="more" if up else "less",
        fewer="more" if up else "fewer",
        smaller="larger" if up else "smaller",
    )
    numbers = (
        f"experiment {text.clean(row['experiment'])}, extrinsic, {unit(row)}: "
        + text.estimate(row, "difference", signed=True, null=False)
    )
    of = "valence" if _by_valence(row["experiment"]) else f"share, {row['metric']}"
    return Finding(sentence, numbers, None, abs(row["value"]), of)
