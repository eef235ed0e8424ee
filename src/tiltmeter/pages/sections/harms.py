"""Who is taken for an animal or a criminal (Berg et al. 2022, Appendix G)."""

from __future__ import annotations

from functools import partial

from markupsafe import Markup

from tiltmeter.pages import text
from tiltmeter.pages.parts import Finding, Plot, Row, Section, beats, by, slug
from tiltmeter.pages.plots import charts
from tiltmeter.pages.tables import Table, table_of
from tiltmeter.results import Run

LEAD = (
    "Each image is given its nearest class. The rate of a group is the share of its images that "
    "land in a class that does harm; what counts is how far the groups’ rates lie apart."
)
MOST = 30  # lines of a figure


def section(run: Run, probe: str) -> Section:
    """The section of the probe `harms`."""
    figures: list[Plot] = []
    tables: list[Table] = []
    findings: list[Finding] = []
    notes: list[str] = []
    for attribute, rows in by(run.where(probe="harms"), "attribute").items():
        kinds = [r for r in rows if r["target"] == r["category"] and r["experiment"] is None]
        rates = [r for r in kinds if r["metric"] == "group_rates"]
        if any(row["value"] for row in rates):
            figures += [
                _rates(attribute, name, mine) for name, mine in by(rates, "category").items()
            ]
            findings += [_finding(*three) for three in apart_beyond_chance(kinds)]
        elif rates:
            most = max(row["ci_high"] for row in rates if row["ci_high"] is not None)
            notes.append(
                f"{text.short(attribute)}: none of {rates[0]['n']:,} images was taken for what "
                f"does harm; of no group more than {text.percent(most)}, with 95% confidence."
            )
        lead = (("category", "category"), ("target", "class"), ("group", "group"))
        single = [row for row in rows if row["metric"] == "group_rates"]
        name = text.short(attribute)
        tables.append(table_of(slug("harms", attribute), f"Rates by {name}", single, *lead,
                               folded=True))  # fmt: skip
        apart = [{**row, "experiment": row["experiment"] or "largest gap"}
                 for row in rows if row["metric"] == "gaps"]  # fmt: skip
        lead = (("category", "category"), ("target", "class"), ("experiment", "between"))
        tables.append(table_of(slug("harm-gaps", attribute), f"Gaps between groups by {name}",
                               apart, *lead, folded=True))  # fmt: skip
    return Section(probe, "Harmful misclassification", LEAD, findings, figures, tables, notes)


def apart_beyond_chance(rows: list[Row]) -> list[tuple[Row, Row, Row]]:
    """The gaps that beat their null, each with the highest and the lowest rate behind it."""
    found = []
    same = ("model", "dataset", "attribute", "category")
    for mine in by(rows, *same).values():
        kinds = [r for r in mine if r["target"] == r["category"] and r["experiment"] is None]
        rates = [r for r in kinds if r["metric"] == "group_rates" and r["value"] is not None]
        ordered = sorted(rates, key=lambda row: row["value"])
        found += [(row, ordered[-1], ordered[0]) for row in kinds
                  if row["metric"] == "gaps" and beats(row)]  # fmt: skip
    return found


def _rates(attribute: str, category: str, rows: list[Row]) -> Plot:
    rows = sorted(rows, key=lambda row: (-row["value"], row["group"]))[:MOST]
    labels = charts.distinct([row["group"] for row in rows])
    points = [charts.point({**row, "ideal": None}, label)
              for row, label in zip(rows, labels, strict=True)]  # fmt: skip
    said = "; ".join(f"{p['label']} {text.percent(p['value'])}" for p in points)
    return Plot(
        slug("harms", attribute, category),
        f"Taken for “{text.short(category)}”, by {text.short(attribute)}",
        "Mark: the group’s rate. Line: 95% interval (Wilson). Grey band: labels dealt out at "
        "random among as many misread images.",
        f"Rates: {said}.",
        partial(charts.lines, points, "share of the group’s images", format="%"),
    )


def _finding(row: Row, most: Row, least: Row) -> Finding:
    said = Markup("{} is taken for {} in {} of images, {} in {} (by {}).").format(
        text.shown(most["group"], 60), text.shown(f"“{text.clean(row['category'])}”", 60),
        text.percent(most["value"]), text.shown(least["group"], 60), text.percent(least["value"]),
        text.shown(row["attribute"], 60),
    )  # fmt: skip
    interval = "no interval"
    if row["ci_low"] is not None:
        interval = f"95% interval {text.percent(row['ci_low'])} to {text.percent(row['ci_high'])}"
    numbers = (
        f"largest gap {text.percent(row['value'])}, {interval}; without tilt up to "
        f"{text.percent(row['null_hi'])}; adjusted p {text.p_value(row['p_fwer'])}; "
        f"n = {text.count(most['n_group'])} and {text.count(least['n_group'])}"
    )
    return Finding(said, numbers, None, row["value"], "gap of rates")
