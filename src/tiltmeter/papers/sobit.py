"""The tables and figures of So-B-IT (Hamidieh et al. 2024), read off a finished run.

The probe `ranking` measures every word once. What is here chooses, sorts and joins its rows: each
function takes runs and returns rows of RESULTS (`changes`: of COMPARISON) as dictionaries. The
groups in the top k (Figure 7) are in `top_composition`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.judge.gate import compare
from tiltmeter.results import PLACEBO, RESULTS, Run, over_templates
from tiltmeter.stats.multiplicity import benjamini_hochberg

#: Tables 1 and 2 name some categories of Table 4 otherwise; so does the list `sobit-extra`.
ALSO_CALLED = {
    "Behavioral": "Behaviorial",
    "Edu. + Employ.": "Education and wealth",
    "Crime + Justice": "Criminal justice",
    "Geo. + Media": "Portrayal in Media",
}

Row = dict[str, Any]


def models(run: Run) -> list[str]:
    """Models whose words were ranked, in the order of the run."""
    return list(dict.fromkeys(_ranking(run.table)["model"].drop_null().to_pylist()))


def select_run(run: Run, *, model: str | None = None, dataset: str | None = None) -> Run:
    """The part of a run that is about one model and one dataset."""
    for column, wanted in (("model", model), ("dataset", dataset)):
        known = sorted(set(_ranking(run.table)[column].drop_null().to_pylist()))
        if wanted is None and len(known) > 1:
            raise InputError(
                f"the run has several: {', '.join(known)}. Choose one: --{column} NAME"
            )
        if wanted is not None and wanted not in known:
            raise UnknownNameError(column, wanted, known)
        if wanted is not None and len(known) > 1:
            shown, kept = (
                {name: one.filter(pc.equal(one[column], wanted)) for name, one in tables.items()
                 if column in one.column_names}
                for tables in (run.instances, run.vectors)
            )  # fmt: skip
            table = run.table.filter(pc.equal(run.table[column], wanted))
            run = Run(table, run.meta, shown, kept)
    return run


def of_category(run: Run, category: str) -> Run:
    """The rows of one category, under any of its names."""
    names = [category, *(name for name, other in ALSO_CALLED.items() if other == category)]
    keep = pc.is_in(run.table["category"], pa.array(names))
    return Run(run.table.filter(keep), run.meta, run.instances, run.vectors)


def attributes(run: Run) -> list[str]:
    """What the words were compared by, as measured: attributes, then intersections."""
    return list(dict.fromkeys(_ranking(run.table)["attribute"].drop_null().to_pylist()))


def word_rows(run: Run, metric: str, attribute: str, *, k: int | None = None) -> list[Row]:
    """One row for each word (and group): over all its templates, without the neutral words."""
    known = attributes(run)
    if attribute not in known:
        raise UnknownNameError("attribute of the run", attribute, known)
    return over_templates(_words(run.table, metric, attribute, k).to_pylist())[0]


def without_mirrors(rows: Sequence[Row]) -> list[Row]:
    """Each association once, of rows of C-ASC.

    Of two groups one has the other's C-ASC with the sign turned, the same p-values and the same
    verdict: the group with the higher C-ASC stays, or the first where both are equal.
    """
    found: dict[tuple[Any, ...], dict[str, list[Row]]] = {}
    for row in rows:
        mine = found.setdefault((row["attribute"], *_word(row), row["template"]), {})
        mine.setdefault(row["group"], []).append(row)  # several: other parts of speech
    return [
        row
        for mine in found.values()
        for several in zip(*mine.values(), strict=True)
        for row in ([max(several, key=_value)] if len(mine) == 2 else several)
    ]


def top_words(run: Run, attribute: str, *, many: int = 1) -> list[Row]:
    """The `many` words nearest to each group in each category, by C-ASC (Tables 1 and 2).

    Words of `sobit-extra` count in the categories of `sobit` that they belong to. The best of many
    words is chosen here: read `p_fwer`, which allows for the choice, and not `p`.
    """
    found: dict[tuple[str, str], list[Row]] = {}
    for row in word_rows(run, "c_asc", attribute):
        if row["value"] is not None:
            found.setdefault((category_of(row), row["group"]), []).append(row)
    return [
        {**row, "category": category}
        for (category, _), mine in found.items()
        for row in sorted(mine, key=lambda row: (-row["value"], row["concept"]))[:many]
    ]


def category_of(row: Row) -> str:
    """The category as Table 4 names it."""
    return ALSO_CALLED.get(row["category"] or "", row["category"] or "")


def category_means(
    run: Run, attribute: str, *, metric: str = "normalized_entropy", k: int | None = None
) -> list[Row]:
    """Each category's mean over its words, for every model, with its null (Figures 3 and 4)."""
    k = smallest_k(run) if k is None and metric not in ("ndkl", "c_asc") else k
    found = run.where(
        probe="ranking", metric=metric, attribute=attribute, k=k, concept=None, factor=None
    )
    return [row for row in found if row["category"] and row["target"] is None]


