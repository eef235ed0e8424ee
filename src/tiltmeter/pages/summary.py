"""The summary of a run: what is significant, and what cannot be concluded from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Finding, Row, Section, Table
from tiltmeter.pages.selection import by_unit
from tiltmeter.results import Run
from tiltmeter.stats.placebo import ESTABLISHED, FEWEST_PLACEBOS, NOT_ESTABLISHED, PERMUTATION_ONLY

SHOWN = {ESTABLISHED: 6, None: 5, PERMUTATION_ONLY: 3}
CHANGE = "section-change"


@dataclass(frozen=True)
class Summary:
    """Findings by verdict, the count of verdicts, limits, and what could be detected."""

    changed: list[Finding]  # where two runs are compared
    established: list[Finding]
    tested: list[Finding]  # of probes that have no neutral words to compare with
    permutation_only: list[Finding]
    verdicts: dict[str, int]
    sentence: str
    limits: list[str]
    power: Table | None


def summary(run: Run, sections: Sequence[Section], detectable: Sequence[Row] = ()) -> Summary:
    """What a reader who reads nothing else should know."""
    found = [one for section in sections for one in section.findings if section.name != CHANGE]
    kinds = {verdict: [one for one in found if one.verdict == verdict] for verdict in SHOWN}
    kinds[None] = by_unit(kinds[None])  # the others come attribute by attribute
    kinds = {verdict: mine[: SHOWN[verdict]] for verdict, mine in kinds.items()}
    verdicts: Counter[str] = Counter()
    for section in sections:
        verdicts.update(section.verdicts)
    counted = {name: verdicts[name] for name in (ESTABLISHED, PERMUTATION_ONLY, NOT_ESTABLISHED)}
    power = power_table(detectable)
    tested = pc.any(pc.is_valid(run.table["p_fwer"])).as_py() is True
    return Summary(
        [one for section in sections for one in section.findings if section.name == CHANGE],
        kinds[ESTABLISHED],
        kinds[None],
        kinds[PERMUTATION_ONLY],
        counted if sum(counted.values()) else {},
        _sentence(counted, kinds[ESTABLISHED] or kinds[None], tested=tested),
        _limits(run, counted, power),
        power,
    )


def _sentence(counts: dict[str, int], found: Sequence[Finding], *, tested: bool = True) -> str:
    total = sum(counts.values())
    if not total:
        if found:
            return (
                "Significant results are listed here. None was compared with neutral words, so "
                "none is called an association."
            )
        if tested:
            return "No result of this run is significant."
        return (
            "Nothing here can be called a finding: this run has no p-values that allow for all "
            "its rows together."
        )
    sure, weak = counts[ESTABLISHED], counts[PERMUTATION_ONLY]
    sentence = (
        f"Of {text.plural(total, 'pair')} of a word and a group, {sure:,} ({sure / total:.0%}) "
        f"{'is' if sure == 1 else 'are'} associated."
    )
    if not weak:
        return sentence
    return (
        f"{sentence} {weak:,} more ({weak / total:.0%}) {'is' if weak == 1 else 'are'} significant "
        "but not beyond neutral words: no evidence of a stereotype."
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


def _limits(run: Run, counts: dict[str, int], power: Table | None) -> list[str]:
    """What this run does not show."""
    limits = []
    if power is not None:
        worst = max(power.rows, key=lambda row: row["many"])
        limits.append(
            f"“Not significant” does not mean “no bias”. For {text.short(worst['group'])} "
            f"({text.short(worst['attribute'])}, {text.count(worst['n'])} images) an audit of this "
            f"size detects a C-ASC of {text.number(worst['many'], 2)} in 80 of 100 repetitions; "
            "smaller ones may be missed."
        )
    if sure := counts[ESTABLISHED]:
        total = sum(counts.values())
        limits.append(
            f"“Associated” is not certain. About one neutral word in twenty passes the comparison "
            f"with neutral words by chance: some of the {sure:,} of {total:,} may be such. Look at "
            "how many there are, not at one alone, and repeat with other templates, seeds or "
            "checkpoints."
        )
    if not sum(counts.values()) and "ranking" in run.instances:
        limits.append(
            "Nothing can be called an association here: that takes p-values, and at least "
            f"{FEWEST_PLACEBOS} neutral words of the same part of speech in the same templates."
        )
    limits.append(
        "Nothing about people. Group labels are perceived labels, assigned by others. The results "
        "are about a model or a corpus, a set of images or captions, a list of words and their "
        "wording; images of groups may differ in light, pose or background, and a word may be "
        "associated with these."
    )
    limits.append(
        "No harm by itself. Whether a bias does harm depends on what is built on the model. "
        "Results of other conventions, other k or other attributes are other quantities: do not "
        "compare them."
    )
    return limits
