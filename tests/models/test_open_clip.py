"""open_clip's models: what we give is what the library's own call gives."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tiltmeter as tm  # noqa: E402
from tests.command_line import FEW, tiltmeter  # noqa: E402
from tests.models import tiny  # noqa: E402
from tests.models.open_clip_library import open_clip  # noqa: E402
from tests.refusing import refused  # noqa: E402
from tiltmeter import models  # noqa: E402
from tiltmeter.errors import InputError, UnknownNameError  # noqa: E402
from tiltmeter.types import DualEncoder  # noqa: E402

TEXTS = ["a photo of a nurse", "the doctor", "a red ball is in the picture"]
CONFIG = {
    "embed_dim": 12,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The library, knowing a small architecture more, with GELU and with QuickGELU."""
    library = open_clip()
    place = tmp_path_factory.mktemp("configs")
    for name, quick in (("tiny", False), ("tiny-quickgelu", True)):
        (place / f"{name}.json").write_text(json.dumps({**CONFIG, "quick_gelu": quick}))
    library.add_model_config(place)
    return library


@pytest.fixture(scope="module")
def network(library: Any) -> Any:
    torch.manual_seed(0)
    return library.create_model("tiny-quickgelu").eval()


@pytest.fixture(scope="module")
def expected(library: Any, network: Any) -> tuple[Any, Any]:
    """Embeddings by the library's own calls."""
    config = library.transform.PreprocessCfg(**network.visual.preprocess_cfg)
    transform = library.transform.image_transform_v2(config, is_train=False)
    pixels = torch.stack([transform(image) for image in tiny.pictures()])
    ids = library.get_tokenizer("tiny-quickgelu")(TEXTS)
    with torch.no_grad():
        return network.encode_image(pixels, True).numpy(), network.encode_text(ids, True).numpy()


def save(what: Any, path: Path, query: str = "", arch: str = "tiny-quickgelu") -> str:
    torch.save(what, path)
    return f"open_clip:{arch}/{path}{query}"


def assert_same(model: Any, expected: tuple[Any, Any], within: float = 1e-6) -> None:
    assert np.abs(model.encode_images(tiny.pictures()) - expected[0]).max() <= within
    assert np.abs(model.encode_texts(TEXTS) - expected[1]).max() <= within


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(InputError, match=r"pip install 'tiltmeter\[open-clip\]'") as caught:
        tm.load_model("open_clip:ViT-B-32/laion2b_s34b_b79k")
    assert caught.value.code == "missing-package"


@pytest.mark.parametrize("spec", ["open_clip:ViT-B-32/openai", "slip:slip.pt"])
def test_without_torch(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with refused("missing-package", "torch", "pip install 'tiltmeter[open-clip]'"):
        tm.load_model(spec)


def test_a_torchvision_of_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open_clip.py").write_text(
        'raise RuntimeError("operator torchvision::nms does not exist")'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "open_clip", raising=False)
    with refused("missing-package", "different builds", "torch torchvision --index-url"):
        tm.load_model("open_clip:ViT-B-32/openai")


def test_a_spec_that_names_no_weights(library: Any) -> None:
    for spec in ("open_clip:ViT-B-32", "open_clip:ViT-B-32/", "open_clip:"):
        with pytest.raises(InputError, match="names no weights"):
            tm.load_model(spec)


def test_the_librarys_numbers(network: Any, expected: Any, tmp_path: Path) -> None:
    model = tm.load_model(save(network.state_dict(), tmp_path / "tiny.pt"))
    assert isinstance(model, DualEncoder)
    assert_same(model, expected)
    assert model.logit_scale == pytest.approx(network.logit_scale.exp().item())
    assert model.logit_bias is None
    pixels = model.pixels(tiny.pictures()).requires_grad_()
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    found = model.encode_images(pixels)
    assert np.abs(found.detach().numpy() - expected[0]).max() < 1e-5
    found.sum().backward()
    assert pixels.grad.abs().sum() > 0


class Config:
    """An object of a training that a checkpoint brings along."""

    def __init__(self) -> None:
        self.text = "anything"


