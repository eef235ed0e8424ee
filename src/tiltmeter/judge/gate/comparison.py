"""Two runs side by side: what changed, which way, and whether the change is more than chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltmeter.errors import ConventionError, InputError
from tiltmeter.judge.gate.intervals import interval_tests
from tiltmeter.judge.gate.run_scores import EmbeddingsUnavailableError, PairedRuns, pair
from tiltmeter.judge.gate.untested import why
from tiltmeter.judge.gate.utility import usefulness_tests
from tiltmeter.metrics.convention import CHOICES, Convention, same_convention
from tiltmeter.results import COMPARISON, KEY, Run, combined
from tiltmeter.types import Floats, Groups, Progress

#: Changes smaller than this are rounding.
SAME = 1e-12
LEVEL = 0.05
BETTER, WORSE, EQUIVALENT, UNKNOWN = "better", "worse", "equivalent", "no evidence"
#: Figures of utility: of these, more is better, and no tilt is measured.
UTILITY = ("accuracy", "recall")
#: Of a intersection that was not asked for, every group must have as many images.
FEWEST_CROSSED = 20
SWAPS, BOOTSTRAPS = 999, 400

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two runs, before and after.

    `table` has every measurement that both have, signed. `tests` has those that the gate judges:
    by words and groups and over all words, for every attribute and intersection, and utility.
    `tested` counts those with a verdict; where it is 0, `untested` says why.
    """

    table: pa.Table
    tests: pa.Table = field(default_factory=COMPARISON.empty_table)
    #: Why the images of the two runs could not be paired; None where they were.
    unpaired: str | None = None
    names: tuple[str, str] = ("before", "after")  # of the models
    images: int = 0  # that were paired
    left_out: int = 0  # that only one of the runs has
    margin: float | None = None
    method: str = ""

    @property
    def tested(self) -> int:
        """How many tests have a verdict. `no evidence` is one; undefined is none."""
        return int(pc.count(self.tests["verdict"]).as_py())

    @property
    def untested(self) -> str | None:
        """Why nothing was tested; None where something was."""
        return None if self.tested else why(self.table, self.tests, self.unpaired)

    @property
    def skipped(self) -> list[str]:
        """Probes that both runs have, and of which nothing was tested."""
        tested = self.tests.filter(pc.is_valid(self.tests["verdict"]))
        return sorted({*self.table["probe"].to_pylist()} - {*tested["probe"].to_pylist(), None})

    def _of(self, verdict: str) -> pa.Table:
        return self.tests.filter(pc.equal(self.tests["verdict"], verdict))

    @property
    def worse(self) -> pa.Table:
        """What moved away from its ideal, beyond chance."""
        return self._of(WORSE)

    @property
    def better(self) -> pa.Table:
        """What moved towards its ideal, beyond chance."""
        return self._of(BETTER)

    @property
    def equivalent(self) -> pa.Table:
        """What changed by less than the margin."""
        return self._of(EQUIVALENT)

    @property
    def undecided(self) -> pa.Table:
        """What cannot be told."""
        return self._of(UNKNOWN)


