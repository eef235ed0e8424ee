"""Dual encoders and retrievers of transformers: what we give is what the library's call gives."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tiltmeter as tm  # noqa: E402
from tests.models import tiny, tiny_dual  # noqa: E402
from tests.models.grid import check_grid  # noqa: E402
from tiltmeter.errors import InputError, UnknownNameError  # noqa: E402
from tiltmeter.probes.probe import Resampling  # noqa: E402
from tiltmeter.probes.stereotype.caption_choice import CaptionCases  # noqa: E402
from tiltmeter.probes.stereotype.probe import stereotype  # noqa: E402
from tiltmeter.types import DualEncoder, Groups, Matcher, TextEncoder  # noqa: E402

TEXTS = ["a photo of a nurse", "The Doctor!", "a red ball is in the picture"]
CHINESE = ["一张护士的照片", "医生", "一张 photo"]
PICTURES = tiny_dual.pictures()


@dataclass(frozen=True)
class Case:
    """A class of checkpoints: its builder, and how its documentation calls the processor."""

    build: Callable[[Path], Any]
    call: dict[str, Any] = field(default_factory=dict)
    texts: list[str] = field(default_factory=lambda: TEXTS)


TOWERS = {
    "clip": Case(tiny.clip, {"padding": True}),
    "metaclip_2": Case(tiny_dual.metaclip, {"padding": True}),
    "altclip": Case(tiny_dual.altclip, {"padding": True}),
    "chinese_clip": Case(tiny_dual.chinese_clip, {"padding": True}, CHINESE),
    "align": Case(tiny_dual.align),
    "siglip": Case(tiny_dual.siglip, {"padding": "max_length"}),
    # its processor keeps capitals, which the network never saw in training
    "siglip2 fixed": Case(
        tiny_dual.siglip2,
        {"padding": "max_length", "max_length": 64},
        [text.lower() for text in TEXTS],
    ),
    "siglip2 naflex": Case(tiny_dual.naflex),
}
RETRIEVERS = {
    "blip": Case(tiny_dual.blip, {"padding": True}),
    "blip-2": Case(tiny_dual.blip2, {"padding": True}),
}
CASES = TOWERS | RETRIEVERS


@dataclass(frozen=True)
class Built:
    case: Case
    directory: Path
    library: Any  # the model as it was saved
    model: Any  # ours

    def theirs(self, **options: Any) -> Any:
        """The library's full forward on what its own processor makes of the same input."""
        processor = transformers.AutoProcessor.from_pretrained(self.directory)
        ready = processor(
            text=self.case.texts, images=PICTURES, return_tensors="pt", **self.case.call
        )
        with torch.no_grad():
            return self.library(**ready, **options)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    """Every case is built once, when it is asked for."""
    done: dict[str, Built] = {}

    def build(name: str) -> Built:
        if name == "siglip":
            pytest.importorskip("sentencepiece")  # SigLIP's own tokenizer stands on both
            pytest.importorskip("google.protobuf")
        if name not in done:
            torch.manual_seed(0)
            directory = tmp_path_factory.mktemp("checkpoint")
            library = CASES[name].build(directory)
            done[name] = Built(CASES[name], directory, library, tm.load_model(f"hf:{directory}"))
        return done[name]

    return build


def apart(ours: Any, theirs: Any) -> float:
    return float(np.abs(np.asarray(ours) - theirs.numpy()).max())


@pytest.mark.parametrize("name", TOWERS)
def test_vectors_and_logits_are_the_librarys(name: str, built: Callable[[str], Built]) -> None:
    here = built(name)
    model, theirs = here.model, here.theirs()
    images, texts = model.encode_images(PICTURES), model.encode_texts(here.case.texts)
    assert apart(images, theirs.image_embeds) < 1e-5
    assert apart(texts, theirs.text_embeds) < 1e-5
    logits = model.logit_scale * images @ texts.T + getattr(model, "logit_bias", 0)
    assert apart(logits, theirs.logits_per_image) < 1e-5
    assert not np.allclose(images[0], images[1], atol=1e-3)  # else the above says little
    assert not np.allclose(texts[0], texts[1], atol=1e-3)


def test_blip_has_the_librarys_cosines_and_matches(built: Callable[[str], Built]) -> None:
    here = built("blip")
    assert isinstance(here.model, DualEncoder)
    cosines = here.model.encode_images(PICTURES) @ here.model.encode_texts(TEXTS).T
    assert apart(cosines, here.theirs(use_itm_head=False).itm_score) < 1e-5
    scores = here.theirs(use_itm_head=True).itm_score
    assert apart(here.model.match(PICTURES, TEXTS), scores[:, 1] - scores[:, 0]) < 1e-5
    check_grid(here.model, PICTURES, TEXTS)
    assert scores.std(dim=0).min() > 0.01


