"""From representation to result: intrinsic against extrinsic bias (Ghate et al. 2025)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow.compute as pc
from markupsafe import Markup

from tiltmeter.metrics.propagation import spearman_p
from tiltmeter.pages import columns as col
from tiltmeter.pages import measured, text
from tiltmeter.pages.columns import Head
from tiltmeter.pages.model import Column, Finding, Plot, Row, Section, Table, table_of
from tiltmeter.pages.plots import charts, scatter
from tiltmeter.pages.selection import beats, by, by_unit
from tiltmeter.probes.propagation.experiments import EXPERIMENTS, ROLES
from tiltmeter.results import Run

LEAD = (
    "Does the bias of a model’s embeddings come out in what it retrieves? Every query has two "
    "numbers. Intrinsic: the association of its embedding, an SC-EAT effect. Extrinsic: what its "
    "top k are like; in experiments 1 their mean valence (0 unpleasant, 1 pleasant), in "
    "experiments 2 the share of them that belongs to a group. Bias is a difference between groups "
    "in either; rho says whether one follows the other. Numbers in different units do not compare."
)
#: Sentences on the valence of what is retrieved.
DIFFERENCE = {
    "1-a": "The words retrieved for images of {a} are {less} pleasant than those for {b}.",
    "1-b": "The images retrieved for phrases that name {a} are {less} pleasant than those for {b}.",
}
#: Of pleasant queries minus that of unpleasant ones.
LEAN = {
    "2-a": "Pleasant images retrieve {fewer} phrases that name {a} than unpleasant images do.",
    "2-b": "Pleasant words retrieve {fewer} images of {a} than unpleasant words do.",
}
POINTS = 300  # of each scatter; evenly spaced among the queries
FINDINGS = 6
SCATTERS = 8


def section(run: Run, probe: str) -> Section:
    """The section of the probe `propagation`, for all models of a run together."""
    rows = run.where(probe=probe)
    valued = [row for row in rows if row["value"] is not None]
    several = len({row["model"] for row in rows}) > 1
    rhos = rho_rows(valued)
    z_scores = [row for row in valued if row["metric"] == "intrinsic_z"]
    if several:
        pooled = run.where(probe="panel", metric="intrinsic_z")
        figures = [*overview(rhos), *z_plots([{**row, "model": "all models"} for row in pooled])]
    else:
        figures = [
            *(overview(rhos) if len({row["experiment"] for row in rhos}) > 1 else []),
            *rho_plot(rhos, measured.permutations(run)),
            *_scatters(run),
            *z_plots(z_scores),
        ]
    findings = [
        _finding(row, several=several)
        for row in valued
        if _separates(row) and beats(row) and "*" not in row["experiment"]
    ]
    lead: list[Head] = ["model"] * several
    lead += ["experiment", col.METRIC, "unit", "group",
                                   ("target", "minus"), ("category", "queries")]  # fmt: skip
    measures = [row for row in rows if not row["metric"].startswith("data_")]
    named = [{**row, "unit": unit(row)} for row in measures]
    tables = [
        table_of(
            "propagation", "All propagation results", named, *lead, kind="signed", folded=True
        ),
        *[rho_table(rhos)] * bool(rhos),
        *(replace(one, folded=True) for one in data_tables(rows)),
    ]
    found = by_unit(findings)[:FINDINGS]
    return Section(probe, "From embeddings to retrieval", LEAD, found, figures, tables)


def _separates(row: Row) -> bool:
    """Whether a difference is one that a model without bias does not show.

    How often words retrieve one group differs in a fair model too (testbed:fusion?twin=fair); that
    pleasant words do so more than unpleasant ones does not, nor does the valence retrieved.
    """
    if row["metric"] == "extrinsic_difference":
        return _by_valence(row["experiment"])
    return bool(row["metric"] == "extrinsic_lean")


def rho_rows(rows: list[Row]) -> list[Row]:
    """Every rho at its experiment's largest k, with its plain p: as if queries were unrelated."""
    rhos = [row for row in rows if row["metric"] == "rho" and row["value"] is not None]
    last: dict[Any, int] = {}
    for row in rhos:
        key = row["model"], row["experiment"]
        last[key] = max(last.get(key, 0), row["k"] or 0)
    return [
        {**row, "plain_p": spearman_p(row["value"], row["n"] or 0)}
        for row in rhos
        if (row["k"] or 0) == last[row["model"], row["experiment"]]
    ]


