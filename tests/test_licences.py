"""Everything that is shipped says under which licence, in its file and on the page of licences."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT
from tiltmeter.stimuli import STIMULI, load

PAGE = (ROOT / "docs" / "licences.md").read_text()
KNOWN = ("Apache-2.0", "MIT", "facts from a paper", "facts from papers")


@pytest.mark.parametrize("name", sorted(STIMULI))
def test_a_list_has_a_licence_that_the_page_names(name: str) -> None:
    licence = load(name).licence
    assert licence.startswith(KNOWN)
    assert f"| `{name}` | {licence} |" in PAGE


def test_weights_are_on_the_page() -> None:
    weights = (ROOT / "src" / "tiltmeter" / "testbed" / "weights").glob("*.safetensors")
    models = {file.stem.removesuffix("-fair") for file in weights}
    assert models >= {"dual", "fusion", "stream"}
    missing = {model for model in models if f"`{model}`" not in PAGE.partition("## Weights")[2]}
    assert not missing


def test_nothing_else_is_shipped() -> None:
    """A new kind of file in the package needs a licence too."""
    package = ROOT / "src" / "tiltmeter"
    kinds = {
        file.relative_to(package).parts[0] + "/*" + file.suffix
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix not in (".py", ".j2")
    }
    assert kinds == {
        "explorer/*.css", "explorer/*.js", "pages/*.css", "pages/*.js", "py.typed/*.typed",
        "papers/*.yaml", "stimuli/*.yaml", "testbed/*.json", "testbed/*.safetensors",
        "testbed/*.txt",
    }  # fmt: skip
