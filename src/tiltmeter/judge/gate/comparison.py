"""Compare two runs: what changed, in which direction, and whether it matters."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltmeter.errors import ConventionError, InputError
from tiltmeter.judge.gate.association import (
    association_tests,
    fitted_scales,
    lift_texts,
    matched_logits,
    pair_lift,
    row_tests,
)
from tiltmeter.judge.gate.change_verdict import (
    ASSOCIATION,
    BETTER,
    CANNOT_TELL,
    ENTROPY,
    HARMS,
    MARGIN,
    NO_WORSE,
    ON_REQUEST,
    QUESTIONS,
    RETRIEVAL,
    UTILITY,
    WORSE,
    judge,
    question_of,
)
from tiltmeter.judge.gate.counterfactual import counterfactual_tests
from tiltmeter.judge.gate.intervals import interval_tests
from tiltmeter.judge.gate.retrieval import RetrievalTests, retrieval_tests
from tiltmeter.judge.gate.run_embeddings import (
    EmbeddingsUnavailableError,
    ImagePair,
    pair_images,
    pair_texts,
)
from tiltmeter.judge.gate.untested import untested_reason
from tiltmeter.judge.gate.utility import utility_tests
from tiltmeter.metrics.convention import CHOICES, Convention, same_convention
from tiltmeter.results import COMPARISON, KEY, Run
from tiltmeter.results.views import VIEWS
from tiltmeter.types import Floats, Groups, Progress

#: Smaller changes are rounding.
SAME = 1e-12
#: Fewest images per group for an intersection that was not requested.
FEWEST_CROSSED = 20
BOOTSTRAPS = 400

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two runs, before and after.

    Attributes
    ----------
    table : pyarrow.Table
        Every result that both runs have, with its change.
    tests : pyarrow.Table
        What answers the questions, with verdicts: association and retrieval by attribute and
        intersection, harms, utility, stereotypes, propagation, refusals, pronouns and
        descriptions.
    words : pyarrow.Table
        Lift (on one scale) and MaxSkew of every word, before and after; they decide nothing.
    entropy : pyarrow.Table
        Normalised entropy of the top k over all words and by category, with verdicts among
        themselves; they decide nothing. Only of paired images.
    untested_questions : mapping
        Why a question was not tested, by question.
    unpaired : str or None
        Why the images of the two runs could not be paired, or None if they were.
    names : tuple of str
        Names of the two models.
    images, left_out : int
        Number of paired images, and of those that only one of the runs has.
    margin : float
        A change smaller than this share of the value before does not matter.
    words_in_both, words_left_out : int
        Number of words that both runs have, and of those that only one of them has.
    """

    table: pa.Table
    tests: pa.Table = field(default_factory=COMPARISON.empty_table)
    words: pa.Table = field(default_factory=COMPARISON.empty_table)
    entropy: pa.Table = field(default_factory=COMPARISON.empty_table)
    untested_questions: Mapping[str, str] = field(default_factory=dict)
    unpaired: str | None = None
    names: tuple[str, str] = ("before", "after")
    images: int = 0
    left_out: int = 0
    margin: float = MARGIN
    words_in_both: int = 0
    words_left_out: int = 0

    def _repr_html_(self) -> str:
        return str(VIEWS["comparison_html"](self))

    @property
    def tested(self) -> int:
        """Number of tests with a verdict (`cannot tell` is one; undefined tests have none)."""
        return int(pc.count(self.tests["verdict"]).as_py())

    @property
    def untested(self) -> str | None:
        """Why nothing was tested, or None if something was."""
        if self.tested:
            return None
        reasons = [f"{name}: {why}" for name, why in self.untested_questions.items()]
        return "; ".join(reasons) or "the comparison has no tests"

    @property
    def skipped(self) -> list[str]:
        """Probes of both runs of which nothing was tested."""
        tested = self.tests.filter(pc.is_valid(self.tests["verdict"]))
        return sorted({*self.table["probe"].to_pylist()} - {*tested["probe"].to_pylist(), None})

    def answers(self, question: str) -> list[Row]:
        """Tests of a question that have a verdict."""
        return [row for row in self.tests.to_pylist()
                if question_of(row) == question and row["verdict"]]  # fmt: skip

    def _of(self, verdict: str) -> pa.Table:
        return self.tests.filter(pc.equal(self.tests["verdict"], verdict))

    @property
    def worse(self) -> pa.Table:
        """Tests with a change away from the ideal, certainly beyond the margin."""
        return self._of(WORSE)

    @property
    def better(self) -> pa.Table:
        """Tests with a change towards the ideal, certainly beyond the margin."""
        return self._of(BETTER)

    @property
    def no_worse(self) -> pa.Table:
        """Tests that rule out a change for the worse beyond the margin."""
        return self._of(NO_WORSE)

    @property
    def undecided(self) -> pa.Table:
        """Tests that cannot tell."""
        return self._of(CANNOT_TELL)