LAYOUTS = {
    "trainer": lambda s: {"epoch": 3, "state_dict": {f"module.{k}": v for k, v in s.items()}},
    "compiled": lambda s: {f"_orig_mod.{k}": v for k, v in s.items()},
    "compiled inside": lambda s: {f"module._orig_mod.{k}": v for k, v in s.items()},
    "one compiled tower": lambda s: {
        k.replace("visual.", "visual._orig_mod."): v for k, v in s.items()},
    "lightning": lambda s: {"state_dict": {f"model.{k}": v for k, v in s.items()}},
    "average": lambda s: {"model_ema": s},
    "options": lambda s: {"state_dict": s, "args": argparse.Namespace(lr=1.0), "config": Config()},
    "FaRL": lambda s: {"state_dict": {
        **s, "visual.mask_token": torch.ones(64), "visual.ln_lm.weight": torch.ones(64),
        "visual.lm_head.bias": torch.ones(9),
        "visual.lm_transformer.resblocks.0.ln_1.bias": torch.ones(64)}},
    "OpenAI": lambda s: {**s, "input_resolution": torch.tensor(32),
        "context_length": torch.tensor(77), "vocab_size": torch.tensor(49408)},
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_checkpoints(layout: str, network: Any, expected: Any, tmp_path: Path) -> None:
    spec = save(LAYOUTS[layout](network.state_dict()), tmp_path / "layout.pt")
    assert_same(tm.load_model(spec), expected)


@pytest.mark.parametrize("layout", ["FaRL", "OpenAI"])
def test_weights_that_say_their_activation(
    layout: str, network: Any, expected: Any, tmp_path: Path, recwarn: Any
) -> None:
    spec = save(LAYOUTS[layout](network.state_dict()), tmp_path / "layout.pt", arch="tiny")
    assert_same(tm.load_model(spec), expected)
    assert not [w for w in recwarn if "activation" in str(w.message)]


def test_weights_that_do_not_say_their_activation(network: Any, tmp_path: Path) -> None:
    spec = save(network.state_dict(), tmp_path / "plain.pt", arch="tiny")
    with pytest.warns(UserWarning, match="tiny uses GELU.*write open_clip:tiny-quickgelu/"):
        assert tm.load_model(spec).provenance["quick_gelu"] is False


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*TorchScript")
def test_openais_archive(library: Any, network: Any, expected: Any, tmp_path: Path) -> None:
    """A traced model, as OpenAI releases them: the weights are read, the program is not."""
    ids = library.get_tokenizer("tiny-quickgelu")(TEXTS)
    traced = torch.jit.trace(network, (torch.zeros(3, 3, 32, 32), ids))
    traced.save(str(tmp_path / "ViT-T.pt"))
    assert_same(tm.load_model(f"open_clip:tiny-quickgelu/{tmp_path / 'ViT-T.pt'}"), expected)


def test_a_part_of_a_checkpoint(network: Any, expected: Any, tmp_path: Path) -> None:
    state = network.state_dict()
    both = {"model": {k: v + 0.1 for k, v in state.items()}, "model_ema": state}
    assert_same(tm.load_model(save(both, tmp_path / "both.pt", "?weights=model_ema")), expected)
    other = tm.load_model(save(both, tmp_path / "both.pt"))
    assert np.abs(other.encode_texts(TEXTS) - expected[1]).max() > 1e-3
    with pytest.raises(UnknownNameError, match="model_ema"):
        tm.load_model(save(both, tmp_path / "both.pt", "?weights=model_emma"))


def test_weights_that_do_not_fit(network: Any, expected: Any, tmp_path: Path) -> None:
    state = dict(network.state_dict())
    more = {**state, "other": torch.ones(1)}
    with pytest.raises(InputError, match="unknown weights of these names: other.*\\?ignore=NAME"):
        tm.load_model(save(more, tmp_path / "more.pt"))
    assert_same(tm.load_model(save(more, tmp_path / "more.pt", "?ignore=oth*")), expected)
    tower = {k: v for k, v in state.items() if k.startswith("visual.")}
    with pytest.raises(InputError, match="image tower alone"):
        tm.load_model(save(tower, tmp_path / "tower.pt"))
    with pytest.raises(InputError, match="None of its names are open_clip's"):
        tm.load_model(save({"encoder.weight": torch.ones(1)}, tmp_path / "other.pt"))
    del state["text_projection"]
    with pytest.raises(InputError, match="has no weights of these names: text_projection"):
        tm.load_model(save(state, tmp_path / "less.pt"))


def test_code_in_a_file_is_not_run(library: Any, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"

    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (sprung,)

    for content in ({"state_dict": Trap()}, {"state_dict": {"logit_scale": Trap()}}, Trap()):
        with pytest.raises(InputError):
            tm.load_model(save(content, tmp_path / "trap.pt"))
        assert not sprung.exists()


def test_names_that_are_not_known(library: Any) -> None:
    with pytest.raises(UnknownNameError, match="ViT-B-32"):
        tm.load_model("open_clip:ViT-B-33/openai")
    with pytest.raises(UnknownNameError, match="laion2b_s34b_b79k"):
        tm.load_model("open_clip:ViT-B-32/laion2b_s34b")
    with pytest.raises(UnknownNameError, match="known: .*laion400m_e31.*openai"):
        tm.load_model("open_clip:ViT-B-32/zzz")
    with pytest.raises(InputError, match="no such file: weights/x.pt. Tags of tiny"):
        tm.load_model("open_clip:tiny/weights/x.pt")


def test_a_tag_says_the_activation(
    library: Any, network: Any, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with open_clip:ViT-B-32/openai; the library warns, and uses GELU."""
    torch.save(network.state_dict(), tmp_path / "openai.pt")
    tags = {"openai": {"file": str(tmp_path / "openai.pt"), "quick_gelu": True}}
    monkeypatch.setitem(library.pretrained._PRETRAINED, "tiny", tags)
    model = tm.load_model("open_clip:tiny/openai")
    assert_same(model, expected)
    assert model.provenance["quick_gelu"] is True


def test_a_hub_out_of_reach(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One clean error at once, not five repeated requests of each file."""
    monkeypatch.setattr(models, "_reachable", lambda url: False)
    start = time.perf_counter()
    with pytest.raises(InputError, match="\\?tokenizer=DIR"):
        tm.load_model("open_clip:ViT-B-16-SigLIP/webli")
    for spec in ("open_clip:ViT-B-32/openai", "open_clip:hf-hub:timm/none"):
        with pytest.raises(InputError, match="cannot be loaded"):
            tm.load_model(spec)
    assert time.perf_counter() - start < 20


def test_a_directory_of_the_library(
    library: Any, network: Any, expected: Any, tmp_path: Path
) -> None:
    config = {"model_cfg": {**CONFIG, "quick_gelu": True}, "preprocess_cfg": {}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="cannot be loaded"):
        tm.load_model(f"open_clip:local-dir:{tmp_path}")
    torch.save(network.state_dict(), tmp_path / "open_clip_pytorch_model.bin")
    assert_same(tm.load_model(f"open_clip:local-dir:{tmp_path}"), expected)


def test_a_config_file(network: Any, expected: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps({**CONFIG, "quick_gelu": True}))
    query = f"?config={tmp_path / 'mine.json'}"
    assert_same(
        tm.load_model(save(network.state_dict(), tmp_path / "x.pt", query, "mine")), expected
    )
    with pytest.raises(InputError, match="no such file"):
        tm.load_model("open_clip:mine/x.pt?config=none.json")


def test_precision_and_image_size(network: Any, expected: Any, tmp_path: Path) -> None:
    state = network.state_dict()
    half = tm.load_model(save(state, tmp_path / "x.pt", "?precision=bf16"))
    assert_same(half, expected, within=0.05)
    assert np.abs(half.encode_images(tiny.pictures()) - expected[0]).max() > 0
    large = tm.load_model(save(state, tmp_path / "x.pt", "?image_size=48"))
    assert large.pixels(tiny.pictures()).shape[-2:] == (48, 48)
    assert large.encode_images(tiny.pictures()).shape == expected[0].shape
    assert half.identity != large.identity
    with pytest.raises(UnknownNameError, match="bf16"):
        tm.load_model(save(state, tmp_path / "x.pt", "?precision=bf17"))
    with pytest.raises(InputError, match="number of pixels"):
        tm.load_model(save(state, tmp_path / "x.pt", "?image_size=big"))


def test_the_bias_of_siglip(library: Any, tmp_path: Path) -> None:
    (tmp_path / "sig.json").write_text(json.dumps({**CONFIG, "init_logit_bias": -10}))
    library.add_model_config(tmp_path / "sig.json")
    network = library.create_model("sig")
    assert (
        tm.load_model(save(network.state_dict(), tmp_path / "s.pt", arch="sig")).logit_bias == -10
    )


def test_nothing_is_printed(
    network: Any, tmp_path: Path, capfd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The library calls every model random whose weights it did not load itself."""
    handlers = logging.getLogger().handlers[:]
    tm.load_model(save(network.state_dict(), tmp_path / "x.pt"))
    assert logging.getLogger().handlers == handlers
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_debias_clip(library: Any, network: Any, expected: Any, tmp_path: Path) -> None:
    """DebiasCLIP's state dict, and its tokens alone (debias_clip/model/model.py, `prepend`)."""
    state, tokens = network.state_dict(), torch.randn(2, 16)
    whole = {
        **{f"clip.{k}": v for k, v in state.items()},
        "logit_scale": state["logit_scale"], "debias_tokens.weight": tokens,
    }  # fmt: skip
    model = tm.load_model(save(whole, tmp_path / "whole.pt"))
    torch.save(torch.nn.Parameter(tokens), tmp_path / "tokens.pt")
    query = f"?debias_tokens={tmp_path / 'tokens.pt'}"
    apart = tm.load_model(save(state, tmp_path / "clip.pt", query))
    assert np.array_equal(model.encode_texts(TEXTS), apart.encode_texts(TEXTS))
    assert np.array_equal(model.encode_images(tiny.pictures()), expected[0])
    assert model.identity == apart.identity
    # one text after another, one position after another
    for text, vector in zip(TEXTS, model.encode_texts(TEXTS), strict=True):
        ids = library.get_tokenizer("tiny-quickgelu")([text])[0]
        end = int(ids.argmax())
        words = [network.token_embedding(ids[at]) + network.positional_embedding[at]
                 for at in range(end + 1)]  # fmt: skip
        x = torch.stack([*tokens, *words])[None]
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
        with torch.no_grad():
            x = network.ln_final(network.transformer(x, attn_mask=mask))[0, -1]
            ours = torch.nn.functional.normalize(x @ network.text_projection, dim=-1)
        assert np.abs(ours.numpy() - vector).max() < 1e-5
    assert np.abs(model.encode_texts(TEXTS) - expected[1]).max() > 1e-3
    torch.save(torch.ones(2, 9), tmp_path / "wide.pt")
    with pytest.raises(InputError, match="expected tokens x width"):
        tm.load_model(save(state, tmp_path / "clip.pt", f"?debias_tokens={tmp_path / 'wide.pt'}"))


def test_a_whole_audit(network: Any, tmp_path: Path) -> None:
    """From the command line: images are embedded, ranked and reported."""
    faces = tmp_path / "faces"
    for at, image in enumerate(tiny.pictures(24)):
        folder = faces / ("man", "woman")[at % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"{at}.png")
    spec = save(network.state_dict(), tmp_path / "tiny.pt")
    out = tmp_path / "run"
    ran = tiltmeter("audit", spec, "--images", f"folder:{faces}", "--probe", "ranking", *FEW,
                    "--out", out, "--store", tmp_path / "store")  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    run = tm.Run.load(out)
    assert run.table.num_rows > 0
    assert run.meta["model"]["weights"]
