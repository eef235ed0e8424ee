"""SLIP: the names of its released files, and the numbers of timm's and open_clip's own classes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tiltmeter as tm  # noqa: E402
from tests.models import tiny  # noqa: E402
from tests.models.open_clip_library import open_clip  # noqa: E402
from tiltmeter.errors import InputError  # noqa: E402

TEXTS = ["a photo of a nurse", "the doctor"]
WIDTH, TEXT, JOINT = 128, 64, 16


@pytest.fixture(scope="module")
def towers() -> tuple[Any, Any, Any]:
    library = open_clip()
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    image = VisionTransformer(img_size=32, patch_size=8, embed_dim=WIDTH, depth=2, num_heads=2,
                              num_classes=0)  # fmt: skip
    text = library.create_model_and_transforms("ViT-B-16-quickgelu", load_weights=False,
        vision_cfg={"image_size": 16, "layers": 1, "width": 64, "patch_size": 16},
        text_cfg={"width": TEXT, "heads": 1, "layers": 2}, embed_dim=JOINT)[0]  # fmt: skip
    return image.eval(), text.eval(), torch.randn(WIDTH, JOINT)


def checkpoint(towers: tuple[Any, Any, Any]) -> dict[str, Any]:
    """As main.py of the repository saves it."""
    image, text, projection = towers
    state = {f"visual.{name}": value for name, value in image.state_dict().items()}
    state |= {n: v for n, v in text.state_dict().items() if not n.startswith("visual.")}
    state |= {"image_projection": projection, "image_mlp.layer1.weight": torch.ones(4, WIDTH),
              "image_mlp.bn1.num_batches_tracked": torch.tensor(1)}  # fmt: skip
    return {"epoch": 25, "state_dict": {f"module.{n}": v for n, v in state.items()},
            "args": argparse.Namespace(model="SLIP_VITB16"), "best_acc1": 0.5}  # fmt: skip


def test_slip(towers: Any, tmp_path: Path) -> None:
    from torchvision import transforms

    torch.save(checkpoint(towers), tmp_path / "slip.pt")
    model = tm.load_model(f"slip:{tmp_path / 'slip.pt'}")
    transform = transforms.Compose([  # eval_zeroshot.py
        transforms.Resize(32), transforms.CenterCrop(32), transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ])  # fmt: skip
    image, text, projection = towers
    with torch.no_grad():
        images = image(torch.stack([transform(x) for x in tiny.pictures()])) @ projection
        texts = text.encode_text(open_clip().get_tokenizer("ViT-B-16")(TEXTS))
    for ours, theirs in ((model.encode_images(tiny.pictures()), images),
                         (model.encode_texts(TEXTS), texts)):  # fmt: skip
        expected = torch.nn.functional.normalize(theirs, dim=-1).numpy()
        assert np.abs(ours - expected).max() < 1e-6
    assert model.logit_scale == pytest.approx(float(text.logit_scale.exp()))


def test_other_files(towers: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="write slip:FILE"):
        tm.load_model("slip:nowhere.pt")
    torch.save({"weight": torch.ones(2)}, tmp_path / "other.pt")
    with pytest.raises(InputError, match="not a checkpoint of SLIP"):
        tm.load_model(f"slip:{tmp_path / 'other.pt'}")
    less = checkpoint(towers)
    del less["state_dict"]["module.ln_final.bias"]
    torch.save(less, tmp_path / "less.pt")
    with pytest.raises(InputError, match="has no weights of these names: text.ln_final.bias"):
        tm.load_model(f"slip:{tmp_path / 'less.pt'}")
