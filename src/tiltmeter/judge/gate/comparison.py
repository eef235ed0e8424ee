"""Compare two runs: what changed, in which direction, and whether it is significant."""

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
from tiltmeter.judge.gate.run_embeddings import EmbeddingsUnavailableError, PairedRuns, pair
from tiltmeter.judge.gate.untested import untested_reason
from tiltmeter.judge.gate.utility import utility_tests
from tiltmeter.metrics.convention import CHOICES, Convention, same_convention
from tiltmeter.results import COMPARISON, KEY, Run, combined
from tiltmeter.types import Floats, Groups, Progress

#: Smaller changes are rounding.
SAME = 1e-12
LEVEL = 0.05
BETTER, WORSE, EQUIVALENT, UNKNOWN = "better", "worse", "equivalent", "no evidence"
#: Metrics of utility: higher is better.
UTILITY = ("accuracy", "recall")
#: Fewest images per group for an intersection that was not requested.
FEWEST_CROSSED = 20
SWAPS, BOOTSTRAPS = 999, 400

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two runs, before and after.

    Attributes
    ----------
    table : pyarrow.Table
        Every result that both runs have, with its change.
    tests : pyarrow.Table
        Significance tests: by word and group and over all words, for every attribute and
        intersection, and of utility.
    unpaired : str or None
        Why the images of the two runs could not be paired, or None if they were.
    names : tuple of str
        Names of the two models.
    images, left_out : int
        Number of paired images, and of those that only one of the runs has.
    margin : float or None
        Changes smaller than this are equivalent.
    method : str
        How the runs were compared.
    """

    table: pa.Table
    tests: pa.Table = field(default_factory=COMPARISON.empty_table)
    unpaired: str | None = None
    names: tuple[str, str] = ("before", "after")
    images: int = 0
    left_out: int = 0
    margin: float | None = None
    method: str = ""

    @property
    def tested(self) -> int:
        """Number of tests with a verdict (`no evidence` is one; undefined tests have none)."""
        return int(pc.count(self.tests["verdict"]).as_py())

    @property
    def untested(self) -> str | None:
        """Why nothing was tested, or None if something was."""
        return None if self.tested else untested_reason(self.table, self.tests, self.unpaired)

    @property
    def skipped(self) -> list[str]:
        """Probes of both runs of which nothing was tested."""
        tested = self.tests.filter(pc.is_valid(self.tests["verdict"]))
        return sorted({*self.table["probe"].to_pylist()} - {*tested["probe"].to_pylist(), None})

    def _of(self, verdict: str) -> pa.Table:
        return self.tests.filter(pc.equal(self.tests["verdict"], verdict))

    @property
    def worse(self) -> pa.Table:
        """Tests with a significant change away from the ideal."""
        return self._of(WORSE)

    @property
    def better(self) -> pa.Table:
        """Tests with a significant change towards the ideal."""
        return self._of(BETTER)

    @property
    def equivalent(self) -> pa.Table:
        """Tests whose change is within the margin."""
        return self._of(EQUIVALENT)

    @property
    def undecided(self) -> pa.Table:
        """Tests without evidence either way."""
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
    """Compare two runs: every shared result, and which changes are significant.

    If both runs kept their embeddings, images are paired and swapped between the models. Otherwise
    the runs' own intervals are compared, which has less power.

    Parameters
    ----------
    before, after : Run
        Runs under the same convention, on the same data.
    margin : float, optional
        A change that does not matter: tests whose 90% interval is within it are `equivalent`.
    swaps : int
        Random swaps of images between the models, for p-values; at least 19.
    bootstraps : int
        Bootstrap resamples, for intervals; at least 39.
    seed : int
        Seed of swaps and bootstrap.
    store : str or Path, optional
        Where the embeddings are, if the store was moved.
    progress : callable, optional
        Called as `progress(what, share)`.

    Returns
    -------
    Comparison

    Raises
    ------
    ConventionError
        If the runs have different conventions.
    InputError
        If the runs share no result or have different labels, or if an option is out of range.

    Examples
    --------
    >>> from tiltmeter import audit, compare
    >>> run = audit("testbed:dual", probes=["harms"], permutations=0, bootstraps=0)
    >>> compare(run, run).worse.num_rows
    0
    """
    if margin is not None and not margin > 0:
        raise InputError(f"margin must be above 0; got {margin}")
    if swaps < 19 or bootstraps < 39:
        raise InputError(
            f"a comparison needs swaps >= 19 and bootstraps >= 39; got {swaps} and {bootstraps}"
        )
    table, convention = differences(before, after)
    names = _names(before, after)
    parts, reason, paired = [], None, None
    try:
        paired = pair(before, after, _convention(before), store=store)
    except EmbeddingsUnavailableError as error:
        reason = str(error)
    if paired is not None and (attributes := attributes_to_compare(paired, table)):
        parts.append(_paired(paired, attributes, before, margin, swaps, bootstraps, seed, progress))
    utility = utility_tests(before, after)
    tested_keys = set(zip(*(utility[name] for name in KEY), strict=True))
    parts.append(utility)
    parts.append(
        interval_tests(before.table, after.table, ranking=paired is None, tested_keys=tested_keys)
    )
    # Bonferroni over the parts, each of which controls the error of its own tests
    nonempty = [part for part in parts if len(part["excess"])]
    tests = [_rows(part, len(nonempty), margin, convention) for part in nonempty]
    return Comparison(
        table,
        combined(tests, COMPARISON),
        reason,
        names,
        0 if paired is None else len(paired),
        0 if paired is None else paired.left_out,
        margin,
        "unpaired" if paired is None else f"paired, {swaps:,} swaps",
    )


def differences(before: Run, after: Run) -> tuple[pa.Table, str | None]:
    """Results of both runs with their change, and the convention of both."""
    # utility has no convention
    conventions = [*before.conventions, *after.conventions]
    convention = same_convention(conventions) if conventions else None
    _check_choices(before, after)
    key = list(KEY)
    old = {tuple(row[name] for name in key): row for row in before.table.to_pylist()}
    new = {tuple(row[name] for name in key): row for row in after.table.to_pylist()}
    shared = [row for row in new if row in old]
    if not shared:
        raise InputError(
            "the two runs share no measurement: audit both on the same dataset, by the same "
            "attributes, with the same words and probes"
        )
    a, b, ideal = (
        np.array([source[row][name] for row in shared], dtype=float)
        for source, name in ((old, "value"), (new, "value"), (new, "ideal"))
    )
    excess = np.abs(b - ideal) - np.abs(a - ideal)
    columns: dict[str, Any] = {
        name: [row[column] for row in shared] for column, name in enumerate(key)
    }
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
    """Raise if a convention of the same name differs between the runs' releases."""
    first, second = (run.meta.get("convention") or {} for run in (before, after))
    for name in CHOICES if first and second else ():
        if first.get(name) != second.get(name):
            raise ConventionError(
                f"both runs have the convention {second.get('name')}, but {name} was "
                f"{first.get(name)!r} before and is {second.get(name)!r} after: audit again with "
                "the same release"
            )


