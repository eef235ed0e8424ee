"""Every test says what it measured: one line on the screen, one row in a table.

The lines show with `pytest -s`. With CALIBRATION_TABLE=FILE in the environment the rows are also
written there, as Markdown.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .designs import Band, figures

Expect = Callable[[Band, str, str, Any], None]
HEADER = ("what was tested", "design", "measured", "wanted")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Seeded by the test and its design: no figure depends on which other tests there are."""
    call = getattr(request.node, "callspec", None)
    design = sorted(call.params.items()) if call else ()
    return np.random.default_rng(zlib.crc32(f"{request.node.originalname} {design}".encode()))


@pytest.fixture(scope="session")
def table() -> Iterator[list[tuple[str, ...]]]:
    lines: list[tuple[str, ...]] = [HEADER, ("---",) * len(HEADER)]
    yield lines
    if path := os.environ.get("CALIBRATION_TABLE"):
        Path(path).write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))


@pytest.fixture
def expect(table: list[tuple[str, ...]]) -> Expect:
    """Says what was measured, then holds it against what was wanted."""

    def check(wanted: Band, what: str, design: str, measured: Any) -> None:
        found = figures(measured)
        verdict = "" if wanted.holds(np.asarray(measured)) else "FAILS"
        table.append((what, design, f"{found} {verdict}".strip(), wanted.text))
        print(f"\n{what:<34} {design:<56} {found:<25} (wanted {wanted.text}) {verdict}", end="")
        assert not verdict, f"{what}, {design}: measured {found}, wanted {wanted.text}"

    return check
