"""The picture of a report in the documentation: `python -m benchmarks.picture RUN OUT.webp`.

Two views of RUN/report.html side by side, seen by Chromium (`make test-browser` installs what it
takes). The one in docs/images is of `tiltmeter audit --out RUN`.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image

PAGE = {"width": 960, "height": 832}
MARGIN = 28


def views(report: Path) -> list[Image.Image]:
    """The top of the page, and its first and third figure."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=PAGE, color_scheme="light")
        page.goto(report.resolve().as_uri())
        figures = page.query_selector_all("figure")
        shots = [page.screenshot(), figures[0].screenshot(), figures[2].screenshot()]
        browser.close()
    return [Image.open(io.BytesIO(one)).convert("RGB") for one in shots]


def joined(page: Image.Image, *figures: Image.Image) -> Image.Image:
    """The page on the left, the figures below each other on the right."""
    paper = page.getpixel((2, 2))
    width = page.width + max(one.width for one in figures) + 2 * MARGIN
    height = max(page.height, sum(one.height + MARGIN for one in figures) + MARGIN)
    whole = Image.new("RGB", (width, height), paper)
    whole.paste(page, (0, 0))
    at = MARGIN
    for one in figures:
        whole.paste(one, (page.width + MARGIN, at))
        at += one.height + MARGIN
    return whole


if __name__ == "__main__":
    run, out = map(Path, sys.argv[1:])
    joined(*views(run / "report.html")).save(out, quality=80, method=6)
