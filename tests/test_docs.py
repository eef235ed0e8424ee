"""Every example in the documents runs and prints what it says; every link leads somewhere.

The tutorials on one's own material and on the gate are followed to the letter (slow): files are
made as their titles say, and commands are run in a shell. docs/adding-a-part.md is tried on a copy
of the package, to which it adds its parts.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name

import pytest

import tiltmeter
from tests.conftest import ROOT
from tiltmeter import stats
from tiltmeter.datasets import DATASETS
from tiltmeter.debiasers import DEBIASERS
from tiltmeter.metrics import METRICS
from tiltmeter.models import MODELS
from tiltmeter.probes import PROBES

PARTS = ROOT / "docs/adding-a-part.md"
#: The checkpoint that the pages name, in whose place a small one of random weights is put.
CHECKPOINT = "openai/clip-vit-base-patch32"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)
PLUGIN = "tiltmeter.pytest_plugin"
#: Cards that speak of two parts.
SHARED = {"ieat": "eat", "face_eat": "eat"}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples start: a folder in which the example script has been run."""
    home = tmp_path_factory.mktemp("docs")
    example = ROOT / "examples/planted_embeddings.py"
    subprocess.run([sys.executable, example, home / "build/planted"], check=True)
    return home


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != PARTS], ids=lambda page: str(page.relative_to(ROOT))
)
def test_examples(page: Path, planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(planted)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testfile(str(page), module_relative=False, optionflags=flags, encoding="utf-8")
    assert found.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


def test_every_page_is_in_the_site() -> None:
    found = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert found == there, "name each page once in `nav`, mkdocs.yml"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_modules_and_files_that_exist(page: Path) -> None:
    if page == PARTS:  # names what it adds
        return
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"\btiltmeter(?:\.[A-Za-z_]\w*)+", text):
        if not name.endswith((".zip", ".name")):  # a bundle; `name` is a placeholder
            resolve_name(name)
    for file in re.findall(r"\b[a-z]\w*/[\w/]+\.py\b", text):
        roots = [
            root
            for root in (ROOT, ROOT / "src/tiltmeter")
            if (root / file.partition("/")[0]).is_dir()
        ]
        if roots and not re.search("[A-Z]{4}", file):  # NAME and FAMILY are placeholders
            assert any((root / file).exists() for root in roots), file


def test_the_api_reference_names_what_exists() -> None:
    for page in (ROOT / "docs/api").glob("*.md"):
        for name in re.findall(r"^::: (?:registry )?([\w.]+)$", page.read_text(), re.M):
            resolve_name(name)  # raises where a name was moved


def test_the_api_reference_is_complete() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md"))
    for name in tiltmeter.__all__:
        assert f"`tm.{name}`" in pages, f"docs/api/index.md does not name tm.{name}"
    for registry in (METRICS, MODELS, DATASETS, PROBES, DEBIASERS):
        assert f".{registry.kind.upper()}S\n" in pages
    for module in stats.__all__:
        assert f"::: tiltmeter.stats.{module}\n" in pages


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Language, title and text of each block of code."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", ["metrics", "probes", "debias"])
def test_every_part_has_a_card(kind: str) -> None:
    names = {"metrics": METRICS, "probes": PROBES, "debias": DEBIASERS}[kind]
    for name in names:
        card = ROOT / "docs" / kind / f"{SHARED.get(name, name)}.md"
        assert card.is_file(), f"{name} has no card: write {card.relative_to(ROOT)}"
        assert "mislead" in card.read_text(encoding="utf-8"), f"{card}: when does it mislead?"


@pytest.mark.parametrize("name", METRICS)
def test_cards_say_what_calibration_found(name: str) -> None:
    found = (ROOT / "docs/calibration/calibration.md").read_text(encoding="utf-8")
    [verdict] = re.findall(rf"^- \*\*{name}\*\*: (.*)$", found, re.M)
    card = (ROOT / f"docs/metrics/{name}.md").read_text(encoding="utf-8")
    assert verdict in " ".join(card.replace("\n> ", "\n").split())
    for row in ("asks", "formula", "ideal", "convention", "source"):
        assert f"\n| {row} | " in card
    assert f"../calibration/figures/{name}.svg" in card


def test_adding_a_part(tmp_path: Path) -> None:
    package = Path(tiltmeter.__file__).parent
    shutil.copytree(package, tmp_path / "src/tiltmeter", ignore=shutil.ignore_patterns("*.pyc"))
    for _, title, text in blocks(PARTS):
        file = tmp_path / title
        if title and file.exists():
            above, _, line = text.partition("\n")
            old = file.read_text(encoding="utf-8")
            assert old.count(f"\n{above}\n") == 1, f"{title} has no line {above}"
            file.write_text(old.replace(f"\n{above}\n", f"\n{above}\n{line}"), encoding="utf-8")
        elif title:
            file.write_text(text, encoding="utf-8")
    typed = tmp_path / "typed.md"
    typed.write_text("\n".join(text for language, _, text in blocks(PARTS) if language == "pycon"))
    code = (
        "import doctest, sys; sys.exit(doctest.testfile('typed.md', module_relative=False).failed)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["your-own", "debias-and-gate"])
def test_pages_can_be_followed_to_the_letter(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.random_clip import random_clip

    page = ROOT / "docs" / f"{name}.md"
    clip = random_clip(tmp_path / "clip")
    said = ""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # an older editable install does not know the plugin
    known = any(one.value == PLUGIN for one in entry_points(group="pytest11"))
    here = {"PATH": path, "HF_HUB_OFFLINE": "1", "PYTEST_ADDOPTS": "" if known else f"-p {PLUGIN}"}
    for language, title, text in blocks(page):
        if title:
            (tmp_path / title).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / title).write_text(text.replace(CHECKPOINT, str(clip)), encoding="utf-8")
        elif language == "sh":
            done = subprocess.run(
                ["bash", "-euc", text.replace(CHECKPOINT, str(clip))],
                cwd=tmp_path,
                env={**os.environ, **here},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, text + done.stdout + done.stderr
            said += done.stdout
    if name == "debias-and-gate":  # the tables that the page shows, and a gate that shuts
        shown = [text for language, _, text in blocks(page) if language == "text"]
        assert all(line in said for text in shown for line in text.splitlines()[3:])
        assert "hue is worse: " in said.partition("the gate is shut")[0]
        assert "hue is worse: " in said.partition("the gate is shut")[2]  # told by pytest too
        assert "1 failed" in said