def test_blip_without_a_scale_has_no_rows_at_its_own_scale(built: Callable[[str], Built]) -> None:
    """The same cases through CLIP, which has a scale, do have them."""
    cases = CaptionCases(
        ids=("a", "b"),
        captions=(tuple(TEXTS), tuple(TEXTS[::-1])),
        neutral=(None, None),
        categories=Groups.from_labels(["profession", "profession"]),
        targets=("nurse", "doctor"),
        against=np.array([True, True]),
        images=PICTURES[:2],
    )
    ways = {}
    for name in ("clip", "blip"):
        table, _ = stereotype(built(name).model, cases, resampling=Resampling(0, 0))
        ways[name] = set(table["experiment"].to_pylist())
    assert any("logit scale" in way for way in ways["clip"])
    assert any("cosine" in way for way in ways["blip"])
    assert not any("logit scale" in way for way in ways["blip"])


@pytest.mark.parametrize("image_token", [True, False], ids=["image tokens", "plain"])
def test_blip2_has_both_of_the_librarys_scores(tmp_path: Path, image_token: bool) -> None:
    torch.manual_seed(0)
    library = tiny_dual.blip2(tmp_path, image_token=image_token)
    here = Built(CASES["blip-2"], tmp_path, library, tm.load_model(f"hf:{tmp_path}"))
    scores = here.theirs(use_image_text_matching_head=True).logits_per_image
    assert apart(here.model.match(PICTURES, TEXTS), scores[:, 1] - scores[:, 0]) < 1e-5
    check_grid(here.model, PICTURES, TEXTS)
    cosines = here.theirs(use_image_text_matching_head=False).logits_per_image
    assert apart(here.model.match(PICTURES, TEXTS, head="itc"), cosines.diagonal()) < 1e-5
    assert scores.std(dim=0).min() > 0.01
    assert cosines.std() > 0.01
    with pytest.raises(UnknownNameError, match="itx"):
        here.model.match(PICTURES, TEXTS, head="itx")


def test_blip2_gives_no_single_vector(built: Callable[[str], Built]) -> None:
    model = built("blip-2").model
    assert isinstance(model, Matcher)
    assert not isinstance(model, TextEncoder | DualEncoder)


# what holds for every kind


def readings(model: Any, texts: list[str]) -> dict[str, Callable[[Any], Any]]:
    """All that a model says of images."""
    found = {}
    if isinstance(model, DualEncoder):
        found["vectors"] = model.encode_images
    if isinstance(model, Matcher):
        found["match"] = lambda images: model.match(images, texts)
    if hasattr(model, "contrasted"):
        found["itc"] = lambda images: model.match(images, texts, head="itc")
    assert found
    return found


@pytest.mark.parametrize("name", CASES)
def test_contract(name: str, built: Callable[[str], Built], monkeypatch: Any) -> None:
    here = built(name)
    model, texts = here.model, here.case.texts
    if name in RETRIEVERS:  # the library has no scale for them either
        assert not hasattr(model, "logit_scale")
    else:
        assert model.logit_scale > 0
    assert isinstance(model.preprocessing, dict)
    if isinstance(model, DualEncoder):
        for vectors in (model.encode_images(PICTURES), model.encode_texts(texts)):
            assert vectors.dtype == np.float32
            assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)

    whole = {what: read(PICTURES) for what, read in readings(model, texts).items()}
    pixels = model.pixels(PICTURES)
    assert len(pixels) == len(PICTURES)
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    for what, read in readings(model, texts).items():
        given = pixels.clone().requires_grad_()
        found = read(given)
        assert found.detach().numpy() == pytest.approx(whole[what], abs=1e-5)
        found.reshape(len(texts), -1)[:, 0].sum().backward()
        assert (given.grad.flatten(1).abs().sum(dim=1) > 0).all()

    monkeypatch.setattr(model, "block", 2)  # 3 pictures: a full block and a part of one
    for what, read in readings(model, texts).items():
        assert read(PICTURES) == pytest.approx(whole[what], abs=1e-5)
    if isinstance(model, DualEncoder):
        alone = np.concatenate([model.encode_texts([text]) for text in texts])
        assert model.encode_texts(texts) == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_hash_follows_the_weights(
    name: str, built: Callable[[str], Built], tmp_path: Path
) -> None:
    here = built(name)
    again = tm.load_model(f"hf:{here.directory}")
    assert again.provenance["weights"] == here.model.provenance["weights"]
    for file in here.directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with torch.no_grad():
        next(iter(again.parameters())).view(-1)[0] += 1
    again.network.save_pretrained(tmp_path)
    other = tm.load_model(f"hf:{tmp_path}")
    assert other.provenance["weights"] != here.model.provenance["weights"]


