"""Before and after: what a correction changed, and what it cost."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from tiltmeter.judge.gate import Comparison, compare
from tiltmeter.judge.gate.change_verdict import (
    BETTER,
    CANNOT_TELL,
    NO_WORSE,
    QUESTIONS,
    UTILITY,
    WORSE,
    question_of,
)
from tiltmeter.judge.gate.decision import LIFTS, metric_label, value_label
from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Finding, Plot, Row, Section, table
from tiltmeter.pages.plots import charts
from tiltmeter.pages.sections.frontier import front
from tiltmeter.pages.selection import by
from tiltmeter.results import PLACEBO, Run

LEAD = (
    "Four questions about the same images, before and after: association, retrieval, harms and "
    "utility. Worse: certainly farther from the ideal by more than the margin, allowing for all "
    "tests together. A correction for one attribute may bias another, so every attribute is tested."
)
ARROWS = 8
SAME, SMALL = "the same", math.log(1.1)  # nats of a word
ORDER = {WORSE: 0, CANNOT_TELL: 1, NO_WORSE: 2, BETTER: 3}
USEFUL = ("recall", "accuracy")


def change(before: Run, after: Run) -> Section:
    """The section that compares a run with the one before it."""
    compared = compare(before, after)
    tests = [row for row in compared.tests.to_pylist() if row["verdict"] is not None]
    tests.sort(key=lambda row: ORDER[row["verdict"]])
    for row in tests:
        change, low, high = changes(row)
        row |= {"question": question_of(row), "name": metric_label(row), "change": change,
                "low": low, "high": high, "is_lift": row["metric"] in LIFTS}  # fmt: skip
    words = [row for row in compared.words.to_pylist() if row["metric"] == "lift"]
    plots = [_arrows(attribute, own) for attribute, own in by(words, "attribute").items()]
    plots += _fronts(before, after) + _cost(after)
    heads = {"question": "question", "attribute": "by", "name": "measure", "target": "class"}
    filled = [Column(head, key) for key, head in heads.items()
              if any(row[key] is not None for row in tests)]  # fmt: skip
    made = table("All tests, what got worse first", tests, *filled, "verdict",
                 *(Column(name, (name, "is_lift"), "unit") for name in ("before", "after")),
                 Column("change", ("change", "is_lift"), "signed_unit"),
                 Column("95% interval", ("low", "high", "is_lift"), "unit_span"), col.P_ADJUSTED,
                 col.N)  # fmt: skip
    return Section("change", "Before and after", LEAD, change_findings(compared), plots,
                   [replace(made, name="changes")], _notes(compared))  # fmt: skip


def _notes(compared: Comparison) -> list[str]:
    if compared.untested is not None:
        return [f"Nothing was tested: {text.short(compared.untested, 400)}."]
    notes = [
        f"{question.capitalize()}: nothing tested: {text.short(reason, 200)}."
        for question, reason in compared.untested_questions.items()
    ]
    if compared.unpaired is not None:
        notes.append(
            "The images of the two runs are not paired, so their errors are added as if the runs "
            f"were independent, which detects less. Why: {text.short(compared.unpaired, 200)}."
        )
    return notes


def changes(row: Row) -> tuple[float, float, float]:
    """The change of a test and its interval: of what is best when high, the change itself."""
    if question_of(row) == UTILITY or row["metric"] == "normalized_entropy":
        return -row["excess"], -row["ci_high"], -row["ci_low"]
    return row["excess"], row["ci_low"], row["ci_high"]


def change_findings(compared: Comparison) -> list[Finding]:
    """One sentence for each question that was tested."""
    found = []
    for question in QUESTIONS:
        rows = compared.answers(question)
        if not rows:
            continue
        said: dict[str, str] = {}  # several tests are about one thing: what matters most is said
        for verdict in (WORSE, CANNOT_TELL, BETTER, NO_WORSE):
            for row in rows:
                # neutral words are named where they are a warning
                if row["verdict"] == verdict and (row["category"] != PLACEBO or verdict == WORSE):
                    said.setdefault(_about(row), verdict)
        parts = [f"{verdict} {text.listed([name for name, of in said.items() if of == verdict])}"
                 for verdict in ORDER if verdict in said.values()]  # fmt: skip
        telling = min(rows, key=lambda row: (ORDER[row["verdict"]], -row["excess"]))
        if telling["verdict"] in (NO_WORSE, BETTER):  # then what was gained
            telling = min(rows, key=lambda row: row["excess"])
        by_attribute = f" by {text.short(telling['attribute'])}" if telling["attribute"] else ""
        found.append(
            Finding(
                f"{question.capitalize()}: {'; '.join(parts)}.",
                f"{metric_label(telling)}{by_attribute} {value_label(telling, 'before')} before, "
                f"{value_label(telling, 'after')} after ({telling['verdict']}); adjusted p "
                f"{text.p_value(telling['p_fwer'])}; n = {text.count(telling['n'])}",
                None,
            )
        )
    return found


def _about(row: Row) -> str:
    """What a test is about, within its question."""
    if not row["attribute"]:
        return f"in {metric_label(row)}"
    neutral = "for neutral words " if row["category"] == PLACEBO else ""
    return f"{neutral}by {text.short(row['attribute'])}"


def _arrows(attribute: str, rows: list[Row]) -> Plot:
    rows = sorted(rows, key=lambda row: (-abs(row["difference"]), row["concept"], row["group"]))
    groups = {row["group"] for row in rows}
    if len(groups) == 2:  # one mirrors the other
        rows = [row for row in rows if row["group"] == min(groups)]
    rows = [mine[0] for mine in by(rows, "concept").values()][:ARROWS]
    labels = charts.distinct([f"{row['concept']} · {row['group']}" for row in rows], 40)
    values = [
        {"label": label, "before": row["before"], "after": row["after"],
         "way": SAME if abs(row["excess"]) < SMALL else BETTER if row["excess"] < 0 else WORSE}
        for row, label in zip(rows, labels, strict=True)
    ]  # fmt: skip
    sentence = "; ".join(
        f"{v['label']} from {math.exp(v['before']):.2f}x to {math.exp(v['after']):.2f}x"
        for v in values
    )
    return Plot(
        text.slug("arrows", attribute),
        f"Words whose lift changed most, by {text.short(attribute)}",
        "Dot: lift before. Arrow head: after. The line at 1x is the ideal. Of each word, the group "
        "that changed most. Better: nearer to 1x. The same: changed by less than 1.1x. Single "
        "words decide nothing.",
        f"Lift before and after: {sentence}.",
        partial(charts.arrows, values, "times as high with the group as with the others"),
        folded=all(one["way"] == SAME for one in values),
    )


def _fronts(before: Run, after: Run) -> list[Plot]:
    """Bias against utility, where both runs measured both."""
    places = [_places(run) for run in (before, after)]
    found = []
    for useful, biased in [key for key in places[0] if key in places[1]][:3]:
        points: list[Row] = [
            {"x": place[useful, biased][0], "y": place[useful, biased][1], "text": name}
            for name, place in zip(("before", "after"), places, strict=True)
        ]
        about = "A correction should move down and not left."
        found.append(front(text.slug("front", useful, biased), points, useful, biased, about))
    return found


def _places(run: Run) -> dict[tuple[str, str], tuple[float, float]]:
    """Utility and bias of a run, by their names."""
    rows = [row for row in run.where(concept=None, category=None, factor=None, target=None,
                                     group=None) if row["value"] is not None]  # fmt: skip
    useful: dict[str, Any] = {
        f"{text.metric_name(r['metric'], r['k'])} {r['experiment'] or ''}".strip(): r["value"]
        for r in rows
        if r["metric"] in USEFUL
    }
    biased = {
        f"{text.metric_name(r['metric'], r['k'])} by {text.short(r['attribute'])}": r["value"]
        for r in rows
        if r["metric"] == "max_skew"
    }
    return {(use, name): (useful[use], value) for use in list(useful)[:1]
            for name, value in biased.items()}  # fmt: skip


def _cost(after: Run) -> list[Plot]:
    """The utility cost of the correction, as measured when it was made."""
    costs = (after.meta.get("model", {}).get("debiaser") or {}).get("utility_cost") or []
    rows = [{"value": one["change"], "ci_low": one["change_low"], "ci_high": one["change_high"],
             "ideal": 0.0} for one in costs]  # fmt: skip
    plot = charts.line_plot(
        "utility-cost",
        "Utility cost of the correction",
        "Mark: change of utility on held-out data. Line: 95% interval.",
        rows,
        [one["metric"] for one in costs],
        "change",
        says="Changes: ",
        signed=True,
    )
    return [plot] * bool(rows)
