"""What the terminal shows of results: tables that fit 80 columns. Nothing is computed here."""

from tiltmeter.pages.terminal.audit import panel, run, saved, summary, tables
from tiltmeter.pages.terminal.captions import captions, captions_summary
from tiltmeter.pages.terminal.commands import (
    calibration,
    calibration_saved,
    catalogue,
    embedded,
    embedded_shards,
    findings,
    plan,
    scale,
    spaces,
)

__all__ = [
    "calibration",
    "calibration_saved",
    "captions",
    "captions_summary",
    "catalogue",
    "embedded",
    "embedded_shards",
    "findings",
    "panel",
    "plan",
    "run",
    "saved",
    "scale",
    "spaces",
    "summary",
    "tables",
]
