"""What a release promises: one version everywhere, a small wheel, versions that can be had."""

from __future__ import annotations

import io
import re
import zipfile

import tiltmeter as tm
from tests.conftest import ROOT
from tools.lowest import lowest

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
