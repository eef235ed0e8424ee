"""For pytest: `assert run.gate(...)` reports why it failed, and a fixture that loads runs.

def test_no_group_gets_worse(tiltmeter_run):
    after = tiltmeter_run("runs/after")
    assert after.gate("runs/before", max=["lift[gender] < 1.25"])
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tiltmeter.results import Run

TITLE = "tiltmeter gate"


@pytest.fixture
def tiltmeter_run() -> Callable[[str], Run]:
    """A function that loads a saved run: `tiltmeter_run("runs/after")`."""
    from tiltmeter.results import Run

    return Run.load


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the results of its gates to the report of a failed test."""
    report = yield
    # a session without comparisons does not import the gate
    gates = sys.modules.get("tiltmeter.judge.gate.decision")
    if gates is not None and call.when == "call":
        failed = list(gates.SHUT)
        gates.SHUT.clear()
        if report.failed and failed:
            report.sections.append((TITLE, "\n".join(map(_render, failed))))
    return report


def _render(gate: Any) -> str:
    from tiltmeter.pages.terminal import gate as show
    from tiltmeter.pages.terminal.layout import console_of

    console = console_of(width=80, color_system=None)
    with console.capture() as captured:
        if gate.comparison is None:
            show.decision(console, gate)
        else:
            show.comparison(gate.comparison, gate, console=console)
    return captured.get().rstrip()
