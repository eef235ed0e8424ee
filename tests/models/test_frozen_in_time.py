"""Frozen in Time: the names of its released files, and its arithmetic one token at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tiltmeter as tm  # noqa: E402
from tests.models import tiny  # noqa: E402
from tiltmeter.errors import InputError  # noqa: E402
from tiltmeter.types import DualEncoder  # noqa: E402

WIDTH, PATCH, SIDE, LAYERS, FRAMES, TEXT, JOINT = 128, 8, 3, 2, 4, 128, 16
HEADS = WIDTH // 64
TEXTS = ["a photo of a nurse", "the doctor is smart"]


class ConfigParser:
    """What the repository's trainer saves with the weights."""


@pytest.fixture(scope="module")
def text_tower(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("words")
    tokenizer = tiny.bert_tokenizer(place)
    config = transformers.DistilBertConfig(
        vocab_size=len(tokenizer), dim=TEXT, n_heads=2, n_layers=2, hidden_dim=64,
        max_position_embeddings=24,
    )  # fmt: skip
    return transformers.DistilBertModel(config).eval(), tokenizer, place


@pytest.fixture(scope="module")
def state(text_tower: Any) -> dict[str, Any]:
    """model/model.py and model/video_transformer.py."""
    shapes = {
        "cls_token": (1, 1, WIDTH), "pos_embed": (1, 1 + SIDE**2, WIDTH),
        "temporal_embed": (1, FRAMES, WIDTH), "patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH),
        "patch_embed.proj.bias": (WIDTH,), "norm.weight": (WIDTH,), "norm.bias": (WIDTH,),
    }  # fmt: skip
    for at in range(LAYERS):
        for part, rows, columns in (("attn.qkv", 3 * WIDTH, WIDTH), ("attn.proj", WIDTH, WIDTH),
            ("timeattn.qkv", 3 * WIDTH, WIDTH), ("timeattn.proj", WIDTH, WIDTH),
            ("mlp.fc1", 80, WIDTH), ("mlp.fc2", WIDTH, 80)):  # fmt: skip
            shapes[f"blocks.{at}.{part}.weight"] = (rows, columns)
            shapes[f"blocks.{at}.{part}.bias"] = (rows,)
        for part in ("norm1", "norm2", "norm3"):
            shapes |= {f"blocks.{at}.{part}.{end}": (WIDTH,) for end in ("weight", "bias")}
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Any:
        return 0.2 * torch.randn(*shape, generator=generator)

    found = {f"video_model.{name}": random(*shape) for name, shape in shapes.items()}
    found |= {f"text_model.{name}": value for name, value in text_tower[0].state_dict().items()}
    found |= {"txt_proj.1.weight": random(JOINT, TEXT), "txt_proj.1.bias": random(JOINT)}
    return found | {"vid_proj.0.weight": random(JOINT, WIDTH), "vid_proj.0.bias": random(JOINT)}


def save(state: dict[str, Any], path: Path, words: Path) -> str:
    """base/base_trainer.py, from several GPUs; older transformers saved position_ids."""
    old = {**state, "text_model.embeddings.position_ids": torch.arange(24)[None]}
    wrapped = {f"module.{name}": value for name, value in old.items()}
    torch.save({"arch": "FrozenInTime", "epoch": 1, "state_dict": wrapped,
                "config": ConfigParser(), "monitor_best": 0.1}, path)  # fmt: skip
    return f"fit:{path}?tokenizer={words}"


def by_hand(state: dict[str, Any], pixels: Any) -> Any:
    """One image, head by head and token by token, as the repository's einsum would give it."""
    s = {n.removeprefix("video_model."): v.double() for n, v in state.items()}

    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
        return scaled * s[f"{name}.weight"] + s[f"{name}.bias"]

    def linear(x: Any, name: str) -> Any:
        return x @ s[f"{name}.weight"].T + s[f"{name}.bias"]

    def attention(x: Any, name: str, seen: Any) -> Any:
        q, k, v = linear(x, f"{name}.qkv").chunk(3, -1)
        out = torch.zeros_like(x)
        size = WIDTH // HEADS
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            for row in range(len(x)):
                keys = seen(row)
                weights = torch.softmax(k[keys, part] @ q[row, part] * size**-0.5, 0)
                out[row, part] = weights @ v[keys, part]
        return linear(out, f"{name}.proj")

    tokens = [s["cls_token"][0, 0] + s["pos_embed"][0, 0]]
    for row in range(SIDE):
        for column in range(SIDE):
            square = pixels[
                :, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH
            ]
            patch = (s["patch_embed.proj.weight"] * square.double()).sum((1, 2, 3))
            place = s["pos_embed"][0, 1 + row * SIDE + column] + s["temporal_embed"][0, 0]
            tokens.append(patch + s["patch_embed.proj.bias"] + place)
    x = torch.stack(tokens)
    everything = list(range(len(x)))
    for at in range(LAYERS):
        block = f"blocks.{at}"
        time = attention(norm(x, f"{block}.norm3"), f"{block}.timeattn",
                         lambda row: everything if row == 0 else [0, row])  # fmt: skip
        x = x + attention(norm(x + time, f"{block}.norm1"), f"{block}.attn", lambda row: everything)
        inner = torch.nn.functional.gelu(linear(norm(x, f"{block}.norm2"), f"{block}.mlp.fc1"))
        x = x + linear(inner, f"{block}.mlp.fc2")
    vector = linear(norm(x, "norm")[0], "vid_proj.0")
    return vector / vector.norm()


def test_its_numbers(state: dict[str, Any], text_tower: Any, tmp_path: Path) -> None:
    tower, tokenizer, words = text_tower
    model = tm.load_model(save(state, tmp_path / "fit.pth.tar", words))
    assert isinstance(model, DualEncoder)
    side = PATCH * SIDE
    images = [Image.fromarray(np.asarray(i)[:side, :side]) for i in tiny.pictures(2)]
    pixels = model.pixels(images)
    assert pixels.shape == (2, 3, side, side)
    for vector, image in zip(model.encode_images(images), model.normal(pixels), strict=True):
        assert np.abs(vector - by_hand(state, image).numpy()).max() < 1e-5
    with torch.no_grad():
        for text, vector in zip(TEXTS, model.encode_texts(TEXTS), strict=True):
            ids = tokenizer(text, return_tensors="pt")
            first = tower(ids["input_ids"], ids["attention_mask"]).last_hidden_state[0, 0]
            ours = first.relu() @ state["txt_proj.1.weight"].T + state["txt_proj.1.bias"]
            assert np.abs(vector - (ours / ours.norm()).numpy()).max() < 1e-5
    assert model.logit_scale == pytest.approx(20)


def test_the_middle_of_an_image(state: dict[str, Any], text_tower: Any, tmp_path: Path) -> None:
    model = tm.load_model(save(state, tmp_path / "fit.pth.tar", text_tower[2]))
    wide = Image.new("RGB", (90, 30))
    wide.paste((255, 255, 255), (30, 0, 60, 30))
    assert float(model.pixels([wide]).min()) > 0.9


def test_other_files(state: dict[str, Any], text_tower: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="write fit:FILE"):
        tm.load_model("fit:nowhere.pt")
    torch.save({"weight": torch.ones(2)}, tmp_path / "other.pt")
    with pytest.raises(InputError, match="not a checkpoint of Frozen in Time"):
        tm.load_model(f"fit:{tmp_path / 'other.pt'}")
    less = {name: value for name, value in state.items() if name != "video_model.norm.bias"}
    with pytest.raises(InputError, match="has no weights of these names: video_model.norm.bias"):
        tm.load_model(save(less, tmp_path / "less.pt", text_tower[2]))
    tiny.clip_tokenizer(tmp_path / "clip")
    with pytest.raises(InputError, match="name the tokenizer they were trained with"):
        tm.load_model(save(state, tmp_path / "fit.pt", tmp_path / "clip"))
