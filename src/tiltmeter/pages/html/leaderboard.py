"""Writes a leaderboard as one HTML page."""

from __future__ import annotations

import os
from pathlib import Path

from tiltmeter.judge.leaderboard import Leaderboard
from tiltmeter.pages.html.page import render, write_file
from tiltmeter.pages.leaderboard import RANKS, board_sections, grid, record, sentence
from tiltmeter.pages.paper import LABELS


def write_leaderboard(board: Leaderboard, out: str | os.PathLike[str]) -> Path:
    """Write the page; returns its path."""
    sections = board_sections(board)
    figures = [figure for section in sections for figure in section.figures]
    page = render(
        "leaderboard.html.j2",
        figures,
        title=f"{len(board.models)} models on {board.basis['data']}",
        sentence=sentence(board),
        ranks=RANKS,
        labels=LABELS,
        grid=grid(board),
        record=record(board),
        sections=sections,
    )
    write_file(Path(out), page.encode())
    return Path(out)
