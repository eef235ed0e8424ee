"""Dual encoders of transformers: what we give is what the library's own call gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tiltmeter as tm  # noqa: E402
from tests.models import tiny  # noqa: E402
from tiltmeter.errors import InputError  # noqa: E402
from tiltmeter.types import DualEncoder  # noqa: E402

TEXTS = ["a photo of a nurse", "the doctor", "a red ball is in the picture"]


def test_clip(tmp_path: Path) -> None:
    library, pictures = tiny.clip(tmp_path), tiny.pictures()
    model = tm.load_model(f"hf:{tmp_path}")
    assert isinstance(model, DualEncoder)
    processor = transformers.AutoProcessor.from_pretrained(tmp_path)
    with torch.no_grad():
        theirs = library(
            **processor(text=TEXTS, images=pictures, padding=True, return_tensors="pt")
        )
    assert np.abs(model.encode_images(pictures) - theirs.image_embeds.numpy()).max() < 1e-5
    assert np.abs(model.encode_texts(TEXTS) - theirs.text_embeds.numpy()).max() < 1e-5
    assert model.logit_scale == pytest.approx(library.logit_scale.exp().item())
    # gradients reach pixels, and pixels give what pictures give
    pixels = model.pixels(pictures).requires_grad_()
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    found = model.encode_images(pixels)
    assert np.abs(found.detach().numpy() - theirs.image_embeds.numpy()).max() < 1e-5
    found.sum().backward()
    assert pixels.grad.abs().sum() > 0


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="its config cannot be loaded"):
        tm.load_model(f"hf:{tmp_path}/nothing")
