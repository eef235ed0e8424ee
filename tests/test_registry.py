"""Registries list components whose packages are not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.refusing import refused
from tiltmeter.registry import Registry

NEEDS_TORCH = """
import json, sys
sys.modules["torch"] = None
from tiltmeter.catalogue import entries
print(json.dumps({kind: entries(kind) for kind in ("models", "debiasers")}))
"""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Two components of a module that cannot be imported: one is defined there, one is not."""
    (tmp_path / "needy_component.py").write_text(
        "import transformers\nfrom elsewhere import other\n"
        'def load():\n    """Loads it.\n\n    More."""\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    paths = {"own": "needy_component:load", "imported": "needy_component:other"}
    return Registry("model", paths)


def test_a_description_needs_no_import(registry: Registry) -> None:
    assert registry.summary("own") == "Loads it. (needs transformers)"
    with refused("missing-package", "transformers"):
        registry["own"]


def test_without_a_description_the_package_is_named(registry: Registry) -> None:
    expected = "needs transformers: pip install 'tiltmeter[models]'"
    assert registry.summary("imported") == expected


def test_lists_without_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NEEDS_TORCH], capture_output=True, text=True, check=True
    )
    listed = json.loads(done.stdout)
    assert listed["models"]["open_clip:"].startswith("Models of the open_clip library")
    for summaries in listed.values():
        assert [text for text in summaries.values() if "pip install" in text or not text] == []
