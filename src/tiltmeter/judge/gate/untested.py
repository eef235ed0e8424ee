"""Why a comparison could test nothing, and what would let it."""

from __future__ import annotations

import pyarrow as pa

from tiltmeter.judge.gate.intervals import JUDGED, judged


def why(table: pa.Table, tests: pa.Table, unpaired: str | None) -> str:
    """The reason, of a comparison whose `tests` have no verdict; `table` is what both runs have."""
    if tests.num_rows:
        return f"all {tests.num_rows:,} tests are undefined"
    rows = judged(table.to_pylist())
    if not rows:
        shared = ", ".join(sorted(set(table["probe"].drop_null().to_pylist())))
        tested = ", ".join(f"{probe} ({', '.join(names)})" for probe, names in JUDGED.items())
        return (
            f"the two runs share no result that compare tests, only results of {shared}. Tested "
            f"are {tested}: audit both with one of these probes (--probe ranking), on the same "
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
            "no attribute has two groups of at least 2 images each among the images that both "
            "runs have. Audit both on the same images"
        )
    if len(ranking) == len(defined) and not any(row["concept"] for row in ranking):
        return "the two runs share no words. Audit both with the same --words"
    reason = f", and their images cannot be paired: {unpaired}" if unpaired else ""
    return (
        f"one of the runs has no confidence intervals{reason}. Audit both with --bootstraps 400"
        + (", or without --no-vectors" if ranking else "")
    )
