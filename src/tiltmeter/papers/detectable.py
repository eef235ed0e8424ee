"""The smallest associations that a finished audit could have detected, from its group sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc

from tiltmeter.results import PLACEBO, Run
from tiltmeter.stats.power import association_count, smallest_effect

POWER = 0.8


def detectable(run: Run) -> list[dict[str, Any]]:
    """The smallest C-ASC found in 80 of 100 repetitions, by attribute and group.

    `one` is for one word tested alone, `many` for all words of the run together.
    """
    table = run.table
    keep = pc.and_(pc.equal(table["probe"], "ranking"), pc.equal(table["metric"], "c_asc"))
    keep = pc.and_(keep, pc.and_(pc.is_valid(table["concept"]), pc.is_valid(table["n_group"])))
    measured = table.filter(keep)
    neutral = pc.equal(pc.fill_null(measured["category"], ""), PLACEBO)
    words = len(pc.unique(measured.filter(pc.invert(neutral))["concept"]))
    sizes: dict[tuple[str, str], dict[str, int]] = {}
    grouped = measured.group_by(["dataset", "attribute", "group"], use_threads=False)
    for row in grouped.aggregate([("n_group", "max")]).to_pylist():
        place = sizes.setdefault((row["dataset"], row["attribute"]), {})
        place[row["group"]] = row["n_group_max"]
    found = []
    for (_, attribute), groups in sizes.items():
        if len(groups) < 2:
            continue
        counts = np.array(list(groups.values()))
        tests = max(1, association_count(words, len(groups)))
        one = smallest_effect(counts, power=POWER)
        many = smallest_effect(counts, power=POWER, tests=tests)
        for at, (group, n) in enumerate(groups.items()):
            found.append({"attribute": attribute, "group": group, "n": n, "share": n / counts.sum(),
                          "one": float(one[at]), "many": float(many[at])})  # fmt: skip
    return found
