"""Tables that are exported contain no control characters, and no formulas."""

from __future__ import annotations

from tiltmeter.pages.html.page import _plain


def test_cells_are_text() -> None:
    assert _plain("\x1b[2Jnurse") == "\N{REPLACEMENT CHARACTER}[2Jnurse"
    assert _plain("=1+1") == "'=1+1"
    assert _plain("größer, zweite\nZeile") == "größer, zweite\nZeile"
