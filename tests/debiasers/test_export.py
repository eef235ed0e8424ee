"""Corrected models as plain checkpoints of transformers: the same vectors, or a clear refusal."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from PIL import Image  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

import tiltmeter as tm  # noqa: E402
from tests.debiasers.making import InTurns, OffPrompts, planted  # noqa: E402
from tests.random_clip import random_clip  # noqa: E402
from tiltmeter.cli.app import app  # noqa: E402
from tiltmeter.debiasers.clip_clip import ClipClip  # noqa: E402
from tiltmeter.debiasers.debiased import Debiased  # noqa: E402
from tiltmeter.debiasers.debiaser import GroupTexts  # noqa: E402
from tiltmeter.debiasers.export import check_format, export, linear_part  # noqa: E402
from tiltmeter.debiasers.leace import Leace  # noqa: E402
from tiltmeter.debiasers.prompt_array import PromptArray  # noqa: E402
from tiltmeter.debiasers.text_tower import PLACES  # noqa: E402
from tiltmeter.errors import InputError, UnknownNameError  # noqa: E402

torch.set_num_threads(1)
TEXTS = ["a photo of a good person", "kind", "this is a very long text " * 20]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory):
    return tm.load_model(f"hf:{random_clip(tmp_path_factory.mktemp('clip') / 'small')}")


def pictures(count: int = 3) -> list[Image.Image]:
    rng = np.random.default_rng(5)
    return [Image.fromarray(x) for x in rng.integers(0, 256, (count, 80, 70, 3), dtype=np.uint8)]


def by_transformers(place: Path) -> tuple[np.ndarray, np.ndarray]:
    """Vectors as a user of the library gets them, without any of our code."""
    model = transformers.AutoModel.from_pretrained(place)
    read = transformers.AutoTokenizer.from_pretrained(place)
    see = transformers.AutoImageProcessor.from_pretrained(place, backend="pil")
    tokens = read(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        texts = model.get_text_features(**tokens)
        images = model.get_image_features(**see(pictures(), return_tensors="pt"))
    found = [x if isinstance(x, torch.Tensor) else x.pooler_output for x in (texts, images)]
    texts, images = (torch.nn.functional.normalize(x, dim=-1).numpy() for x in found)
    return texts, images


def same(made: Debiased, place: Path) -> None:
    texts, images = by_transformers(place)
    assert np.abs(texts - made.encode_texts(TEXTS)).max() < 1e-5
    assert np.abs(images - made.encode_images(pictures())).max() < 1e-5


def changed(made: Debiased, clip) -> bool:
    before, after = clip.encode_texts(TEXTS), made.encode_texts(TEXTS)
    return before.shape != after.shape or bool(np.abs(before - after).max() > 1e-3)


def test_dropped_dimensions(clip, tmp_path: Path) -> None:
    made = Debiased(clip, ClipClip(keep=40).fit(*planted(200, 64, 2)), spec=f"hf:{clip.name}")
    place = export(made, made.save(tmp_path / "fair"))
    assert changed(made, clip)
    same(made, place)
    network = transformers.CLIPModel.from_pretrained(place)
    assert network.text_projection.weight.shape == (40, 64)
    assert network.config.projection_dim == 40
    again = tm.load_model(str(place))  # still the corrected model, which remembers
    assert again.debiaser.get_params() == made.debiaser.get_params()


def test_a_projection_of_texts_alone(clip, tmp_path: Path) -> None:
    naming = {"a": ["a photo of a man"], "b": ["a photo of a woman"]}
    made = Debiased(clip, OffPrompts().fit(None, None, texts=GroupTexts(clip.encode_texts, naming)))
    assert changed(made, clip)
    same(made, export(made, tmp_path / "out"))
    images = transformers.CLIPModel.from_pretrained(tmp_path / "out").visual_projection.weight
    before = clip.network.visual_projection.weight
    assert torch.allclose(images / images.norm(), before / before.norm(), atol=1e-6)


@pytest.mark.parametrize("place", ["append_after_eos", "add"])
def test_places_that_a_tokenizer_cannot_fill_are_refused(place: str, clip, tmp_path: Path) -> None:
    method = PromptArray(place=place, start="random", variant="adversarial", epochs=0).fit(clip)
    made = Debiased(clip, method, spec=f"hf:{clip.name}")
    with pytest.raises(InputError, match="Use after_sos, before_sos, appended"):
        export(made, tmp_path / "fair")
    assert not list((tmp_path / "fair").glob("*"))


@pytest.mark.parametrize("place", PLACES[:3])
def test_learned_tokens(place: str, clip, tmp_path: Path) -> None:
    tune = "text_projection" if place == "appended" else "tokens"
    method = PromptArray(
        place=place, start="random", tune=tune, variant="adversarial", epochs=2, warmup=1, batch=32,
        learning_rate=1e-2,
    ).fit(clip, vectors=planted(96, 64, 2)[0], groups=planted(96, 64, 2)[1])  # fmt: skip
    made = Debiased(clip, method, spec=f"hf:{clip.name}")
    out = export(made, made.save(tmp_path / "fair"))
    assert changed(made, clip)
    same(made, out)
    both = transformers.AutoProcessor.from_pretrained(out)
    assert len(both.tokenizer("word " * 100, truncation=True)["input_ids"]) == 77
    plain = clip.tokenizer("a photo")["input_ids"]
    wide = both.tokenizer("a photo")["input_ids"]
    at = {"after_sos": 1, "before_sos": 0, "appended": len(plain) - 1}[place]
    first = len(clip.tokenizer)
    assert wide == [*plain[:at], first, first + 1, *plain[at:]]
    again = tm.load_model(str(out))
    assert np.abs(again.encode_texts(TEXTS) - made.encode_texts(TEXTS)).max() < 1e-5


def test_a_checkpoint_that_knows_its_end_as_the_highest_number(tmp_path: Path) -> None:
    """Older CLIPs name 2 as the end and take the highest number: new tokens must not be it."""
    old = random_clip(tmp_path / "old")
    config = (old / "config.json").read_text()
    (old / "config.json").write_text(config.replace('"eos_token_id": 55', '"eos_token_id": 2'))
    model = tm.load_model(f"hf:{old}")
    assert model.network.text_model.eos_token_id == 2
    method = PromptArray(start="random", variant="adversarial", epochs=0).fit(model)
    made = Debiased(model, method, spec=f"hf:{old}")
    same(made, export(made, tmp_path / "out"))


def test_what_a_matrix_can_do_is_found_by_what_it_does() -> None:
    rng = np.random.default_rng(1)

    def unit(x):
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    plain = rng.normal(size=(7, 12))
    for matrix in (plain, plain.T @ plain, np.eye(12)[[0, 3, 4]], np.eye(12)):
        found = linear_part(lambda x, m=matrix: unit(x @ m.T), 12)
        assert found is not None
        share = (found * matrix).sum() / (matrix**2).sum()
        assert np.abs(found / share - matrix).max() < 1e-8
    assert linear_part(lambda x: unit(x @ plain.T + 0.01), 12) is None
    assert linear_part(lambda x: unit(np.abs(x)), 12) is None
    assert linear_part(lambda x: unit(np.where(x > 0.5, 0, x)), 12) is None


def test_what_cannot_be_folded_is_refused(clip, tmp_path: Path) -> None:
    x, groups = planted(200, 64, 2)
    made = Debiased(clip, Leace().fit(x, groups), spec=f"hf:{clip.name}")
    place = made.save(tmp_path / "fair")
    with pytest.raises(InputError, match=r"images is not linear.*clip-clip, orth-proj"):
        export(made, place)
    assert not (place / "config.json").exists()
    assert tm.load_model(str(place)).name == made.name
    with pytest.raises(InputError, match="changes orders"):
        export(Debiased(clip, InTurns().fit(x, groups)), tmp_path / "other")
    dual = tm.load_model("testbed:dual")
    figures = tm.load_data("testbed:?images=64")
    fitted = ClipClip().fit(dual.encode_images(figures.images), figures.groups["shape"])
    with pytest.raises(InputError, match="only those of hf: are exported"):
        export(Debiased(dual, fitted), tmp_path / "other")
    with pytest.raises(InputError, match="expected hf:NAME_OR_DIR"):
        check_format("hf", "testbed:dual")
    with pytest.raises(UnknownNameError, match="did you mean 'hf'"):
        check_format("fh", "hf:x")


def test_on_the_command_line(clip, tmp_path: Path) -> None:
    with (tmp_path / "faces.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "kind"])
        for at, picture in enumerate(pictures(24)):
            picture.save(tmp_path / f"{at}.png")
            writer.writerow([f"{at}.png", "xy"[at % 2]])
    images = f"table:{tmp_path / 'faces.csv'}?path=path"
    call = ["debias", "clip-clip", f"hf:{clip.name}", "--images", images, "-a",
            "kind", "--export", "hf", "--device", "cpu", "--out"]  # fmt: skip
    done = CliRunner().invoke(app, [*call, str(tmp_path / "fair")])
    assert done.exit_code == 0, done.output
    same(tm.load_model(str(tmp_path / "fair")), tmp_path / "fair")
    call[1] = "leace"
    done = CliRunner().invoke(app, [*call, str(tmp_path / "affine")])
    assert isinstance(done.exception, InputError)
    assert "is saved: tiltmeter audit" in str(done.exception)
    assert tm.load_model(str(tmp_path / "affine")).name.endswith("+leace")
    done = CliRunner().invoke(
        app, ["debias", "leace", "testbed:dual", "--export", "hf", "--out", "x"]
    )
    assert "must be one" in str(done.exception)
