"""A probe that has no plots of its own: all its rows, in one table."""

from __future__ import annotations

from tiltmeter.pages import text
from tiltmeter.pages.model import Section, table_of
from tiltmeter.results import Run

LEADING = (
    "metric", "experiment", "attribute", "group", "concept", "target", "category", "template", "k",
)  # fmt: skip


def section(run: Run, probe: str) -> Section:
    """A table of everything that the probe measured."""
    rows = run.where(probe=probe)
    lead = [(name, name) for name in LEADING if any(row[name] is not None for row in rows)]
    table = table_of(text.slug("rows", probe), f"Every row of {probe}", rows, *lead)
    return Section(probe, probe, "Every measurement of this probe.", [], [], [table])