def directions(excess: Floats) -> list[str | None]:
    """The direction of each change: better, worse or same; None if undefined."""
    names = np.select([np.isnan(excess), excess > SAME, excess < -SAME],
                      ["", WORSE, BETTER], "same")  # fmt: skip
    return [str(name) or None for name in names]


def attributes_to_compare(paired: PairedRuns, table: pa.Table) -> list[str]:
    """Attributes and intersections to compare: those measured, and others that the labels allow.

    Debiasing by one attribute may do harm in another, or in an intersection that was not requested:
    all whose groups are large enough are tested.
    """
    keep = pc.and_(pc.equal(table["probe"], "ranking"), pc.equal(table["metric"], "c_asc"))
    measured = set(table.filter(keep)["attribute"].drop_null().to_pylist())

    def smallest_group(groups: Groups) -> int:
        return int(groups.counts.min()) if len(groups.names) > 1 else 0

    attributes = [name for name, groups in paired.groups.items() if smallest_group(groups) > 1]
    for attribute in sorted(measured - set(attributes)):
        if set(attribute.split("*")) <= set(attributes):
            attributes.append(attribute)
    included = {frozenset(attribute.split("*")) for attribute in attributes}
    single = [name for name in attributes if "*" not in name]
    for first, second in combinations(single, 2):
        intersection = paired.groups[first].cross(paired.groups[second])
        if {first, second} not in included and smallest_group(intersection) >= FEWEST_CROSSED:
            attributes.append(f"{first}*{second}")
    return attributes


def verdicts(tests: dict[str, Any], margin: float | None) -> list[str | None]:
    """Better, worse, equivalent within the margin, or no evidence; None if undefined.

    Better and worse need a family-wise p-value of at most 5% and an interval without 0. Equivalence
    is two one-sided tests at 5%: a 90% interval within the margin.
    """
    excess, p = tests["excess"], tests["p_fwer"]
    with np.errstate(invalid="ignore"):
        significant = p <= LEVEL
        up = significant & (tests["ci_low"] > 0)
        down = significant & (tests["ci_high"] < 0)
        within = np.zeros(len(excess), bool)
        if margin is not None:
            within = (tests["inner_low"] > -margin) & (tests["inner_high"] < margin)
    names = np.select([np.isnan(excess) | np.isnan(p), within, up, down],
                      ["", EQUIVALENT, WORSE, BETTER], UNKNOWN)  # fmt: skip
    return [str(name) or None for name in names]


def _paired(
    paired: PairedRuns,
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
        paired,
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
        "n": [len(paired)] * count,
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
    recorded = run.meta.get("convention")
    if not recorded:
        raise EmbeddingsUnavailableError("the runs do not record their convention")
    return Convention(**{**recorded, "k": tuple(recorded["k"])})


def _names(before: Run, after: Run) -> tuple[str, str]:
    first, second = (
        str(run.meta.get("model", {}).get("name") or name)
        for name, run in (("before", before), ("after", after))
    )
    return first, second
