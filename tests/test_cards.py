"""What the cards say of the testbed is what the command beside their tables prints."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.cards import TABLES

DOCS = Path(__file__).parents[1] / "docs" / "probes"


@pytest.mark.slow
@pytest.mark.parametrize("card", TABLES)
def test_tables_are_what_their_command_prints(card: str) -> None:
    told = (DOCS / f"{card}.md").read_text(encoding="utf-8").replace("**", "")
    for table in TABLES[card]:
        for line in table():
            if line.startswith("|"):
                assert line in told.splitlines()
            else:
                assert all(number in told for number in line.partition(": ")[2].split(", "))
