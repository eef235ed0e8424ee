"""The command `leaderboard`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tiltmeter.cli import options as common
from tiltmeter.cli.help import DATA, OUTPUT
from tiltmeter.cli.options import flag, option


def leaderboard(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Directories of saved audits, two or more")
    ],
    skip: Annotated[
        bool, flag("--skip", "Leave out runs that cannot be compared with the first", DATA)
    ] = False,
    out: Annotated[
        Path | None, option("--out -o", "FILE", "Also write an HTML page", OUTPUT)
    ] = None,
    as_json: common.Json = False,
) -> None:
    """Rank models by bias, harms and utility, over comparable audits.

    Runs must have the same images, words and convention, and a scale that was checked on the same
    captions; any other is named with the reason.
    """
    from tiltmeter.cli.report import check_place
    from tiltmeter.judge.leaderboard import leaderboard as rank
    from tiltmeter.pages.html.leaderboard import write_leaderboard
    from tiltmeter.pages.leaderboard import RANKS, board_sections, record, sentence
    from tiltmeter.pages.terminal.audit_summary import reported
    from tiltmeter.pages.terminal.layout import show

    if out is not None:
        check_place(out)
    board = rank(list(runs), skip_incomparable=skip)
    page = None if out is None else write_leaderboard(board, out)
    if as_json:
        content = {"models": board.models, "basis": board.basis, "refused": board.refused,
                   "page": page and str(page), "measures": board.table.to_pylist()}  # fmt: skip
        print(json.dumps(content, indent=2))
        return
    show(
        sentence(board), RANKS, *(t for s in board_sections(board) for t in s.tables), record(board)
    )
    if page is not None:
        reported(page)
