"""open_clip's models: what we give is what the library's own call gives."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tiltmeter as tm  # noqa: E402
from tests.models import tiny  # noqa: E402
from tiltmeter.errors import InputError, UnknownNameError  # noqa: E402
from tiltmeter.types import DualEncoder  # noqa: E402

TEXTS = ["a photo of a nurse", "the doctor", "a red ball is in the picture"]
CONFIG = {
    "embed_dim": 12,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The library, knowing one small architecture more."""
    try:
        import open_clip
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"open_clip cannot be imported here: {error}")
    place = tmp_path_factory.mktemp("configs") / "tiny-quickgelu.json"
    place.write_text(json.dumps(CONFIG))
    open_clip.add_model_config(place)
    return open_clip


@pytest.fixture(scope="module")
def network(library: Any) -> Any:
    torch.manual_seed(0)
    return library.create_model("tiny-quickgelu").eval()


def save(what: Any, path: Path) -> str:
    torch.save(what, path)
    return f"open_clip:tiny-quickgelu/{path}"


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(InputError, match='pip install "tiltmeter\\[open_clip\\]"'):
        tm.load_model("open_clip:ViT-B-32/laion2b_s34b_b79k")


def test_a_spec_that_names_no_weights() -> None:
    for spec in ("open_clip:ViT-B-32", "open_clip:ViT-B-32/", "open_clip:"):
        with pytest.raises(InputError, match="names no weights"):
            tm.load_model(spec)


def test_the_librarys_numbers(library: Any, network: Any, tmp_path: Path) -> None:
    model = tm.load_model(save(network.state_dict(), tmp_path / "tiny.pt"))
    assert isinstance(model, DualEncoder)
    pictures = tiny.pictures()
    config = library.transform.PreprocessCfg(**network.visual.preprocess_cfg)
    transform = library.transform.image_transform_v2(config, is_train=False)
    with torch.no_grad():
        images = network.encode_image(torch.stack([transform(p) for p in pictures]), True)
        texts = network.encode_text(library.get_tokenizer("tiny-quickgelu")(TEXTS), True)
    assert np.abs(model.encode_images(pictures) - images.numpy()).max() < 1e-5
    assert np.abs(model.encode_texts(TEXTS) - texts.numpy()).max() < 1e-5
    assert model.logit_scale == pytest.approx(network.logit_scale.exp().item())
    pixels = model.pixels(pictures).requires_grad_()
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    found = model.encode_images(pixels)
    assert np.abs(found.detach().numpy() - images.numpy()).max() < 1e-5
    found.sum().backward()
    assert pixels.grad.abs().sum() > 0


def test_files_as_others_save_them(library: Any, network: Any, tmp_path: Path) -> None:
    state = network.state_dict()
    openai = {k: v.half() for k, v in state.items()} | {
        "input_resolution": torch.tensor(32), "context_length": torch.tensor(77),
        "vocab_size": torch.tensor(49408),
    }  # fmt: skip
    wrapped = {"state_dict": {f"module.{k}": v for k, v in state.items()}, "epoch": 3}
    exact = tm.load_model(save(wrapped, tmp_path / "wrapped.pt")).encode_texts(TEXTS)
    half = tm.load_model(save(openai, tmp_path / "openai.pt")).encode_texts(TEXTS)
    with torch.no_grad():
        theirs = network.encode_text(library.get_tokenizer("tiny-quickgelu")(TEXTS), True).numpy()
    assert np.abs(exact - theirs).max() < 1e-5
    assert 0 < np.abs(half - theirs).max() < 1e-2


def test_weights_that_do_not_fit(network: Any, tmp_path: Path) -> None:
    state = dict(network.state_dict())
    with pytest.raises(InputError, match="has unknown weights of these names: other"):
        tm.load_model(save({**state, "other": torch.ones(1)}, tmp_path / "more.pt"))
    del state["text_projection"]
    with pytest.raises(InputError, match="has no weights of these names: text_projection"):
        tm.load_model(save(state, tmp_path / "less.pt"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*TorchScript")
def test_code_in_a_file_is_not_run(library: Any, network: Any, tmp_path: Path) -> None:
    scripted = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))
    torch.jit.save(scripted, tmp_path / "script.pt")  # as OpenAI's files are
    with pytest.raises(InputError, match="cannot be read as weights"):
        tm.load_model(f"open_clip:tiny-quickgelu/{tmp_path / 'script.pt'}")
    sprung = tmp_path / "sprung"

    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (sprung,)

    with pytest.raises(InputError, match="cannot be read as weights"):
        tm.load_model(save({"state_dict": Trap()}, tmp_path / "trap.pt"))
    assert not sprung.exists()


def test_names_that_are_not_known(library: Any) -> None:
    with pytest.raises(UnknownNameError, match="ViT-B-32"):
        tm.load_model("open_clip:ViT-B-33/openai")
    with pytest.raises(InputError, match="cannot be loaded"):
        tm.load_model("open_clip:tiny-quickgelu/nothing")