def leading(run: Run, attribute: str, group: str, *, many: int = 6) -> list[str]:
    """The words most associated with one group, by C-ASC."""
    listed = word_rows(run, "c_asc", attribute)
    if group not in (groups := {row["group"] for row in listed}):
        raise UnknownNameError(f"group of {attribute}", group, groups)
    mine = [row for row in listed if row["group"] == group and row["value"] is not None]
    ordered = sorted(mine, key=lambda row: (-row["value"], row["concept"]))
    return list(dict.fromkeys(row["concept"] for row in ordered))[:many]


def heat(run: Run, attribute: str, words: Sequence[str]) -> list[Row]:
    """C-ASC of some words for every group: the heat table of an intersection (Figures 5, 6)."""
    found: dict[str, dict[str, Row]] = {}
    for row in word_rows(run, "c_asc", attribute):
        found.setdefault(row["concept"], {}).setdefault(row["group"], row)
    for word in words:
        if word not in found:
            raise UnknownNameError("word of the run", word, found)
    return [row for word in words for row in found[word].values()]


def changes(before: Run, after: Run, *, many: int = 5) -> list[Row]:
    """The words in which each group's C-ASC changed most, for every attribute both runs have.

    Rows of COMPARISON, with the two verdicts. An interval puts those of the two runs together as if
    they were independent (Newcombe): runs on the same images share their noise, so it is wide.
    p_bh is over all words and groups, not over those chosen.
    """
    shared = [name for name in attributes(before) if name in attributes(after)]
    listed = [[row for name in shared for row in word_rows(run, "c_asc", name)]
              for run in (before, after)]  # fmt: skip
    old, new = ({_place(row): row for row in mine} for mine in listed)
    parts = (Run(pa.Table.from_pylist(mine, schema=RESULTS)) for mine in listed)
    found = [row for row in compare(*parts).table.to_pylist() if row["difference"] is not None]
    for row in found:
        first, second = old[_place(row)], new[_place(row)]
        row |= _interval(first, second)
        row |= {"verdict_before": first["verdict"], "verdict_after": second["verdict"]}
    p = np.array([row["p"] for row in found], dtype=float)
    for row, q in zip(found, benjamini_hochberg(p), strict=True):
        row["p_bh"] = None if np.isnan(q) else float(q)
    by_group: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(found, key=lambda row: (-abs(row["difference"]), row["concept"])):
        by_group.setdefault((row["attribute"], row["group"]), []).append(row)
    order = dict.fromkeys((row["attribute"], row["group"]) for row in listed[1])  # as measured
    return [row for place in order for row in by_group.get(place, [])[:many]]


def marked(listed: Sequence[Row], valence: Mapping[str, float]) -> list[Row]:
    """The same rows with the word's `valence` (0 unpleasant, 1 pleasant), None where unknown."""
    lower = {word.lower(): float(value) for word, value in valence.items()}
    return [{**row, "valence": lower.get(row["concept"].lower())} for row in listed]


def smallest_k(run: Run) -> int:
    """The k of So-B-IT's figures: 100 where it was measured, else the smallest there is."""
    table = run.table.filter(pc.equal(run.table["metric"], "skew"))
    known = sorted(set(table["k"].drop_null().to_pylist()))
    if not known:
        raise InputError("the run has no top-k results: audit with --probe ranking")
    return 100 if 100 in known else int(known[0])


def _ranking(table: pa.Table) -> pa.Table:
    return table.filter(pc.equal(table["probe"], "ranking"))


def _words(table: pa.Table, metric: str, attribute: str, k: int | None) -> pa.Table:
    """Rows of words. Filtered as a table: most rows of a run are of neutral words."""
    keep = pc.and_(pc.equal(table["probe"], "ranking"), pc.equal(table["metric"], metric))
    keep = pc.and_(keep, pc.equal(table["attribute"], attribute))
    keep = pc.and_(keep, pc.is_null(table["k"]) if k is None else pc.equal(table["k"], k))
    keep = pc.and_(keep, pc.is_valid(table["concept"]))
    placebo = pc.equal(pc.fill_null(table["category"], ""), PLACEBO)
    return table.filter(pc.and_(keep, pc.invert(placebo)))


def _word(row: Row) -> tuple[Any, ...]:
    return row["model"], row["dataset"], row["concept"], row["category"]


def _value(row: Row) -> float:
    return row["value"] or 0.0  # what is undefined is undefined for both groups


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("attribute", "group", "concept", "category", "template"))


def _interval(old: Row, new: Row) -> Row:
    """Newcombe's interval of the difference of two values that have intervals, and its p-value."""
    from scipy.stats import norm

    if any(row[edge] is None for row in (old, new) for edge in ("ci_low", "ci_high")):
        return {"note": "no interval: the runs were made without bootstrap resamples"}
    difference = new["value"] - old["value"]
    low = difference - np.hypot(new["value"] - new["ci_low"], old["ci_high"] - old["value"])
    high = difference + np.hypot(new["ci_high"] - new["value"], old["value"] - old["ci_low"])
    arm = difference - low if difference > 0 else high - difference  # the one that points to 0
    z = norm.ppf(0.975) * abs(difference) / arm if arm > 0 else 0.0
    return {"ci_low": float(low), "ci_high": float(high), "p": float(2 * norm.sf(z))}