# checkpoints that do not fit


WRONG = {
    "clip": "CLIPForImageClassification",
    "metaclip_2": "MetaClip2ForImageClassification",
    "siglip2 fixed": "SiglipForImageClassification",
    "siglip2 naflex": "Siglip2ForImageClassification",
    "blip": "BlipForConditionalGeneration",
}


@pytest.mark.parametrize("name", WRONG)
def test_another_class_of_the_family(
    name: str, built: Callable[[str], Built], tmp_path: Path
) -> None:
    kind = getattr(transformers, WRONG[name])
    kind(built(name).library.config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=f"no weights for .* saved from {WRONG[name]}"):
        tm.load_model(f"hf:{tmp_path}")


@pytest.mark.parametrize("name", ["align", "altclip", "chinese_clip"])
def test_a_tower_alone(name: str, built: Callable[[str], Built], tmp_path: Path) -> None:
    built(name).library.vision_model.save_pretrained(tmp_path)
    with pytest.raises((InputError, UnknownNameError), match=f"{name}_vision_model"):
        tm.load_model(f"hf:{tmp_path}")


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no directory") as caught:
        tm.load_model(f"hf:{tmp_path}/nothing")
    assert (caught.value.code, caught.value.value) == ("not-found", f"{tmp_path}/nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="its config cannot be loaded"):
        tm.load_model(f"hf:{tmp_path}/empty")


class Trap:
    """Unpickled, it would leave a file."""

    def __init__(self, sprung: Path) -> None:
        self.sprung = sprung

    def __reduce__(self) -> Any:
        return Path.touch, (self.sprung,)


@pytest.mark.parametrize(
    ("dump", "load"),
    [
        (pickle.dump, pickle.load),
        (torch.save, lambda file: torch.load(file, weights_only=False)),
    ],
    ids=["pickle", "torch"],
)
def test_a_pickle_is_not_run(tmp_path: Path, dump: Any, load: Any) -> None:
    tiny.clip(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    sprung, weights = tmp_path / "sprung", tmp_path / "pytorch_model.bin"
    with weights.open("wb") as file:
        dump({"logit_scale": Trap(sprung)}, file)
    with pytest.raises(InputError, match="its weights cannot be loaded: a pickle"):
        tm.load_model(f"hf:{tmp_path}")
    assert not sprung.exists()
    with weights.open("rb") as file:
        load(file)
    assert sprung.exists()  # the trap is a real one


# what is special to one kind


def test_long_texts_are_cut(built: Callable[[str], Built]) -> None:
    for name in ("metaclip_2", "align", "siglip2 fixed"):  # the first and last name no limit
        assert built(name).model.encode_texts(["the nurse " * 100]).shape[0] == 1


def test_siglip2_reads_lower_case(built: Callable[[str], Built]) -> None:
    for name in ("siglip2 fixed", "siglip2 naflex"):
        model = built(name).model
        assert np.array_equal(model.encode_texts(["A NURSE"]), model.encode_texts(["a nurse"]))


def test_naflex_takes_plain_pixels(built: Callable[[str], Built]) -> None:
    model = built("siglip2 naflex").model
    wide = [picture.resize((256, 256)) for picture in PICTURES]  # 16 x 16 patches: no padding
    theirs = model.encode_images(wide)
    pixels = torch.stack(
        [torch.as_tensor(np.array(picture)).permute(2, 0, 1) / 255 for picture in wide]
    ).requires_grad_()
    found = model.encode_images(pixels)
    assert found.detach().numpy() == pytest.approx(theirs, abs=1e-5)
    found[:, 0].sum().backward()
    assert (pixels.grad.flatten(1).abs().sum(dim=1) > 0).all()
    with pytest.raises(InputError, match="multiples of 16"):
        model.encode_images(pixels[..., :250])


def test_align_normalises_as_the_processor_does(
    built: Callable[[str], Built], monkeypatch: Any
) -> None:
    """Also where a checkpoint asks for the steps that the published one leaves out."""
    model = built("align").model
    for name, value in (
        ("do_normalize", True),
        ("include_top", True),
        ("image_std", [0.2, 0.3, 0.4]),
    ):
        monkeypatch.setattr(model.processor, name, value)
    theirs = model.processor(PICTURES, return_tensors="pt")["pixel_values"]
    assert apart(model.normal(model.pixels(PICTURES)), theirs) < 1e-5
