"""Pages over several models in Chromium: the leaderboard, and the reproduction of a paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiltmeter as tm
from tiltmeter.pages.html.leaderboard import write_leaderboard
from tiltmeter.reproduce.runner import reproduce

pytestmark = pytest.mark.browser
MODELS = ("testbed:dual", "testbed:dual?twin=fair", "testbed:fusion?twin=fair")
OPEN = "document.querySelectorAll('details').forEach(one => { one.open = true; })"
TEXTS_BEYOND = """[...document.querySelectorAll('figure svg')].flatMap(svg => {
    const edge = svg.getBoundingClientRect();
    return [...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect())
        .filter(box => box.width && (box.right > edge.right + 3 || box.left < edge.left - 3));
}).length"""


def _leaderboard(home: Path) -> Path:
    runs = [
        tm.audit(model, limit=700, permutations=0, bootstraps=60, k=[20], probes=["lift", "harms"],
                 options={"lift": {"splits": 20}})
        for model in MODELS
    ]  # fmt: skip
    return write_leaderboard(tm.leaderboard(runs), home / "leaderboard.html")


def _paper(home: Path) -> Path:
    reproduce("vlstereoset", ["testbed:fusion"], out=home / "paper", permutations=0, bootstraps=0)
    [page] = (home / "paper").glob("*.html")
    return page


@pytest.fixture(scope="module", params=[_leaderboard, _paper], ids=["leaderboard", "paper"])
def place(request: pytest.FixtureRequest, browser: Any, tmp_path_factory: Any) -> Path:
    made: Path = request.param(tmp_path_factory.mktemp("pages"))
    return made


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_it_can_be_read_at_any_width_light_or_dark(
    width: int, scheme: Any, place: Path, browser: Any, faults: Callable[[Any], list[str]]
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda one: asked.append(one.url))
    page.goto(place.as_uri())
    assert page.locator("main table").first.bounding_box()["y"] < 900
    page.evaluate("window.scrollTo(0, document.documentElement.scrollHeight)")
    page.wait_for_timeout(500)
    assert 0 <= page.locator("nav a").first.bounding_box()["y"] < 900
    page.evaluate(OPEN)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    drawn = page.locator("figure svg[role=img]:visible")
    assert drawn.count() > 0
    assert all(box["height"] > 40 for box in (one.bounding_box() for one in drawn.all()))
    assert page.evaluate(TEXTS_BEYOND) == 0
    assert faults(page) == []
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert (said, asked) == ([], [place.as_uri()])
    context.close()
