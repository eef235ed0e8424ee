"""Why a comparison tested nothing, and what to do."""

from __future__ import annotations

import pyarrow as pa

from tiltmeter.judge.gate.intervals import JUDGED, judged


def untested_reason(table: pa.Table, tests: pa.Table, unpaired: str | None) -> str:
    """Why `tests` have no verdict; `table` has the results of both runs."""
    if tests.num_rows:
        return f"all {tests.num_rows:,} tests are undefined"
    rows = judged(table.to_pylist())
    if not rows:
        shared = ", ".join(sorted(set(table["probe"].drop_null().to_pylist())))
        tested = ", ".join(f"{probe} ({', '.join(names)})" for probe, names in JUDGED.items())
        return (
            f"the two runs share no result that compare can test, only results of {shared}. It "
            f"tests {tested}: audit both with one of these probes (--probe ranking), on the same "
            "images and words"
        )
    defined = [row for row in rows if row["before"] is not None and row["after"] is not None]
    if not defined:
        notes = list(dict.fromkeys(row["note"] for row in rows if row["note"]))
        return (
            f"all {len(rows):,} results that compare tests are undefined in one of the runs "
            f"({'; '.join(notes[:3])})"
        )
    ranking = [row for row in defined if row["probe"] == "ranking"]
    if ranking and unpaired is None:
        return (
            "no attribute has two groups of at least 2 images each among the images of both runs. "
            "Audit both on the same images"
        )
    if len(ranking) == len(defined) and not any(row["concept"] for row in ranking):
        return "the two runs share no words. Audit both with the same --words"
    reason = f", and their images cannot be paired: {unpaired}" if unpaired else ""
    return (
        f"one of the runs has no confidence intervals{reason}. Audit both with --bootstraps 400"
        + (", or without --no-vectors" if ranking else "")
    )
