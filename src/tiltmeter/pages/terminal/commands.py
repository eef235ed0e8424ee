"""What the terminal shows of all other commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from tiltmeter.engine.embedding.embed import EmbeddingResult
from tiltmeter.metrics.convention import CHOICES, Convention
from tiltmeter.pages.terminal.layout import (
    STRONGEST,
    console_of,
    label,
    table_of,
)
from tiltmeter.planning.installation import CheckResult
from tiltmeter.planning.power import AttributePlan

if TYPE_CHECKING:
    from tiltmeter.judge.calibration.verdict import MetricSummary
    from tiltmeter.planning.cost import CostStep


def embedded(done: EmbeddingResult, found: Sequence[str], store: Path) -> None:
    """What an embedding did."""
    console = console_of(soft_wrap=True)
    for line in found:
        console.print(line)
    count = len(done.rows)
    console.print(
        f"{done.new:,} pictures embedded at {done.rate:,.1f} a second and kept in {store}; "
        f"{count - done.new:,} were there already, or are copies."
    )
    if done.unreadable:
        console.print(f"{len(done.unreadable):,} could not be read and are left out:")
        for reason in list(done.unreadable.values())[:STRONGEST]:
            console.print(f"  {reason}")


def spaces(found: Sequence[Mapping[str, Any]]) -> None:
    """What a store holds."""
    table = table_of("store", "model", "space", "pictures", "dimensions", "MB", left=2)
    for one in found:
        table.add_row(one["model"], one["space"], f"{one['pictures']:,}", str(one["dimensions"]),
                      f"{one['bytes'] / 1e6:,.1f}")  # fmt: skip
    console_of().print(table)


def plan(
    plans: Sequence[AttributePlan],
    *,
    images: int,
    words: int,
    power: float,
    convention: Convention,
) -> None:
    """Smallest effects and noise floors."""
    console = console_of()
    console.print(
        f"{images:,} images; effects found in {power:.0%} of audits at the 5% level, for one word "
        f"and for any of {words:,} words (Bonferroni). C-ASC is in standard deviations."
    )
    for one in plans:
        table = table_of(one.attribute, "group", "images", "share", "one word", "any word")
        for group in one.groups:
            table.add_row(
                group.name, f"{group.n:,}", f"{group.share:.1%}", f"{group.smallest:.3f}",
                f"{group.smallest_of_many:.3f}",
            )  # fmt: skip
        console.print(table)
        for floor in one.floors:
            console.print(
                f"  {label(floor.metric, floor.k)} without any tilt: mean {floor.mean:.3f}, "
                f"97.5% below {floor.high:.3f} ({convention.name})"
            )


def scale(steps: Sequence[CostStep], *, total: int, workers: int) -> None:
    """What each job over all images and captions takes."""
    console = console_of()
    table = table_of(
        f"{total:,} on {workers:,} worker{'s' * (workers != 1)}", "job", "a second", "worker hours",
        "hours", "TB read", "TB kept", left=1,
    )  # fmt: skip
    for one in steps:
        table.add_row(
            one.job, f"{one.rate:,.0f} {one.unit}",
            *(f"{x:.3g}" for x in (one.hours, one.wall, one.read / 1e12, one.stored / 1e12)),
        )  # fmt: skip
    console.print(table)
    for one in steps:
        console.print(f"  {one.job}: speed of one worker {one.source}; it hangs on {one.driver}")


def catalogue(found: Mapping[str, Mapping[str, str]]) -> None:
    """Names and what they stand for."""
    console = console_of()
    for kind, names in found.items():
        table = table_of(kind, "name", "what it is", left=2)
        for name, text in names.items():
            table.add_row(Text(name, style="bold"), Text(text))
        console.print(table)
        if kind == "conventions" and len(found) == 1:
            for field, choices in CHOICES.items():
                table = table_of(f"choices for {field}", "choice", "what it means", left=2)
                for choice, text in choices.items():
                    table.add_row(Text(choice, style="bold"), Text(text))
                console.print(table)


def findings(found: Sequence[CheckResult]) -> None:
    """What the doctor saw."""
    console = console_of()
    signs = {True: Text("ok", "green"), False: Text("missing", "red"), None: Text("-", "dim")}
    table = table_of("tiltmeter doctor", "", "what", "found", left=3)
    for finding in found:
        table.add_row(signs[finding.ok], finding.name, finding.detail)
    console.print(table)


def calibration(summaries: Sequence[MetricSummary]) -> None:
    """A line for each metric, and what it means in words."""
    from tiltmeter.pages.calibration import pages

    console = console_of()
    table = table_of("calibration", "metric", "order", "saturates", "false alarms", "at zero",
                   "quiet", "images")  # fmt: skip
    for one in summaries:
        table.add_row(*pages.cells(one))
    console.print(table)
    console.print()
    for one in summaries:
        console.print(Text.assemble((one.metric, "bold"), ": ", one.verdict))


def calibration_saved(place: Path, lacking: Sequence[str]) -> None:
    """Where the calibration is kept, and what it lacks."""
    console = console_of(soft_wrap=True)
    console.print(f"Kept in {place} (calibration.parquet, calibration.md, figures).")
    if lacking:
        console.print(f"No figures: these need {' and '.join(lacking)}, not installed here.")
