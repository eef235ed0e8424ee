"""The explorer in Chromium: type, wait, compare, go back; nothing is asked of any other host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("starlette", reason="needs starlette: pip install 'tiltmeter[explore]'")
from tests.explorer.making import served, two_models
from tests.pages.report.making import HOSTILE, hostile_embeddings
from tiltmeter.explorer.gather import gather

pytestmark = pytest.mark.browser
NURSE, DOCTOR = "a photo of a nurse", "a photo of a doctor"
FIRST, SECOND = "section.side >> nth=0", "section.side >> nth=1"


@pytest.fixture(scope="module")
def address(browser: Any) -> Iterator[str]:
    with served(two_models(show_images=False)) as found:
        yield found


@pytest.fixture(scope="module")
def with_pictures(browser: Any) -> Iterator[str]:
    with served(two_models()) as found:
        yield found


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages; what they log and whom they ask is looked at when the test is over."""
    said: list[str] = []
    asked: list[str] = []
    contexts = []

    def look(
        address: str, *, width: int = 1400, scheme: str = "light", query: str = "",
        refused: bool = False,
    ) -> Any:  # fmt: skip
        context = browser.new_context(
            viewport={"width": width, "height": 1000}, color_scheme=scheme,
            reduced_motion="reduce",
        )  # fmt: skip
        contexts.append(context)
        page = context.new_page()
        # Chromium logs every answer of 400 by itself
        known = "status of 400" if refused else "\0"
        page.on("console", lambda one: None if known in one.text else said.append(one.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda one: asked.append(one.url))
        page.goto(address + query)
        settled(page)
        return page

    yield look
    for context in contexts:
        context.close()
    assert said == []
    assert {urlsplit(one).hostname for one in asked if not one.startswith("data:")} == {"127.0.0.1"}


def settled(page: Any) -> None:
    page.wait_for_timeout(350)  # longer than the pause after a key
    page.wait_for_selector("[aria-busy=true]", state="detached")  # the page allows no eval


def typed(page: Any, text: str, side: str = FIRST) -> None:
    page.fill(f"{side} >> input[type=search]", "")
    page.locator(f"{side} >> input[type=search]").press_sequentially(text, delay=5)
    settled(page)


def gallery(page: Any, side: str = FIRST) -> list[str]:
    found: list[str] = page.locator(f"{side} >> .tile").evaluate_all(
        "tiles => tiles.map(one => one.dataset.row)"
    )
    return found


def state(page: Any) -> dict[str, str]:
    return {name: one[0] for name, one in parse_qs(urlsplit(page.url).query).items()}


def test_typing_changes_the_gallery(opened: Callable[..., Any], address: str) -> None:
    page = opened(address)
    before = gallery(page)
    assert len(before) == 100  # a word of the list is asked from the start
    typed(page, NURSE)
    after = gallery(page)
    assert len(after) == 100
    assert after != before
    assert "Of the top 100" in page.inner_text(f"{FIRST} >> .said")
    assert "neutral words lean" in page.inner_text(f"{FIRST} >> .said")
    assert "Top 100" in page.inner_text(f"{FIRST} >> thead")
    assert state(page) == {"a": NURSE, "by": "shape", "k": "100"}


def test_back_and_forward(opened: Callable[..., Any], address: str) -> None:
    page = opened(address, query=f"?a={NURSE}&by=shape&k=50")
    nurse = gallery(page)
    typed(page, DOCTOR)
    doctor = gallery(page)
    assert doctor != nurse
    page.select_option("#by", "hue")
    settled(page)
    assert state(page)["by"] == "hue"
    page.go_back()
    settled(page)
    assert state(page)["by"] == "shape"
    assert gallery(page) == doctor
    page.go_back()
    settled(page)
    assert page.input_value(f"{FIRST} >> input") == NURSE
    assert gallery(page) == nurse
    page.go_forward()
    settled(page)
    assert gallery(page) == doctor


def test_two_models_side_by_side(opened: Callable[..., Any], address: str) -> None:
    page = opened(address, query=f"?a={DOCTOR}")
    page.click("text=Compare")
    settled(page)
    models = [page.locator(f"{side} >> select").input_value() for side in (FIRST, SECOND)]
    assert models == ["0", "1"]
    assert gallery(page, FIRST) != gallery(page, SECOND)
    assert "are in both" in page.inner_text("#both")
    leaning, fair = (
        float(page.locator(f"{side} >> .numbers b").inner_text()) for side in (FIRST, SECOND)
    )
    # planted in the first world only; but ranks order differences however small they are
    assert leaning > fair
    shared = page.url
    again = opened(shared)  # the address is all that another window needs
    assert gallery(again, SECOND) == gallery(page, SECOND)
    page.click("text=Compare")
    settled(page)
    assert page.locator("section.side").count() == 1
    page.go_back()
    settled(page)
    assert page.locator("section.side").count() == 2


def test_two_prompts_side_by_side(opened: Callable[..., Any], address: str) -> None:
    page = opened(address, query=f"?a={NURSE}&b={DOCTOR}&n=0")
    assert gallery(page, FIRST) != gallery(page, SECOND)
    typed(page, NURSE, SECOND)
    assert gallery(page, FIRST) == gallery(page, SECOND)
    assert page.inner_text("#both") == "100 of the top 100 are in both."


def test_slider_words_and_groups(opened: Callable[..., Any], address: str) -> None:
    page = opened(address, query=f"?a={NURSE}&k=100")
    page.focus("#k")
    page.keyboard.press("ArrowRight")
    settled(page)
    assert state(page)["k"] == "150"
    assert len(gallery(page)) == 150
    assert page.get_attribute("#k", "aria-valuetext") == "top 150"
    page.fill("#filter", "doctor")
    page.click("#words button:visible >> nth=0")
    settled(page)
    assert state(page)["a"] == DOCTOR
    page.click(f"{FIRST} >> .only >> nth=0")
    away = page.locator(f"{FIRST} >> .tile.away").count()
    counts = page.locator(f"{FIRST} >> .count").all_inner_texts()
    assert away == 150 - int(counts[0].lstrip("▲▼ "))


def test_the_gallery_by_keyboard(opened: Callable[..., Any], address: str) -> None:
    page = opened(address, query=f"?a={NURSE}&k=50")
    page.focus(f"{FIRST} >> .tiles")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(f"{FIRST} >> .which").startswith("No. 1 · figure-")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    assert page.inner_text(f"{FIRST} >> .which").startswith("No. 50 · ")
    chosen = page.get_attribute(f"{FIRST} >> .tiles", "aria-activedescendant")
    assert page.get_attribute(f"#{chosen}", "aria-selected") == "true"


@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_wide_narrow_light_dark(
    opened: Callable[..., Any], address: str, faults: Callable[[Any], list[str]], width: int,
    scheme: str,
) -> None:  # fmt: skip
    query = f"?a={NURSE}&b={DOCTOR}&n=1&by=shape*hue&k=100"
    page = opened(address, width=width, scheme=scheme, query=query)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(20, 24, 29)") == (scheme == "dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert faults(page) == []
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != background


def test_pictures_when_they_are_allowed(opened: Callable[..., Any], with_pictures: str) -> None:
    page = opened(with_pictures, query=f"?a={NURSE}&k=20")
    page.wait_for_load_state("networkidle")
    sizes = page.locator(".tile img").evaluate_all("all => all.map(one => one.naturalWidth)")
    assert sizes == [128] * 20


def test_what_cannot_be_asked_is_said(opened: Callable[..., Any], address: str) -> None:
    page = opened(address, query=f"?a={NURSE}", refused=True)
    typed(page, "a photo of a zebra")
    assert "vocabulary 'zebra'" in page.inner_text(f"{FIRST} >> .said")
    assert not page.is_visible(f"{FIRST} >> .tiles")
    typed(page, "    ")
    assert page.inner_text(f"{FIRST} >> .said") == "Type a prompt, or choose a word."
    typed(page, NURSE)
    assert page.is_visible(f"{FIRST} >> .tiles")
    page.goto(address + "?a=%00<script>&k=banana&m=99&by=nobody&n=-1")
    settled(page)
    assert state(page)["k"] == "100"
    page.goto(address + f"?a={NURSE}&by=hue*shape")  # a crossing, in the other order
    settled(page)
    assert state(page)["by"] == "shape*hue"


def test_hostile_labels_are_text(
    opened: Callable[..., Any], browser: Any, tmp_path: Path, faults: Callable[[Any], list[str]]
) -> None:
    scene = gather(None, [f"embeddings:{hostile_embeddings(tmp_path / 'vectors')}"])
    with served(scene) as address:
        page = opened(address, width=400, query="?a=a photo of 0&k=20&by=group")
        assert page.title() == "vectors · Tiltmeter explorer"
        names = page.locator(f"{FIRST} >> .only bdi").all_inner_texts()
        assert HOSTILE[0] in names
        assert page.locator("main img, main script, main b b").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        page.select_option("#by", "<b>other")
        settled(page)
        assert len(gallery(page)) == 20
        assert faults(page) == []


def test_a_server_that_is_gone(browser: Any) -> None:
    with served(two_models(show_images=False)) as address:
        page = browser.new_page()
        page.goto(address)
        settled(page)
    typed(page, NURSE)
    assert "still running" in page.inner_text(f"{FIRST} >> .said")
    page.close()