def overview(rhos: list[Row]) -> list[Plot]:
    """One chart of all experiments: a circle per analysis, a tick for its reference."""
    several = len({row["model"] for row in rhos}) > 1
    ordered = sorted(rhos, key=lambda row: (_place(row["experiment"]), str(row["model"])))
    labels = [
        f"{row['experiment']} · {text.short(row['model'], 30)}"
        if several
        else f"{row['experiment']}: {_retrieval(row['experiment'])}"
        for row in ordered
    ]
    plot = charts.dots_plot(
        "propagation-experiments",
        f"Rho in {len(rhos)} analyses",
        "Circle: Spearman’s rho of one analysis: of a group, or of all queries. Grey tick: the "
        "mean of the same rho with permuted labels. Only what is right of its tick says anything "
        "about valence or group; neither is bias.",
        ordered, labels, "rho",
    )  # fmt: skip
    return [plot] * bool(rhos)


def _place(experiment: str) -> tuple[int, str]:
    name = experiment.partition(" ")[0]
    known = list(EXPERIMENTS)
    return (known.index(name) if name in known else len(known), experiment)


def rho_table(rhos: list[Row]) -> Table:
    """Every rho with its interval, reference and both p-values."""
    rows = [{**row, "group": row["group"] or "all"} for row in rhos]
    columns = [
        *([Column("model", "model")] if len({row["model"] for row in rows}) > 1 else []),
        Column("experiment", "experiment"), Column("group", "group"),
        Column("rho", "value", "signed", 2), replace(col.INTERVAL, digits=2),
        Column("permuted labels", "null_mean", "signed", 2), Column("p, permuted", "p", "p"),
        Column("p, Holm", "p_fwer", "p"), Column("p, rho = 0", "plain_p", "p"), col.N,
        Column("interval", "ci_method"),
    ]  # fmt: skip
    return Table("propagation-rho", f"Rho of {len(rows)} analyses", columns, rows, folded=True)


def data_tables(rows: list[Row]) -> list[Table]:
    """Statistics of the data: items by role and group, templates, clusters, valence."""
    lines: dict[Any, Row] = {}
    for row in rows:
        if (row["metric"] or "").startswith("data_"):
            key = row["category"], row["dataset"], row["group"]
            line = lines.setdefault(
                key,
                {
                    "role": ROLES.get(row["category"], row["category"]),
                    "dataset": row["dataset"],
                    "group": row["group"],
                },
            )
            line[row["metric"].removeprefix("data_")] = row["value"]
    columns = [
        Column("data", "role"), Column("dataset", "dataset"), Column("group", "group"),
        Column("items", "items", "count"), Column("templates", "templates", "count"),
        Column("parents or words that items share", "clusters", "count"),
        Column("mean valence", "valence_mean", "value"), Column("SD", "valence_sd", "value"),
    ]  # fmt: skip
    caption = "What was measured with"
    return [Table("propagation-data", caption, columns, list(lines.values()))] * bool(lines)


