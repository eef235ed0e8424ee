"""A real browser, and the rules of accessibility; what is missing is said, and the test skipped."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Headless, and silent: nothing that the browser itself would ask of the network.
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip
#: Faults that axe-core calls these keep somebody out.
GRAVE = ("serious", "critical")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, from TILTMETER_CHROMIUM or the path."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("needs playwright: pip install 'tiltmeter[browser]' (make test-browser does)")
    given = os.environ.get("TILTMETER_CHROMIUM")
    found = given or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium, or set TILTMETER_CHROMIUM")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def faults() -> Callable[[Any], list[str]]:
    """What axe-core finds wrong with a page that keeps somebody out."""
    given = os.environ.get("TILTMETER_AXE")
    file = Path(given) if given else ROOT / "build/browser/node_modules/axe-core/axe.min.js"
    if not file.is_file():
        pytest.skip("needs axe-core: npm install --prefix build/browser axe-core, or TILTMETER_AXE")
    script = file.read_text(encoding="utf-8")

    def look(page: Any) -> list[str]:
        page.evaluate(script)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {one['nodes'][0]['html'][:200]}"
            for one in found["violations"]
            if one["impact"] in GRAVE
        ]

    return look
