"""The documentation as a site, in Chromium: no host is asked for anything, and all can read it."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.browser
PAGES = ("index", "first-audit", "adding-a-part", "metrics/max_skew", "probes/ranking")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *told: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, built as `make docs` builds it."""
    if importlib.util.find_spec("material") is None:
        pytest.skip("needs mkdocs-material: pip install 'tiltmeter[docs]' (make docs does)")
    place: Path = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(place)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=quiet)
    assert done.returncode == 0, done.stderr
    handler = functools.partial(Quiet, directory=str(place))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_pages(
    name: str, scheme: str, site: str, browser: Any, faults: Callable[[Any], list[str]]
) -> None:
    for width in (400, 1300):
        context = browser.new_context(
            viewport={"width": width, "height": 1000}, color_scheme=scheme, bypass_csp=True
        )
        page = context.new_page()
        asked: list[str] = []
        told: list[str] = []
        page.on("request", lambda one, asked=asked: asked.append(one.url))
        page.on("console", lambda one, told=told: told.append(one.text))
        page.goto(f"{site}{name}.html", wait_until="networkidle")
        strange = [url for url in asked if not url.startswith((site, "data:", "blob:"))]
        assert strange == []
        assert told == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        broken = "[...document.images].filter(one => !one.naturalWidth).map(one => one.src)"
        assert page.evaluate(broken) == []
        assert faults(page) == []
        context.close()