def rho_plot(rows: list[Row], permutations: int | None) -> list[Plot]:
    """Rho of each analysis with its interval and the band of permuted labels."""
    several = len({row["model"] for row in rows}) > 1
    rows = sorted(rows, key=lambda row: _place(row["experiment"]))
    plot = charts.line_plot(
        "propagation-rho",
        "Does what is retrieved follow the association?",
        "Bar: Spearman’s rho of the intrinsic and the extrinsic number, over queries. Line: "
        "95% interval. Grey band: 95% of the same with the items’ labels permuted"
        + (f" {permutations:,} times." if permutations else "."),
        rows,
        [" · ".join([row["experiment"], row["group"] or "all", *[row["model"]] * several])
         for row in rows],
        "rho",
        says="Spearman’s rho: ", digits=2, signed=True, most=60 if several else 44, bars=True,
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


def _retrieval(experiment: str) -> str:
    """What retrieves what.

    >>> _retrieval("1-a (own)")
    'faces → lexicon sentences'
    """
    one = EXPERIMENTS[experiment.partition(" ")[0]]
    return f"{ROLES[one.queries]} → {ROLES[one.items]}"


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


def z_plots(rows: list[Row]) -> list[Plot]:
    """Group means as z-scores, one plot per model and experiment; of both bands in one."""
    found = []
    several = len({row["model"] for row in rows}) > 1
    for (model, experiment), mine in by(rows, "model", "experiment").items():
        if len({row["group"] for row in mine}) < 3:  # of two, both are 1 and -1 by construction
            continue
        name = text.short(experiment.removeprefix("propagation, "))
        found.append(
            charts.line_plot(
                text.slug("propagation-z", experiment, model if several else None),
                f"Groups in experiment {name}" + (f", {text.short(model)}" if several else ""),
                "Bar: the group’s mean intrinsic effect as a z-score over groups (Figures 6 "
                "and 7 of the paper). Line: 95% interval. Z-scores always spread: they show an "
                "order, and the table of differences shows whether there is any.",
                [{**row, "ideal": 0.0} for row in mine],
                [" · ".join(filter(None, [row["group"], row["category"]])) for row in mine],
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


def bias_sentences(rows: list[Row], metric: str) -> list[str]:
    """For each model, what groups differ in; or that no difference is beyond chance."""
    found = []
    for model, mine in by(rows, "model").items():
        tested = [row for row in mine if row["metric"] == metric and row["p_fwer"] is not None]
        certain = sorted(filter(beats, tested), key=lambda row: -abs(row["value"]))
        if tested and not certain:
            names = text.listed(list(dict.fromkeys(row["experiment"] for row in tested)))
            found.append(f"{model}: no difference between groups in what is retrieved is beyond "
                         f"chance ({names}, {text.plural(len(tested), 'test')}).")  # fmt: skip
        found += [
            f"{model}: {Markup(sentence(row)).striptags()} ({numbers(row)})"
            for row in certain[:FINDINGS]
        ]
    return found


def sentence(row: Row) -> Markup:
    """What a difference in what is retrieved says."""
    sentences = LEAN if row["metric"] == "extrinsic_lean" else DIFFERENCE
    up = row["value"] > 0
    return Markup(sentences[row["experiment"].partition(" ")[0]]).format(
        a=text.shown(row["group"], 60),
        b=text.shown(row["target"] or "", 60),
        less="more" if up else "less",
        fewer="more" if up else "fewer",
    )


def numbers(row: Row) -> str:
    """The numbers behind it."""
    # units are queries, or items if only these have groups: see `ResamplingUnits`
    of_items = row["experiment"].partition(" ")[0] in ("2-a", "2-b")
    units = "" if row["metric"] == "extrinsic_lean" else " items" if of_items else " queries"
    estimate = text.estimate(row, "difference", signed=True, null=False)
    return f"experiment {text.clean(row['experiment'])}, extrinsic, {unit(row)}: {estimate}{units}"


def _finding(row: Row, *, several: bool) -> Finding:
    model = f"{text.short(row['model'], 60)}: " if several else ""
    of = "valence" if _by_valence(row["experiment"]) else f"share, {row['metric']}"
    return Finding(sentence(row), model + numbers(row), None, abs(row["value"]), of)
