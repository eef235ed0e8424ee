"""All tables and figures of So-B-IT of one run, as rows by name: what `tiltmeter words` shows."""

from __future__ import annotations

from tiltmeter.papers.sobit import (
    Row,
    attributes,
    category_means,
    category_of,
    changes,
    heat,
    leading,
    marked,
    of_category,
    top_words,
)
from tiltmeter.papers.top_composition import composition
from tiltmeter.results import Run

HEAT_WORDS = 6  # side by side in a heat table


def tables(
    run: Run,
    *,
    before: Run | None = None,
    attribute: str | None = None,
    category: str | None = None,
    valence: dict[str, float] | None = None,
    many: int = 1,
) -> dict[str, list[Row]]:
    """The rows of every table, by its name; `before` is the same audit before debiasing."""
    names = [attribute] if attribute else attributes(run)
    single = [name for name in names if "*" not in name or attribute]
    whole = run
    if category:  # words lead, and change most, among those of their category
        run = of_category(run, category)
        before = None if before is None else of_category(before, category)
    found: dict[str, list[Row]] = {
        "top_words": [row for name in single for row in top_words(run, name, many=many)],
        "category_means": [row for name in single for row in category_means(run, name)],
        "heat": [row for name in names if "*" in name for row in _heat(run, before, name)],
        "composition": [row for name in names for row in composition(whole, name)],
        "strength": run.where(probe="strength", metric="strength", attribute=None),
        "changes": [],
    }
    if before is not None:
        found["changes"] = [row for row in changes(before, run) if row["attribute"] in names]
    if valence:
        found["top_words"] = marked(found["top_words"], valence)
    if category:
        of = [row for row in found["composition"] if category_of(row) == category]
        found["composition"] = of
    return found


def _heat(run: Run, before: Run | None, intersection: str) -> list[Row]:
    """Words that lead for each group of the last attribute, as the paper chose them.

    Of a pair of runs those of the first are taken: the same words are seen before and after.
    """
    last = intersection.split("*")[-1]
    base = before if before is not None and intersection in attributes(before) else run
    if last not in attributes(base):
        return []
    groups = dict.fromkeys(row["group"] for row in top_words(base, last))
    return [
        {**row, "experiment": f"words nearest to {group}"}
        for group in groups
        for row in heat(run, intersection, leading(base, last, group, many=HEAT_WORDS))
    ]
