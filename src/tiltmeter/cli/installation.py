"""The commands about the installation: `list` and `doctor`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tiltmeter.cli import options as common
from tiltmeter.cli.completion import complete_kind
from tiltmeter.errors import InputError, UnknownNameError


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help="models, datasets, probes, debiasers, metrics, conventions, stimuli or papers",
            show_default="all",
            autocompletion=complete_kind,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A word list or debiaser, to show what is in it",
            show_default=False,
        ),
    ] = None,
    as_json: common.Json = False,
) -> None:
    """List models, datasets, probes, metrics, debiasers, word lists, papers."""
    from tiltmeter.catalogue import CONTENTS, KINDS, entries
    from tiltmeter.pages import terminal

    if kind is not None and kind not in KINDS:
        raise UnknownNameError("kind of component", kind, KINDS)
    if name is not None:
        if kind not in CONTENTS:
            raise InputError(
                f"only word lists and debiasers are shown by name: tiltmeter list {kind}, or "
                "tiltmeter list stimuli NAME, tiltmeter list debiasers NAME",
                code="bad-option",
                value=name,
            )
        by_kind = {name: CONTENTS[kind](name)}
    else:
        by_kind = {one: entries(one) for one in ([kind] if kind else KINDS)}
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
