"""The command `report`, and the page that every audit ends with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiltmeter.errors import InputError

if TYPE_CHECKING:
    from tiltmeter.results import Run

NAME = "report.html"
MARK = b'<meta name="generator" content="tiltmeter">'  # of a page that may be replaced


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A saved audit")],
    before: Annotated[
        Path | None,
        typer.Option("--before", metavar="RUN", help="The audit before debiasing: what changed"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The page. Default: RUN/report.html"),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", metavar="DIR", help="Also every figure, as SVG and PNG"),
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option("--tables", metavar="DIR", help="Also every table, as CSV and Markdown"),
    ] = None,
) -> None:
    """Write a run as one page to read and hand on: findings, limits, figures, tables.

    The page is a single HTML file that asks no host for anything.
    """
    from tiltmeter.pages.html import write
    from tiltmeter.pages.terminal.audit_summary import reported
    from tiltmeter.results import Run

    place = out or run / NAME
    _check_place(place)
    earlier = None if before is None else Run.load(before)
    written = write(Run.load(run), place, before=earlier, figures=figures, tables=tables)
    reported(written)


def report_beside(run: Run, place: Path) -> tuple[Path | None, str]:
    """Writes the page into a run's directory; else says why there is none.

    Hours of measuring are not lost to a picture: whatever goes wrong here, the run is kept.
    """
    try:
        from tiltmeter.pages.html import write

        return write(run, place / NAME), ""
    except Exception as error:
        return None, f"{error or type(error).__name__}"


def _check_place(place: Path) -> None:
    if place.is_dir():
        raise InputError(f"{place} is a directory: --out takes a file, such as audit.html")
    if place.is_file():
        with place.open("rb") as file:
            if MARK not in file.read(4000):
                raise InputError(
                    f"{place} exists and is no report of tiltmeter: it is left as it is; name "
                    "another --out"
                )
