"""The commands about the installation: `list` and `doctor`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tiltmeter.cli import options as common
from tiltmeter.cli.completion import complete_kind
from tiltmeter.errors import UnknownNameError


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help="models, datasets, probes, debiasers, metrics, conventions or stimuli",
            show_default="all",
            autocompletion=complete_kind,
        ),
    ] = None,
    as_json: common.Json = False,
) -> None:
    """List models, datasets, probes, metrics and debiasers."""
    from tiltmeter.cli.catalogue import KINDS, entries
    from tiltmeter.pages import terminal

    if kind is not None and kind not in KINDS:
        raise UnknownNameError("kind of component", kind, KINDS)
    by_kind = {name: entries(name) for name in ([kind] if kind else KINDS)}
    if as_json:
        print(json.dumps(by_kind, indent=2))
    else:
        terminal.catalogue(by_kind)


def doctor(as_json: common.Json = False) -> None:
    """Check the installation."""
    from tiltmeter.pages import terminal
    from tiltmeter.planning.installation import check_installation

    checks = list(check_installation())
    if as_json:
        print(json.dumps([check._asdict() for check in checks], indent=2))
    else:
        terminal.findings(checks)
    if any(check.ok is False for check in checks):
        raise typer.Exit(1)
