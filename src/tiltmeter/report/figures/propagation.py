"""From representation to result: intrinsic against extrinsic bias (Ghate et al. 2025)."""

from __future__ import annotations

from functools import partial

import pyarrow.compute as pc
from markupsafe import Markup

from tiltmeter.report import charts, clouds, text
from tiltmeter.report.parts import Figure, Finding, Row, Section, beats, by, slug
from tiltmeter.report.tables import table_of
from tiltmeter.results import Run

LEAD = (
    "Does the tilt of a model’s vectors come out in what it retrieves? Every query has two "
    "numbers: the association of its vector (intrinsic) and what its top k are like (extrinsic). "
    "Bias is how far groups lie apart in either; rho says whether one follows the other."
)
POINTS = 300  # of each scatter; evenly spaced among the queries
SCATTERS = 8


def section(run: Run, probe: str) -> Section:
    """The section of the probe `propagation`."""
    rows = run.where(probe=probe)
    valued = [row for row in rows if row["value"] is not None]
    figures = [
        *_rhos([row for row in valued if row["metric"] == "rho"]),
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
    findings.sort(key=lambda one: -one.weight)
    lead = (("experiment", "experiment"), ("metric", "measure"), ("group", "group"),
            ("target", "less"), ("category", "queries"))  # fmt: skip
    named = [{**row, "metric": text.metric_name(row["metric"], row["k"])} for row in rows]
    tables = [table_of("propagation", "Every figure of propagation", named, *lead, kind="signed")]
    return Section(probe, "From vectors to retrieval", LEAD, findings[:4], figures, tables)


def _rhos(rows: list[Row]) -> list[Figure]:
    if not rows:
        return []
    names = charts.distinct([f"{r['experiment']} · {r['group'] or 'all'}" for r in rows], 44)
    points = [charts.point(row, name) for row, name in zip(rows, names, strict=True)]
    said = "; ".join(f"{p['label']} {text.number(p['value'], 2, signed=True)}" for p in points)
    return [
        Figure(
            "propagation-rho",
            "Does what is retrieved follow the association?",
            "Bar: Spearman’s rho over queries. Line: 95% interval. Grey band: the same with the "
            "labels of the items dealt out at random.",
            f"Spearman’s rho: {said}.",
            partial(charts.lines, points, "rho", bars=True),
        )
    ]


def _scatters(run: Run) -> list[Figure]:
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
        every = max(1, len(pairs) // POINTS)
        points = pairs[::every][:POINTS]
        found.append(
            Figure(
                slug("propagation", experiment),
                f"Experiment {text.short(experiment)}: association and retrieval",
                f"One point a query: {len(points):,} of {len(pairs):,}, evenly spaced.",
                f"Scatter of {len(points):,} queries; its rank correlation is in the figure above.",
                partial(clouds.scatter, points, "intrinsic (effect)",
                        f"extrinsic ({other[len(experiment) + 1 :]})", crossing=False, size=18,
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


def _bars(rows: list[Row]) -> list[Figure]:
    found = []
    for (experiment, category), mine in by(rows, "experiment", "category").items():
        labels = charts.distinct([row["group"] for row in mine])
        points = [charts.point({**row, "ideal": 0.0}, label)
                  for row, label in zip(mine, labels, strict=True)]  # fmt: skip
        said = "; ".join(f"{p['label']} {text.number(p['value'], 2, signed=True)}" for p in points)
        queries = f", {category} queries" if category else ""
        if len(points) > 2:  # of two groups both are 1 and -1 by construction
            found.append(
                Figure(
                    slug("propagation-z", experiment, category),
                    f"Groups in experiment {text.short(experiment)}{text.short(queries)}",
                    "Bar: the group’s mean association as a z-score over groups (Figures 6 and 7 "
                    "of the paper).",
                    f"z-scores: {said}.",
                    partial(charts.lines, points, "z-score", bars=True),
                )
            )
    return found


def _finding(row: Row) -> Finding:
    lean = row["metric"] == "extrinsic_lean"
    said = (
        Markup("{} comes up more with pleasant queries than with unpleasant ones.")
        if lean and row["value"] > 0
        else Markup("{} comes up less with pleasant queries than with unpleasant ones.")
        if lean
        else Markup("What is retrieved for {} differs in pleasantness from what is for {}.")
    ).format(text.shown(row["group"], 60), text.shown(row["target"] or "", 60))
    numbers = (
        f"experiment {text.clean(row['experiment'])}: difference "
        f"{text.number(row['value'], signed=True)}, 95% interval "
        f"{text.span(row['ci_low'], row['ci_high'])}; adjusted p {text.p_value(row['p_fwer'])}; "
        f"n = {text.count(row['n'])}"
    )
    return Finding(said, numbers, None, abs(row["value"]))
