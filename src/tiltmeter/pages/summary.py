"""The run in plain words: what stands out, and what cannot be concluded from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from tiltmeter.pages import text
from tiltmeter.pages.parts import Finding, Section, by_unit
from tiltmeter.pages.tables import Column, Table
from tiltmeter.results import Run
from tiltmeter.stats.placebo import ESTABLISHED, FEWEST_PLACEBOS, NOT_ESTABLISHED, PERMUTATION_ONLY
from tiltmeter.stats.power import association_count, smallest_effect

SHOWN = {ESTABLISHED: 6, None: 5, PERMUTATION_ONLY: 3}
POWER = 0.8
CHANGE = "section-change"


@dataclass(frozen=True)
class Summary:
    """Findings by how sure they are, the count of verdicts, limits, and what could be seen."""

    changed: list[Finding]  # where two runs are compared
    established: list[Finding]
    tested: list[Finding]  # of probes that have no neutral words to compare with
    permutation_only: list[Finding]
    verdicts: dict[str, int]
    sentence: str
    limits: list[str]
    power: Table | None


def summary(run: Run, sections: Sequence[Section]) -> Summary:
    """What a reader who reads nothing else should know."""
    changed = [one for section in sections for one in section.findings
               if section.name == CHANGE]  # fmt: skip
    found = [one for section in sections for one in section.findings if section.name != CHANGE]
    verdicts = Counter[str]()
    for section in sections:
        verdicts.update(section.verdicts)
    established, tested, weak = (
        [one for one in found if one.verdict == verdict] for verdict in SHOWN
    )
    tested = by_unit(tested)  # the others come attribute by attribute
    established, tested, weak = (
        mine[:many] for mine, many in zip((established, tested, weak), SHOWN.values(), strict=True)
    )
    power = power_table(run)
    counted = {name: verdicts[name] for name in (ESTABLISHED, PERMUTATION_ONLY, NOT_ESTABLISHED)}
    return Summary(
        changed,
        established,
        tested,
        weak,
        counted if sum(counted.values()) else {},
        _sentence(
            counted,
            established or tested,
            tested=pc.any(pc.is_valid(run.table["p_fwer"])).as_py() is True,
        ),
        _limits(run, counted, power),
        power,
    )


def _sentence(counts: dict[str, int], found: Sequence[Finding], *, tested: bool = True) -> str:
    total = sum(counts.values())
    if not total:
        return (
            "What beats its null is listed here. Nothing in this run was compared with neutral "
            "words, so nothing is called established."
            if found
            else "Nothing in this run stands out from its null."
            if tested
            else "Nothing here can be called a finding: this run has no p-values that allow for "
            "all its rows together."
        )
    sure, weak = counts[ESTABLISHED], counts[PERMUTATION_ONLY]
    said = (
        f"Of {text.plural(total, 'association')} between a word and a group, {sure:,} "
        f"({sure / total:.0%}) {'is' if sure == 1 else 'are'} established."
    )
    if not weak:
        return f"{said} None beats the permutation null only."
    verb, they = ("beats", "it is") if weak == 1 else ("beat", "they are")
    return (
        f"{said} {weak:,} more ({weak / total:.0%}) {verb} the permutation null only: neutral "
        f"words lean as far, so {they} no evidence of a stereotype."
    )


def power_table(run: Run) -> Table | None:
    """The smallest C-ASC that this audit would have found in 80 of 100 repetitions, by group."""
    table = run.table
    keep = pc.and_(pc.equal(table["probe"], "ranking"), pc.equal(table["metric"], "c_asc"))
    keep = pc.and_(keep, pc.and_(pc.is_valid(table["concept"]), pc.is_valid(table["n_group"])))
    mine = table.filter(keep).select(["dataset", "attribute", "group", "n_group", "concept",
                                      "category"])  # fmt: skip
    placebo = pc.equal(pc.fill_null(mine["category"], ""), "placebo")
    words = len(pc.unique(mine.filter(pc.invert(placebo))["concept"]))
    sizes: dict[tuple[str, str], dict[str, int]] = {}
    counted = mine.group_by(["dataset", "attribute", "group"], use_threads=False).aggregate(
        [("n_group", "max")]
    )
    for row in counted.to_pylist():
        place = sizes.setdefault((row["dataset"], row["attribute"]), {})
        place[row["group"]] = row["n_group_max"]
    rows: list[dict[str, Any]] = []
    for (_, attribute), groups in sizes.items():
        if len(groups) < 2:
            continue
        counts = np.array(list(groups.values()))
        one = smallest_effect(counts, power=POWER)
        many = smallest_effect(
            counts, power=POWER, tests=max(1, association_count(words, len(groups)))
        )
        for at, (group, n) in enumerate(groups.items()):
            rows.append({"attribute": attribute, "group": group, "n": n, "share": n / counts.sum(),
                         "one": float(one[at]), "many": float(many[at])})  # fmt: skip
    if not rows:
        return None
    return Table(
        "power",
        "The smallest C-ASC that an audit of this size finds in 80 of 100 repetitions",
        [
            Column("attribute", ("attribute",), "text"),
            Column("group", ("group",), "text"),
            Column("images", ("n",), "count"),
            Column("share", ("share",), "percent"),
            Column("one word", ("one",), "value", 2),
            Column("all words together", ("many",), "value", 2),
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
            f"“Not established” does not mean “no tilt”. For {text.short(worst['group'])} "
            f"({text.short(worst['attribute'])}, {text.count(worst['n'])} images) an audit of this "
            f"size finds a C-ASC of {text.number(worst['many'], 2)} in 80 of 100 repetitions; "
            "smaller ones may be there unseen."
        )
    if sure := counts[ESTABLISHED]:
        total = sum(counts.values())
        limits.append(
            f"“Established” is not certain. About one neutral word in twenty passes the "
            f"comparison with neutral words by chance: some of the {sure:,} of {total:,} may be "
            "such. Look at how many there are, not at one alone, and repeat with other templates, "
            "seeds or checkpoints."
        )
    if not sum(counts.values()) and "ranking" in run.instances:
        limits.append(
            "Nothing can be called established here: that takes p-values, and at least "
            f"{FEWEST_PLACEBOS} neutral words of the same part of speech in the same templates."
        )
    limits.append(
        "Nothing about people. Labels of groups are perceived labels, as somebody else assigned "
        "them. The figures are about a model or a corpus, a set of images or captions, a list of "
        "words and their wording; pictures of groups may differ in light, pose or background, and "
        "a word may lean to these."
    )
    limits.append(
        "No harm by itself. A tilt becomes harm, or not, in what is built on the model. And "
        "figures of other conventions, other k or other attributes are other quantities: do not "
        "compare them."
    )
    return limits
