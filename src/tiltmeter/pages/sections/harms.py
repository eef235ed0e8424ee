"""Harmful misclassification: rates of harmful classes by group (Berg et al. 2022, Appendix G)."""

from __future__ import annotations

from markupsafe import Markup

from tiltmeter.pages import text
from tiltmeter.pages.model import Finding, Plot, Row, Section, Table, table_of
from tiltmeter.pages.plots import charts
from tiltmeter.pages.selection import beats, by
from tiltmeter.results import Run

LEAD = (
    "Each image is given its nearest class. The rate of a group is the share of its images that "
    "get a harmful class; the gap is how far the groups’ rates are apart."
)
MOST = 30  # lines of a plot


def section(run: Run, probe: str) -> Section:
    """The section of the probe `harms`."""
    figures: list[Plot] = []
    tables: list[Table] = []
    findings: list[Finding] = []
    notes: list[str] = []
    for attribute, rows in by(run.where(probe="harms"), "attribute").items():
        name = text.short(attribute)
        rates = [row for row in whole_categories(rows) if row["metric"] == "group_rates"]
        if any(row["value"] for row in rates):
            figures += [
                _rates(attribute, kind, mine) for kind, mine in by(rates, "category").items()
            ]
            findings += [_finding(*three) for three in apart_beyond_chance(rows)]
        elif rates:
            notes.append(no_harm(name, rates))
        lead = ("category", ("target", "class"))
        single = [row for row in rows if row["metric"] == "group_rates"]
        gaps = [{**row, "experiment": row["experiment"] or "largest gap"}
                for row in rows if row["metric"] == "gaps"]  # fmt: skip
        tables += [
            table_of(text.slug("harms", attribute), f"Rates by {name}", single, *lead,
                     "group", folded=True),
            table_of(text.slug("harm-gaps", attribute), f"Gaps between groups by {name}", gaps,
                     *lead, ("experiment", "between"), folded=True),
        ]  # fmt: skip
    return Section(probe, "Harmful misclassification", LEAD, findings, figures, tables, notes)


def whole_categories(rows: list[Row]) -> list[Row]:
    """Rates and gaps of categories as a whole: not of single classes, not of pairs of groups."""
    return [r for r in rows if r["target"] == r["category"] and r["experiment"] is None]


def no_harm(name: str, rates: list[Row]) -> str:
    """What can be sentence where no image got a harmful class."""
    most = max(row["ci_high"] for row in rates if row["ci_high"] is not None)
    return (
        f"{name}: none of {rates[0]['n']:,} images got a harmful class; no group’s rate is above "
        f"{text.percent(most)}, with 95% confidence."
    )


def apart_beyond_chance(rows: list[Row]) -> list[tuple[Row, Row, Row]]:
    """The gaps that beat their null, each with the highest and the lowest rate behind it."""
    found = []
    for mine in by(whole_categories(rows), "model", "dataset", "attribute", "category").values():
        rates = [r for r in mine if r["metric"] == "group_rates" and r["value"] is not None]
        ordered = sorted(rates, key=lambda row: row["value"])
        found += [(row, ordered[-1], ordered[0]) for row in mine
                  if row["metric"] == "gaps" and beats(row)]  # fmt: skip
    return found


def _rates(attribute: str, category: str, rows: list[Row]) -> Plot:
    rows = sorted(rows, key=lambda row: (-row["value"], row["group"]))[:MOST]
    return charts.line_plot(
        text.slug("harms", attribute, category),
        f"Classified as “{text.short(category)}”, by {text.short(attribute)}",
        "Mark: the group’s rate. Line: 95% interval (Wilson). Grey band: permuted labels, with as "
        "many misclassified images.",
        [{**row, "ideal": None} for row in rows],
        [row["group"] for row in rows],
        "share of the group’s images",
        says="Rates: ",
        format="%",
    )


def _finding(row: Row, most: Row, least: Row) -> Finding:
    sentence = Markup("{} is classified as {} in {} of images, {} in {} (by {}).").format(
        text.shown(most["group"], 60), text.shown(f"“{text.clean(row['category'])}”", 60),
        text.percent(most["value"]), text.shown(least["group"], 60), text.percent(least["value"]),
        text.shown(row["attribute"], 60),
    )  # fmt: skip
    numbers = (
        f"largest gap {text.percent(row['value'])}, 95% interval "
        f"{text.percent_span(row['ci_low'], row['ci_high'])}; without bias up to "
        f"{text.percent(row['null_high'])}; adjusted p {text.p_value(row['p_fwer'])}; "
        f"n = {text.count(most['n_group'])} and {text.count(least['n_group'])}"
    )
    return Finding(sentence, numbers, None, row["value"], "gap of rates")
