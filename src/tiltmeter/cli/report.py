"""The command `report`, and the report that every audit writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tiltmeter.cli import options as common
from tiltmeter.cli.help import DATA, OUTPUT
from tiltmeter.cli.options import option
from tiltmeter.errors import InputError

if TYPE_CHECKING:
    from tiltmeter.results import Run

NAME = "report.html"
MARK = b'<meta name="generator" content="tiltmeter">'  # of a page that may be replaced


def report(
    run: common.RunArgument,
    before: Annotated[
        Path | None,
        option("--before", "RUN", "Saved audit before debiasing: show the changes", DATA),
    ] = None,
    out: Annotated[
        Path | None,
        option("--out -o", "FILE", "The page", OUTPUT, default="RUN/report.html"),
    ] = None,
    figures: Annotated[
        Path | None,
        option("--figures", "DIR", "Also save every figure as SVG and PNG", OUTPUT),
    ] = None,
    tables: Annotated[
        Path | None,
        option("--tables", "DIR", "Also save every table as CSV and Markdown", OUTPUT),
    ] = None,
) -> None:
    """Write a run as one HTML page.

    It has findings, limitations, figures and tables, and loads nothing from the network.
    """
    from tiltmeter.pages.html import write
    from tiltmeter.pages.terminal.audit_summary import reported
    from tiltmeter.results import Run

    place = out or run / NAME
    check_place(place)
    earlier = None if before is None else Run.load(before)
    reported(write(Run.load(run), place, before=earlier, figures=figures, tables=tables))


def write_run_report(run: Run, place: Path) -> tuple[Path | None, str]:
    """Writes the report into the directory of a run.

    Hours of measuring are not lost to a plot: whatever goes wrong here, the run is kept.

    Parameters
    ----------
    run
        The run.
    place
        Its directory.

    Returns
    -------
    tuple
        The page, or None and the reason why there is none.
    """
    try:
        from tiltmeter.pages.html import write

        return write(run, place / NAME), ""
    except Exception as error:
        return None, f"{error or type(error).__name__}"


def check_place(place: Path) -> None:
    """Refuses a directory, and a file that is no page of ours.

    Parameters
    ----------
    place
        Where a page will be written.
    """
    if place.is_dir():
        raise InputError(
            f"{place} is a directory: --out takes a file, such as audit.html",
            code="bad-option",
            value=place,
        )
    if place.is_file():
        with place.open("rb") as file:
            if MARK not in file.read(4000):
                raise InputError(
                    f"{place} exists and is no report of tiltmeter: choose another --out",
                    code="exists",
                    value=place,
                )
