"""Why a question was not tested, and what to do."""

from __future__ import annotations

from typing import Any

from tiltmeter.judge.gate.change_verdict import (
    ASSOCIATION,
    DESCRIPTIONS,
    HARMS,
    PRONOUNS,
    PROPAGATION,
    REFUSALS,
    RETRIEVAL,
    STEREOTYPES,
    UTILITY,
    question_of,
)
from tiltmeter.judge.gate.intervals import judged
from tiltmeter.results import PLACEBO

#: How to measure what answers each question.
MEASURED_BY = {
    ASSOCIATION: "--probe lift",
    RETRIEVAL: "--probe ranking",
    HARMS: "--probe harms",
    UTILITY: "--data utility=SPEC or --data captions=SPEC",
    STEREOTYPES: "--probe stereotype --data triplets=SPEC",
    PROPAGATION: "--probe propagation --data valence=SPEC --data lexicon=SPEC",
    REFUSALS: "--probe silence",
    PRONOUNS: "--probe pronoun",
    DESCRIPTIONS: "--probe description",
}


def untested_reason(question: str, table: list[dict[str, Any]], unpaired: str | None) -> str:
    """Why `question` has no tests; `table` has the results of both runs.

    `unpaired` says why embeddings could not be used, where that was tried.
    """
    if question == ASSOCIATION:
        return unpaired or f"not measured ({MEASURED_BY[question]})"
    rows = judged(table, question)
    if not rows:
        return f"not measured in both runs ({MEASURED_BY[question]})"
    defined = [row for row in rows if row["before"] is not None and row["after"] is not None]
    if not defined:
        notes = list(dict.fromkeys(row["note"] for row in rows if row["note"]))
        return (
            f"all {len(rows):,} results are undefined in one of the runs ({'; '.join(notes[:3])})"
        )
    if question == RETRIEVAL and unpaired is None:
        return (
            "no attribute has two groups of at least 2 images each among the images of both runs. "
            "Audit both on the same images"
        )
    words = [row for row in table if row["concept"] and row["category"] != PLACEBO]
    if question == RETRIEVAL and not any(question_of(row) == question for row in words):
        return "the two runs share no words. Audit both with the same --words"
    reason = f", and their images cannot be paired: {unpaired}" if unpaired else ""
    return f"one of the runs has no confidence intervals{reason}. Audit both with --bootstraps 400"
