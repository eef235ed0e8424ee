"""The one door upwards: methods of results that rooms above provide, found by name when used.

Results know nothing of pages or gates; a notebook that holds a `Run` still wants `run.report()`.
`tests/test_architecture.py` names this file as the only one that does so.
"""

from __future__ import annotations

from tiltmeter.registry import Registry

VIEWS = Registry(
    "view",
    {
        "comparison_html": "tiltmeter.pages.notebook:comparison_html",
        "findings": "tiltmeter.pages.notebook:findings",
        "frontier_html": "tiltmeter.pages.notebook:frontier_html",
        "gate": "tiltmeter.judge.gate:gate",
        "leaderboard_html": "tiltmeter.pages.notebook:leaderboard_html",
        "plot": "tiltmeter.pages.notebook:plot",
        "report": "tiltmeter.pages.html:write",
        "run_html": "tiltmeter.pages.notebook:run_html",
        "summary": "tiltmeter.pages.notebook:summary",
    },
)