def compare(
    before: Run,
    after: Run,
    *,
    margin: float | None = None,
    swaps: int = SWAPS,
    bootstraps: int = BOOTSTRAPS,
    seed: int = 0,
    store: str | Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """What both runs have, row by row, signed; and what got better or worse beyond chance.

    Where the vectors of both runs are there, their images are paired: `swaps` draws for p-values,
    `bootstraps` for intervals. Else the runs' own intervals are compared. `margin` is the change
    that does not matter: what surely lies within it is `equivalent`. `store` is where the vectors
    are, if they were moved. Runs of different conventions measured different things: an error.
    """
    if margin is not None and not margin > 0:
        raise InputError(f"the margin must be above 0; got {margin}")
    if swaps < 19 or bootstraps < 39:
        raise InputError(
            f"a comparison takes at least 19 swaps and 39 resamples; got {swaps} and {bootstraps}"
        )
    table, convention = differences(before, after)
    names = _names(before, after)
    found, reason, both = [], None, None
    try:
        both = pair(before, after, _convention(before), store=store)
    except EmbeddingsUnavailableError as error:
        reason = str(error)
    if both is not None and (attributes := compared_by(both, table)):
        found.append(_paired(both, attributes, before, margin, swaps, bootstraps, seed, progress))
    useful = usefulness_tests(before, after)
    done = set(zip(*(useful[name] for name in KEY), strict=True))
    found.append(useful)
    found.append(interval_tests(before.table, after.table, ranking=both is None, done=done))
    # each part holds for all of its own tests; together they hold for all, if each is this strict
    parts = [one for one in found if len(one["excess"])]
    tests = [_rows(one, len(parts), margin, convention) for one in parts]
    return Comparison(
        table,
        combined(tests, COMPARISON),
        reason,
        names,
        0 if both is None else len(both),
        0 if both is None else both.left_out,
        margin,
        "unpaired" if both is None else f"paired, {swaps:,} swaps",
    )


def differences(before: Run, after: Run) -> tuple[pa.Table, str | None]:
    """What the second run has that the first had too, signed; and the convention of both."""
    # utility is measured under no convention
    named = [*before.conventions, *after.conventions]
    convention = same_convention(named) if named else None
    _check_choices(before, after)
    key = list(KEY)
    old = {tuple(row[name] for name in key): row for row in before.table.to_pylist()}
    new = {tuple(row[name] for name in key): row for row in after.table.to_pylist()}
    shared = [row for row in new if row in old]
    if not shared:
        raise InputError(
            "the two runs share no measurement: audit both on the same data set, by the same "
            "attributes, with the same words and probes"
        )
    a, b, ideal = (
        np.array([source[row][name] for row in shared], dtype=float)
        for source, name in ((old, "value"), (new, "value"), (new, "ideal"))
    )
    excess = np.abs(b - ideal) - np.abs(a - ideal)
    columns: dict[str, Any] = {name: [row[at] for row in shared] for at, name in enumerate(key)}
    columns |= {
        "before": a,
        "after": b,
        "ideal": ideal,
        "difference": b - a,
        "excess": excess,
        "direction": directions(excess),
        "convention": [convention] * len(shared),
        # why one of the two is undefined
        "note": [next((run[row]["note"] for run in (old, new) if run[row]["value"] is None), None)
                 for row in shared],
    }  # fmt: skip
    return _table(columns, len(shared)), convention


def _check_choices(before: Run, after: Run) -> None:
    """A convention may have had other choices under the same name in an earlier release."""
    first, second = (run.meta.get("convention") or {} for run in (before, after))
    for name in CHOICES if first and second else ():
        if first.get(name) != second.get(name):
            raise ConventionError(
                f"both runs are under {second.get('name')}, but {name} was {first.get(name)!r} "
                f"before and is {second.get(name)!r} after: audit again with the same release"
            )


def directions(excess: Floats) -> list[str | None]:
    """The sign of each change, in words."""
    found = np.select([np.isnan(excess), excess > SAME, excess < -SAME],
                      ["", WORSE, BETTER], "same")  # fmt: skip
    return [str(name) or None for name in found]


def compared_by(both: PairedRuns, table: pa.Table) -> list[str]:
    """Attributes and intersections: those measured, and others that the labels allow.

    A correction by one attribute may do its harm in another, or in a intersection that nobody asked
    about: so all are looked at whose groups are large enough.
    """
    keep = pc.and_(pc.equal(table["probe"], "ranking"), pc.equal(table["metric"], "c_asc"))
    measured = set(table.filter(keep)["attribute"].drop_null().to_pylist())

    def least(groups: Groups) -> int:
        return int(groups.counts.min()) if len(groups.names) > 1 else 0

    found = [name for name, groups in both.groups.items() if least(groups) > 1]
    for one in sorted(measured - set(found)):
        if set(one.split("*")) <= set(found):
            found.append(one)
    asked = {frozenset(one.split("*")) for one in found}
    single = [name for name in found if "*" not in name]
    for first, second in combinations(single, 2):
        crossing = both.groups[first].cross(both.groups[second])
        if {first, second} not in asked and least(crossing) >= FEWEST_CROSSED:
            found.append(f"{first}*{second}")
    return found


def verdicts(tests: dict[str, Any], margin: float | None) -> list[str | None]:
    """Better, worse, equivalent within the margin, or no evidence; None where undefined.

    Better and worse take a p-value that holds for all tests together, and an interval without 0.
    Two one-sided tests at 5% are an interval of 90% within the margin.
    """
    excess, p = tests["excess"], tests["p_fwer"]
    with np.errstate(invalid="ignore"):
        sure = p <= LEVEL
        up = sure & (tests["ci_low"] > 0)
        down = sure & (tests["ci_high"] < 0)
        within = np.zeros(len(excess), bool)
        if margin is not None:
            within = (tests["inner_low"] > -margin) & (tests["inner_high"] < margin)
    found = np.select([np.isnan(excess) | np.isnan(p), within, up, down],
                      ["", EQUIVALENT, WORSE, BETTER], UNKNOWN)  # fmt: skip
    return [str(one) or None for one in found]


def _paired(
    both: PairedRuns,
    attributes: Sequence[str],
    run: Run,
    margin: float | None,
    swaps: int,
    bootstraps: int,
    seed: int,
    progress: Progress | None,
) -> dict[str, Any]:
    from tiltmeter.judge.gate.exchange import swap_tests

    tests = swap_tests(
        both,
        attributes,
        _convention(run),
        draws=swaps,
        bootstraps=bootstraps,
        seed=seed,
        progress=progress,
    )
    count = len(tests.keys)
    columns: dict[str, Any] = {
        name: [key.get(name) for key in tests.keys]
        for name in ("metric", "attribute", "experiment", "group", "concept", "category",
                     "template", "k")
    }  # fmt: skip
    dataset = run.meta.get("data", {}).get("faces", {}).get("name")
    return {
        **columns,
        **tests.columns(),
        "probe": ["ranking"] * count,
        "dataset": [dataset] * count,
        "ideal": np.zeros(count),
        "method": ["paired"] * count,
        "n": [len(both)] * count,
    }


def _rows(
    tests: dict[str, Any], parts: int, margin: float | None, convention: str | None
) -> pa.Table:
    tests = {**tests, "p_fwer": np.minimum(1.0, parts * tests["p_fwer"])}
    columns = {
        **tests,
        "difference": tests["after"] - tests["before"],
        "direction": directions(tests["excess"]),
        "verdict": verdicts(tests, margin),
        "convention": [convention] * len(tests["excess"]),
    }
    return _table(columns, len(tests["excess"]))


def _table(columns: dict[str, Any], count: int) -> pa.Table:
    arrays = [
        pa.array(columns.get(f.name, [None] * count), type=f.type, from_pandas=True)
        for f in COMPARISON
    ]
    return pa.Table.from_arrays(arrays, schema=COMPARISON)


def _convention(run: Run) -> Convention:
    told = run.meta.get("convention")
    if not told:
        raise EmbeddingsUnavailableError(
            "the runs do not say under which convention they were made"
        )
    return Convention(**{**told, "k": tuple(told["k"])})


def _names(before: Run, after: Run) -> tuple[str, str]:
    first, second = (
        str(run.meta.get("model", {}).get("name") or name)
        for name, run in (("before", before), ("after", after))
    )
    return first, second
