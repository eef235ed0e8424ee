"""One table, three renderers: the same cells, each written as its place needs."""

from __future__ import annotations

import io

import pytest

from tiltmeter.pages import columns as col
from tiltmeter.pages import markdown, text
from tiltmeter.pages.model import Column, Finding, Paragraph, Table, table, table_of
from tiltmeter.pages.terminal.layout import console_of, show
from tiltmeter.stats.lift_verdict import ASSOCIATED

ROWS = [
    {"concept": "<b>|a", "group": "x", "metric": "max_skew", "k": 1000, "value": -0.5,
     "ci_low": -0.75, "ci_high": -0.25, "p_fwer": 0.0001, "n": 1234, "verdict": ASSOCIATED},
    {"concept": "<b>|a", "group": "y", "metric": "ndkl", "k": None, "value": None, "n": None},
]  # fmt: skip
MADE = table("who [b]is[/b] where", ROWS, Column("word", "concept", merged=True), "group",
             col.METRIC, col.VALUE, col.INTERVAL, col.P_ADJUSTED, col.N)  # fmt: skip


def printed(*parts: Table | Paragraph | str, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    show(*parts, console=console_of(file=file, width=80, color_system=None))
    file.flush()
    return raw.getvalue().decode(encoding)


def test_cells_are_written_once_for_all_renderers() -> None:
    first, second = MADE.cells()
    assert first == ["<b>|a", "x", "MaxSkew@1000", "−0.500", "−0.750 to −0.250", "<.001", "1,234"]
    assert second[2:] == ["NDKL", text.NONE, text.NONE, text.NONE, text.NONE]
    assert MADE.merged_cells()[1][0] == ""
    assert (MADE.tone(0), MADE.tone(1)) == ("strong", "")


def test_in_a_terminal_labels_are_text_and_numbers_can_be_copied() -> None:
    title, *lines = [line.split() for line in printed(MADE).splitlines() if line.strip()]
    assert title == ["who", "[b]is[/b]", "where"]
    assert lines[2] == ["<b>|a", "x", "MaxSkew@1000", "-0.500", "-0.750…-0.250", "<.001", "1,234"]


@pytest.mark.parametrize("sign", ["–", "…", "→", "“", "≤", "±", "✓"])
def test_a_terminal_that_knows_ascii_only(sign: str) -> None:
    shown = printed(MADE, Paragraph(f"a {sign} b", "weak"), encoding="ascii")  # raises otherwise
    assert "-0.750...-0.250" in shown
    assert "?" not in shown


def test_as_markdown_a_label_makes_no_cell_and_no_tag() -> None:
    lines = markdown.table(MADE, caption=False).splitlines()
    assert lines[1] == "| --- | --- | --- | ---: | ---: | ---: | ---: |"
    assert lines[2].startswith("| &lt;b&gt;\\|a | x | MaxSkew@1000 | −0.500 |")
    finding = Finding("<bdi>&lt;b&gt;</bdi> is *here*.", "n = 1")
    assert markdown.findings([finding]) == "- &lt;b&gt; is \\*here\\*: n = 1."


def test_statistics_that_no_row_has_are_left_out() -> None:
    heads = [column.head for column in table_of("t", "all", ROWS, ("concept", "word")).columns]
    assert heads == ["word", "value", "95% interval", "n", "p adjusted", "verdict"]


def test_intervals_are_in_the_unit_of_their_value() -> None:
    row = {"value": 0.126, "ci_low": 0.1, "ci_high": 0.15, "null_mean": 0.02, "null_low": 0.01,
           "null_high": 0.03}  # fmt: skip
    made = table_of("t", "rates", [row], kind="percent", digits=1)
    cells = [column.cell(row) for column in made.columns]
    assert cells == ["12.6%", "10.0% to 15.0%", "1.0% to 3.0%"]
