"""While a model is loaded ours is the only bar on the screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import tiny
from tiltmeter.models import load_model

transformers = pytest.importorskip("transformers")

FACTORY = """
class Tower:
    def __init__(self, place):
        from transformers import CLIPModel
        self.network = CLIPModel.from_pretrained(place)

    def encode_texts(self, texts):
        raise NotImplementedError
"""
BAR = "Loading weights"


@pytest.mark.parametrize("spec", ["hf:{place}", "python:{place}/mine.py:Tower?place={place}"])
def test_the_librarys_bar_is_not_shown(
    spec: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny.clip(tmp_path)
    (tmp_path / "mine.py").write_text(FACTORY)
    capfd.readouterr()
    transformers.CLIPModel.from_pretrained(tmp_path)
    assert BAR in capfd.readouterr().err  # there is one to hide
    load_model(spec.format(place=tmp_path))
    assert BAR not in capfd.readouterr().err
    transformers.CLIPModel.from_pretrained(tmp_path)
    assert BAR in capfd.readouterr().err  # others keep theirs
