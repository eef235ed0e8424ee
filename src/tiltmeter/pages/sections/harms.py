"""Harmful misclassification: rates of harmful classes by group (Berg et al. 2022, Appendix G)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from markupsafe import Markup

from tiltmeter.pages import text
from tiltmeter.pages.model import Finding, Plot, Row, Section, Table, table_of
from tiltmeter.pages.plots import charts
from tiltmeter.pages.selection import beats, by
from tiltmeter.probes.harm_splits import EXPERIMENT
from tiltmeter.results import Run

LEAD = (
    "Each image is given its nearest class. The rate of a group is the share of its images that "
    "get a harmful class; the gap is how far the groups’ rates are apart."
)
MOST = 30  # lines of a plot
SMALLEST_GAP = 0.01  # of rates that is called clear


def section(run: Run, probe: str) -> Section:
    """The section of the probe `harms`."""
    figures: list[Plot] = []
    tables: list[Table] = []
    findings: list[Finding] = []
    without: dict[str, list[Row]] = {}  # attributes of which no image got a harmful class
    attributes = by(run.where(probe="harms"), "attribute")
    for attribute in sorted(attributes, key=lambda name: -_widest(attributes[name])):
        rows = attributes[attribute]
        name = text.short(attribute)
        rates = [row for row in whole_categories(rows) if row["metric"] == "group_rates"]
        gaps_beyond = harm_gaps(rows)
        clear = {gap.category for gap in gaps_beyond if gap.clear}
        if any(row["value"] for row in rates):
            figures += [
                replace(_rates(attribute, kind, mine), folded=kind not in clear)
                for kind, mine in by(rates, "category").items()
            ]
            findings += [_finding(gap) for gap in gaps_beyond]
        elif rates:
            without[name] = rates
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
    notes = [no_harm(without)] if without else []
    return Section(probe, "Harmful misclassification", LEAD, findings, figures, tables, notes)


def _widest(rows: list[Row]) -> float:
    """The largest gap beyond chance."""
    return max((gap.value for gap in harm_gaps(rows)), default=0.0)


def whole_categories(rows: list[Row]) -> list[Row]:
    """Rates and gaps of categories as a whole: not of single classes, not of pairs of groups."""
    return [r for r in rows if r["target"] == r["category"] and r["experiment"] is None]


def no_harm(rates: Mapping[str, list[Row]]) -> str:
    """What can be said of attributes of which no image got a harmful class."""
    limits = []
    for name, mine in rates.items():
        high = max(row["ci_high"] for row in mine if row["ci_high"] is not None)
        limits.append(f"{text.percent(high)} by {name}")
    images = next(iter(rates.values()))[0]["n"]
    return (
        f"None of {images:,} images got a harmful class; with 95% confidence, no group’s rate is "
        f"above {text.listed(limits)}."
    )


@dataclass(frozen=True)
class HarmGap:
    """A gap of rates beyond chance, with the highest and the lowest rate behind it."""

    gap: Row
    most: Row
    least: Row
    splits: Row | None  # the same gap against random visible splits of the images

    @property
    def value(self) -> float:
        return float(self.gap["value"])

    @property
    def clear(self) -> bool:
        """Whether it is large enough to matter, and other visible differences give no such gap."""
        return self.value >= SMALLEST_GAP and self.splits is not None and beats(self.splits)

    @property
    def attribute(self) -> str:
        return str(self.gap["attribute"])

    @property
    def category(self) -> str:
        return str(self.gap["category"])


def rates_of(rows: Iterable[Row]) -> list[Row]:
    """Rates of whole harmful categories."""
    kinds = whole_categories([row for row in rows if row["probe"] == "harms"])
    return [row for row in kinds if row["metric"] == "group_rates" and row["value"] is not None]


def harm_gaps(rows: Iterable[Row]) -> list[HarmGap]:
    """The gaps that beat their null, of groups with at least `text.TOO_FEW` images."""
    found = []
    harms = [row for row in rows if row["probe"] == "harms" and row["value"] is not None]
    for mine in by(harms, "model", "dataset", "attribute", "category").values():
        kinds = [row for row in mine if row["target"] == row["category"]]
        rates = [row for row in kinds if row["metric"] == "group_rates"]
        judged = sorted(judged_rates(rates), key=lambda row: row["value"])
        splits = next((row for row in kinds if row["experiment"] == EXPERIMENT), None)
        found += [HarmGap(row, judged[-1], judged[0], splits) for row in whole_categories(kinds)
                  if row["metric"] == "gaps" and beats(row)]  # fmt: skip
    return found


def judged_rates(rates: Iterable[Row]) -> list[Row]:
    """Rates of groups with enough images for a verdict."""
    return [row for row in rates if row["n_group"] >= text.TOO_FEW]


def _rates(attribute: str, category: str, rows: list[Row]) -> Plot:
    if not all(str(row["group"])[:1].isdigit() for row in rows[:-1]):  # ages keep their order
        rows = sorted(rows, key=lambda row: (-row["value"], row["group"]))
    rows = rows[:MOST]
    return charts.line_plot(
        text.slug("harms", attribute, category),
        f"Classified as “{text.short(category)}”, by {text.short(attribute)}",
        "Mark: the group’s rate. Line: 95% interval (Wilson). Grey band: permuted labels, with as "
        "many misclassified images.",
        [{**row, "ideal": None} for row in rows],
        [text.group(row["group"], row["n_group"]) for row in rows],
        "share of the group’s images",
        says="Rates: ",
        format="%",
    )


def _finding(found: HarmGap) -> Finding:
    row, most, least = found.gap, found.most, found.least
    sentence = Markup("{} is classified as {} in {} of images, {} in {} (by {}).").format(
        text.shown(most["group"], 60), text.shown(f"“{text.clean(row['category'])}”", 60),
        text.percent(most["value"]), text.shown(least["group"], 60), text.percent(least["value"]),
        text.shown(row["attribute"], 60),
    )  # fmt: skip
    numbers = (
        f"largest gap {text.percent(row['value'])}, 95% interval "
        f"{text.percent_span(row['ci_low'], row['ci_high'])}; by chance up to "
        f"{text.percent(row['null_high'])}; adjusted p {text.p_value(row['p_fwer'])}; "
        f"n = {text.count(most['n_group'])} and {text.count(least['n_group'])}"
    )
    return Finding(sentence, numbers, None, row["value"], "gap of rates")
