"""What a release promises: one version everywhere, a small wheel, versions that can be had."""

from __future__ import annotations

import io
import re
import tomllib
import zipfile

import tiltmeter as tm
from tests.conftest import ROOT
from tiltmeter.errors import EXTRAS
from tiltmeter.planning.installation import DEVELOPMENT
from tools.lowest import lowest

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LARGEST = 20_000_000  # bytes


def test_one_version() -> None:
    assert f"\nversion: {tm.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest
    assert newest[1] in (tm.__version__, "Unreleased")


def test_the_wheel_is_small() -> None:
    """Compressed as a wheel is; its files are those of the package."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in (ROOT / "src" / "tiltmeter").rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                wheel.write(file, file.relative_to(ROOT / "src"))
    assert 5_000_000 < len(packed.getbuffer()) < LARGEST


def test_every_requirement_has_a_lower_bound() -> None:
    extras = (
        "models",
        "open-clip",
        "datasets",
        "words",
        "debias",
        "openai",
        "explore",
        "frames",
        "ray",
        "bench",
    )
    versions = lowest(list(extras), ROOT / "pyproject.toml")
    assert not [one for one in versions if "==" not in one]


def test_core_packages_suffice_to_save_a_debiaser() -> None:
    assert "safetensors==0.4" in lowest([], ROOT / "pyproject.toml")


def test_extras_have_names_that_every_pip_finds() -> None:
    """pip 23.2 ignores an extra whose name hatchling normalises: open_clip."""
    extras = PROJECT["project"]["optional-dependencies"]
    assert [name for name in extras if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)] == []


def test_errors_know_the_extra_of_every_package() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert EXTRAS.keys() == extras.keys() - set(DEVELOPMENT)
    for extra, packages in EXTRAS.items():
        names = {re.split(r"[\[>=<]", one)[0] for one in extras[extra]} - {"tiltmeter"}
        assert names <= set(packages), extra


def test_the_sdist_has_what_the_readme_and_tests_use() -> None:
    used = {"constraints.txt", "Makefile", "CHANGELOG.md", "CITATION.cff", "mkdocs.yml"}
    for page in ("README.md", "CONTRIBUTING.md"):
        links = re.findall(r"\]\(([^):#]+)(?:#[^)]*)?\)", (ROOT / page).read_text(encoding="utf-8"))
        used |= {page, *(link.partition("/")[0] for link in links)}
    packed = set(PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    assert used <= packed
    assert [name for name in packed if not (ROOT / name).exists()] == []
