"""The end of an audit: its verdict, and where the run and its report are."""

from __future__ import annotations

from pathlib import Path

from tiltmeter.pages.terminal.audit import saved
from tiltmeter.pages.terminal.layout import show
from tiltmeter.pages.terminal.verdict import verdict
from tiltmeter.results import Run


def closing(run: Run, place: Path, report: Path | None, *, quiet: bool = False) -> None:
    """Print the verdict, and where the run and its report are; quiet: the last line alone."""
    if not quiet:
        verdict(run)
        show("")
        saved(place)
    if report is not None:
        reported(report)


def reported(report: Path) -> None:
    """Where the report is."""
    show(f"Report: {report}", soft_wrap=True)