def compare(
    before: Run | str | os.PathLike[str],
    after: Run | str | os.PathLike[str],
    *,
    margin: float = MARGIN,
    bootstraps: int = BOOTSTRAPS,
    seed: int = 0,
    store: str | Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two runs: every shared result, and up to nine questions with one budget for errors.

    Association (lift of words and of neutral words, between groups and in counterfactual pairs),
    retrieval (MaxSkew), harms (gaps) and utility (accuracy, recall); of runs with these probes,
    stereotypes (vlbs excess), propagation (differences between groups in what is retrieved),
    refusals (gaps of their rates), pronouns (the default) and descriptions (gaps of mentioned
    categories). The chance that any test says worse by chance is at most 5%, over all questions
    together. If both runs kept their embeddings, images are paired; otherwise the runs' own
    intervals are compared, which has less power.

    Parameters
    ----------
    before, after : Run or path
        Runs under the same convention, on the same data.
    margin : float
        A change that does not matter, as a share of the value before: see
        `tiltmeter.judge.gate.change_verdict.tolerance`.
    bootstraps : int
        Bootstrap resamples, for intervals; at least 39.
    seed : int
        Seed of the bootstrap.
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
    if not margin >= 0:
        raise InputError(
            f"margin must be 0 or above; got {margin}", code="bad-option", value=margin
        )
    if bootstraps < 39:
        raise InputError(
            f"a comparison needs at least 39 bootstraps; got {bootstraps}",
            code="bad-option",
            value=bootstraps,
        )
    before, after = Run.of(before), Run.of(after)
    table, convention = differences(before, after)
    images, missing = None, None
    try:
        images = pair_images(before, after, _convention(before), store=store)
    except EmbeddingsUnavailableError as error:
        missing = str(error)
    runs = _Runs(before, after, images, missing, attributes_to_compare(images, table))
    association, lifts, reason = runs.association()
    rankings, unpaired = runs.retrieval(bootstraps, seed, progress)
    tests = {
        ASSOCIATION: [*association, *counterfactual_tests(before, after), *runs.choices()],
        RETRIEVAL: rankings.tests,
        HARMS: runs.by_interval(HARMS),
        UTILITY: runs.utility(),
        **{question: runs.by_interval(question) for question in ON_REQUEST},
    }
    reasons, rows = {ASSOCIATION: reason, RETRIEVAL: unpaired}, table.to_pylist()
    paired = images is not None and images.paired
    return Comparison(
        table,
        judged_tests(tests, margin, convention),
        _table([*lifts, *rankings.words]),
        _table(_verdicts(rankings.entropy, ENTROPY, margin, convention)),
        {question: untested_reason(question, rows, reasons.get(question))
         for question in QUESTIONS if not tests[question] and _asked(question, rows)},
        None if paired else missing or "the two runs share no images",
        _names(before, after),
        len(images) if paired and images is not None else 0,
        0 if images is None else images.left_out,
        margin,
        *_counts_of_words(before, after),
    )  # fmt: skip


def _counts_of_words(before: Run, after: Run) -> tuple[int, int]:
    """Words that both runs ranked images by or judged by lift, and those that one of them has."""
    first, second = (
        {(row["concept"], row["category"]) for row in run.rows
         if row["probe"] in ("lift", "ranking") and row["concept"]
         and row["category"] != "placebo"}
        for run in (before, after)
    )  # fmt: skip
    return len(first & second), len(first ^ second)


def _asked(question: str, rows: Sequence[Row]) -> bool:
    """Whether a question is one of these runs: some are only if their probe was run."""
    probe = ON_REQUEST.get(question)
    return probe is None or any(row["probe"] == probe for row in rows)


def judged_tests(
    tests: Mapping[str, Sequence[Row]], margin: float, convention: str | None = None
) -> pa.Table:
    """Rows of COMPARISON with verdicts; the questions that have tests share one budget."""
    asked = [question for question in QUESTIONS if tests.get(question)]
    return _table([
        row
        for question in asked
        for row in _verdicts(tests[question], question, margin, convention, questions=len(asked))
    ])  # fmt: skip


def _verdicts(
    tests: Sequence[Row], question: str, margin: float, convention: str | None, questions: int = 1
) -> list[Row]:
    return [
        {**row, "convention": convention, "difference": row["after"] - row["before"],
         "direction": directions(np.array([row["excess"]]))[0]}
        for row in judge(tests, question, margin=margin, questions=questions)
    ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Runs:
    """Two runs, and what could be loaded of their images."""

    before: Run
    after: Run
    images: ImagePair | None
    missing: str | None  # why the images could not be loaded
    attributes: Sequence[str]

    def association(self) -> tuple[list[Row], list[Row], str | None]:
        """Tests, lift by word, and the reason where nothing could be tested."""
        if heads := row_tests(*(run.where(probe="lift") for run in (self.before, self.after))):
            return heads, [], None
        try:
            texts = lift_texts(self.before, self.after)
            if self.images is None:
                return [], [], self.missing
            pair = pair_lift(
                texts, self.images.runs, paired=self.images.paired,
                fitted=fitted_scales(self.before, self.after),
                matched=matched_logits(self.before, self.after),
            )  # fmt: skip
        except EmbeddingsUnavailableError as error:
            return [], [], str(error)
        tests, words = association_tests(pair, self.attributes, self.dataset)
        few = "no attribute has two groups with enough images for lift in both runs"
        return tests, words, None if tests else few

    def choices(self) -> list[Row]:
        """Tests of forced-choice questions."""
        return row_tests(*(run.where(probe="forced_choice") for run in (self.before, self.after)))

    def retrieval(
        self, bootstraps: int, seed: int, progress: Progress | None
    ) -> tuple[RetrievalTests, str | None]:
        """Tests and words, and why images were not paired."""
        if self.images is None:
            return RetrievalTests(self.by_interval(RETRIEVAL), [], []), self.missing
        try:
            pair = pair_texts(self.before, self.after, self.images)
        except EmbeddingsUnavailableError as error:
            return RetrievalTests(self.by_interval(RETRIEVAL), [], []), str(error)
        found = retrieval_tests(
            pair, self.attributes, _convention(self.before), bootstraps=bootstraps, seed=seed,
            dataset=self.dataset, progress=progress,
        )  # fmt: skip
        return found, None

    def by_interval(self, question: str, tested: Sequence[Any] = ()) -> list[Row]:
        first, second = (run.table.to_pylist() for run in (self.before, self.after))
        return interval_tests(first, second, question, tested)

    def utility(self) -> list[Row]:
        """Paired image by image where both runs have the same; otherwise by their intervals."""
        paired = utility_tests(self.before, self.after)
        tested = [tuple(row[name] for name in KEY) for row in paired]
        return [*paired, *self.by_interval(UTILITY, tested)]

    @property
    def dataset(self) -> str | None:
        name = self.before.meta.get("data", {}).get("faces", {}).get("name")
        return None if name is None else str(name)


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
    rows = [
        {
            **dict(zip(key, row, strict=True)),
            "before": a[at], "after": b[at], "ideal": ideal[at], "difference": b[at] - a[at],
            "excess": excess[at], "direction": direction, "convention": convention,
            # why one of the two is undefined
            "note": next((x[row]["note"] for x in (old, new) if x[row]["value"] is None), None),
        }
        for at, (row, direction) in enumerate(zip(shared, directions(excess), strict=True))
    ]  # fmt: skip
    return _table(rows), convention


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


def attributes_to_compare(images: ImagePair | None, table: pa.Table) -> list[str]:
    """Attributes and intersections to compare: those measured, and others that the labels allow.

    Debiasing by one attribute may do harm in another, or in an intersection that was not requested:
    all whose groups are large enough are tested.
    """
    if images is None:
        return []
    keep = pc.is_in(table["metric"], pa.array(["max_skew", "lift"]))
    measured = set(table.filter(keep)["attribute"].drop_null().to_pylist())
    by = images.runs[0].groups

    def smallest_group(groups: Groups) -> int:
        return int(groups.counts.min()) if len(groups.names) > 1 else 0

    attributes = [name for name, groups in by.items() if smallest_group(groups) > 1]
    for attribute in sorted(measured - set(attributes)):
        if set(attribute.split("*")) <= set(attributes):
            attributes.append(attribute)
    included = {frozenset(attribute.split("*")) for attribute in attributes}
    single = [name for name in attributes if "*" not in name]
    for first, second in combinations(single, 2):
        intersection = by[first].cross(by[second])
        if {first, second} not in included and smallest_group(intersection) >= FEWEST_CROSSED:
            attributes.append(f"{first}*{second}")
    return attributes


def _table(rows: Sequence[Row]) -> pa.Table:
    arrays = [
        pa.array([row.get(f.name) for row in rows], type=f.type, from_pandas=True)
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
