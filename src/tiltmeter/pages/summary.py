"""The summary of a run: its verdict, what to do next, and what cannot be concluded from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tiltmeter.pages import text
from tiltmeter.pages.lift_findings import ATTRIBUTE_VERDICTS
from tiltmeter.pages.model import Column, Finding, Row, Section, Table
from tiltmeter.pages.next_steps import Step, next_steps
from tiltmeter.pages.planted import planted_table
from tiltmeter.pages.selection import by_unit
from tiltmeter.pages.verdict import Answer, answers, sentence
from tiltmeter.results import Run

LIFTS, TESTED = 12, 5  # findings of a kind that are shown
CHANGE = "section-change"


@dataclass(frozen=True)
class Summary:
    """The verdict with its answers, the findings behind it, limits, and what could be detected."""

    changed: list[Finding]  # where two runs are compared
    lift: list[Finding]  # by attribute and class of words
    tested: list[Finding]  # of probes that have no neutral words to compare with
    verdicts: dict[str, int]  # of words, by lift
    sentence: str
    answers: list[Answer]
    steps: list[Step]
    planted: Table | None
    limits: list[str]
    power: Table | None


def summary(run: Run, sections: Sequence[Section], detectable: Sequence[Row] = ()) -> Summary:
    """What a reader who reads nothing else should know."""
    found = [one for section in sections for one in section.findings if section.name != CHANGE]
    tested = by_unit(one for one in found if one.verdict not in ATTRIBUTE_VERDICTS)
    verdicts: Counter[str] = Counter()
    for section in sections:
        verdicts.update(section.verdicts)
    power = power_table(detectable)
    return Summary(
        [one for section in sections for one in section.findings if section.name == CHANGE],
        [one for one in found if one.verdict in ATTRIBUTE_VERDICTS][:LIFTS],
        tested[:TESTED],
        {name: verdicts[name] for name in text.VERDICTS} if verdicts else {},
        sentence(run),
        answers(run, sections),
        next_steps(run),
        planted_table(run),
        _limits(verdicts, power),
        power,
    )


def power_table(rows: Sequence[Row]) -> Table | None:
    """The table of `papers.detectable`."""
    if not rows:
        return None
    return Table(
        "power",
        "The smallest C-ASC that an audit of this size detects in 80 of 100 repetitions",
        [
            Column("attribute", "attribute"),
            Column("group", "group"),
            Column("images", "n", "count"),
            Column("share", "share", "percent"),
            Column("one word", "one", "value", 2),
            Column("all words together", "many", "value", 2),
        ],
        rows,
        folded=True,
    )


def _limits(verdicts: Counter[str], power: Table | None) -> list[str]:
    """What this run does not show."""
    limits = []
    limits.append(
        "Nothing about people. Group labels are perceived labels, assigned by others. The results "
        "are about a model or a corpus, a set of images or captions, a list of words and their "
        "wording; images of groups may differ in light, pose or background, and a word may be "
        "associated with these."
    )
    if verdicts:
        limits.append(
            "“None found” and “cannot tell” do not mean “no bias”: other words, templates or "
            "images may show one. “Associated” is not certain: up to one associated word in ten "
            "is a false discovery. Neutral words are the reference, so what they share with the "
            "words is not seen. Intervals cover the samples of images and words, not how well "
            "the model learned."
        )
    if power is not None:
        worst = max(power.rows, key=lambda row: row["many"])
        limits.append(
            f"A large p-value does not mean “no bias”. For {text.short(worst['group'])} "
            f"({text.short(worst['attribute'])}, {text.count(worst['n'])} images) an audit of this "
            f"size detects a C-ASC of {text.number(worst['many'], 2)} in 80 of 100 repetitions; "
            "smaller ones may be missed."
        )
    limits.append(
        "No harm by itself. Whether a bias does harm depends on what is built on the model. "
        "Results of other conventions, other k or other attributes are other quantities: do not "
        "compare them."
    )
    return limits
