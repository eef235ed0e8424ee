"""Two runs side by side: what changed, and which way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltmeter.errors import InputError
from tiltmeter.metrics.convention import same_convention
from tiltmeter.results import COMPARISON, KEY, Run

#: Changes smaller than this are rounding.
SAME = 1e-12


@dataclass(frozen=True, eq=False)
class Comparison:
    """Measurements that two runs share, before and after."""

    table: pa.Table

    @property
    def worse(self) -> pa.Table:
        """The rows that moved away from their ideal."""
        return self.table.filter(pc.equal(self.table["direction"], "worse"))


def compare(before: Run, after: Run) -> Comparison:
    """What the second run has that the first had too, row by row, signed.

    Runs of different conventions measured different things: that is an error.
    """
    # utility is measured under no convention
    named = [*before.conventions, *after.conventions]
    convention = same_convention(named) if named else None
    key = list(KEY)
    old = {tuple(row[name] for name in key): row for row in before.table.to_pylist()}
    new = {tuple(row[name] for name in key): row for row in after.table.to_pylist()}
    shared = [row for row in new if row in old]
    if not shared:
        raise InputError(
            "the two runs share no measurement: they must use the same data set, words and probes"
        )
    a, b, ideal = (
        np.array([source[row][name] for row in shared], dtype=float)
        for source, name in ((old, "value"), (new, "value"), (new, "ideal"))
    )
    excess = np.abs(b - ideal) - np.abs(a - ideal)
    direction = np.select([np.isnan(excess), excess > SAME, excess < -SAME],
                          ["", "worse", "better"], "same")  # fmt: skip
    columns: dict[str, Any] = {name: [row[at] for row in shared] for at, name in enumerate(key)}
    columns |= {
        "before": a,
        "after": b,
        "ideal": ideal,
        "difference": b - a,
        "excess": excess,
        "direction": [name or None for name in direction],
        "convention": [convention] * len(shared),
    }
    arrays = [
        pa.array(columns.get(f.name, [None] * len(shared)), type=f.type, from_pandas=True)
        for f in COMPARISON
    ]
    return Comparison(pa.Table.from_arrays(arrays, schema=COMPARISON))
