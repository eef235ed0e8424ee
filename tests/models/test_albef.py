"""ALBEF and TCL: the names of the released files, and the numbers of independent classes.

The original code is not here, but what it is made of is: BERT, a vision transformer, and BERT's
layer with cross-attention, as transformers has them. The names are spelled out below as the
original repositories give them, not taken from our own network.
"""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tiltmeter as tm  # noqa: E402
from tests.models import tiny  # noqa: E402
from tests.models.grid import check_grid  # noqa: E402
from tiltmeter.errors import InputError, UnknownNameError  # noqa: E402
from tiltmeter.models.albef import caption  # noqa: E402
from tiltmeter.models.albef_network import AlbefNetwork, Sizes  # noqa: E402
from tiltmeter.types import DualEncoder, MaskedPredictor, Matcher  # noqa: E402

PATCH, SIDE, IMAGE, IMAGE_LAYERS, IMAGE_MLP = 8, 4, 192, 3, 96
TEXT, TEXT_LAYERS, FUSION, TEXT_MLP, PLACES, JOINT = 128, 4, 2, 80, 40, 24
TEXTS = ["A photo of a nurse.", "the doctor", "a red ball is in the picture"]
MASKED = ["A photo of a [MASK].", "the [MASK] is smart", "a red [MASK] is in the picture"]
BERT, HEAD = "text_encoder.bert.", "text_encoder.cls.predictions."


def linear(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def eye(at: str) -> dict[str, tuple[int, ...]]:
    """models/vit.py: VisionTransformer."""
    shapes = {
        f"{at}.cls_token": (1, 1, IMAGE),
        f"{at}.pos_embed": (1, 1 + SIDE**2, IMAGE),
        f"{at}.patch_embed.proj.weight": (IMAGE, 3, PATCH, PATCH),
        f"{at}.patch_embed.proj.bias": (IMAGE,),
    }
    for n in range(IMAGE_LAYERS):
        block = f"{at}.blocks.{n}"
        shapes |= norm(f"{block}.norm1", IMAGE) | norm(f"{block}.norm2", IMAGE)
        shapes |= linear(f"{block}.attn.qkv", 3 * IMAGE, IMAGE)
        shapes |= linear(f"{block}.attn.proj", IMAGE, IMAGE)
        shapes |= linear(f"{block}.mlp.fc1", IMAGE_MLP, IMAGE)
        shapes |= linear(f"{block}.mlp.fc2", IMAGE, IMAGE_MLP)
    return shapes | norm(f"{at}.norm", IMAGE)


def bert(at: str, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """models/xbert.py: BertModel without a pooler."""
    shapes = {
        f"{at}.embeddings.position_ids": (1, PLACES),
        f"{at}.embeddings.word_embeddings.weight": (vocabulary, TEXT),
        f"{at}.embeddings.position_embeddings.weight": (PLACES, TEXT),
        f"{at}.embeddings.token_type_embeddings.weight": (2, TEXT),
    } | norm(f"{at}.embeddings.LayerNorm", TEXT)
    for n in range(TEXT_LAYERS):
        layer = f"{at}.encoder.layer.{n}"
        looks = [("attention", TEXT)] + [("crossattention", IMAGE)] * (n >= FUSION)
        for look, source in looks:
            shapes |= linear(f"{layer}.{look}.self.query", TEXT, TEXT)
            shapes |= linear(f"{layer}.{look}.self.key", TEXT, source)
            shapes |= linear(f"{layer}.{look}.self.value", TEXT, source)
            shapes |= linear(f"{layer}.{look}.output.dense", TEXT, TEXT)
            shapes |= norm(f"{layer}.{look}.output.LayerNorm", TEXT)
        shapes |= linear(f"{layer}.intermediate.dense", TEXT_MLP, TEXT)
        shapes |= linear(f"{layer}.output.dense", TEXT, TEXT_MLP)
        shapes |= norm(f"{layer}.output.LayerNorm", TEXT)
    return shapes


def head(at: str, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """models/xbert.py: BertLMPredictionHead."""
    shapes = {f"{at}.bias": (vocabulary,)} | linear(f"{at}.transform.dense", TEXT, TEXT)
    shapes |= norm(f"{at}.transform.LayerNorm", TEXT)
    return shapes | linear(f"{at}.decoder", vocabulary, TEXT)


def weights(vocabulary: int, *, retrieval: bool = False) -> dict[str, Any]:
    """models/model_pretrain.py or model_retrieval.py: ALBEF, with all that training keeps."""
    shapes = {"temp": ()} | linear("itm_head", 2, TEXT)
    for m in ("", "_m"):
        shapes |= eye(f"visual_encoder{m}")
        if retrieval:
            shapes |= bert(f"text_encoder{m}", vocabulary)
        else:
            shapes |= bert(f"text_encoder{m}.bert", vocabulary)
            shapes |= head(f"text_encoder{m}.cls.predictions", vocabulary)
        shapes |= linear(f"vision_proj{m}", JOINT, IMAGE) | linear(f"text_proj{m}", JOINT, TEXT)
    shapes |= {"image_queue": (JOINT, 6), "text_queue": (JOINT, 6), "queue_ptr": (1,)}
    if retrieval:
        shapes |= {"idx_queue": (1, 6)}
    torch.manual_seed(0)
    state = {
        name: torch.randn(shape) * (0.2 if "pos" in name else 0.1)
        + (1 if "norm" in name.lower() and name.endswith("weight") else 0)
        for name, shape in shapes.items()
    }
    state["temp"] = torch.tensor(0.05)
    state["queue_ptr"] = torch.zeros(1, dtype=torch.long)
    for m in () if retrieval else ("", "_m"):  # one tensor under two names
        at = f"text_encoder{m}.cls.predictions"
        state[f"{at}.decoder.bias"] = state[f"{at}.bias"]
        words = state[f"text_encoder{m}.bert.embeddings.word_embeddings.weight"]
        state[f"{at}.decoder.weight"] = words
    return state


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tokenizer and two checkpoints as the original code saves them."""
    directory = tmp_path_factory.mktemp("albef")
    vocabulary = len(tiny.bert_tokenizer(directory))
    more = {"config": {"image_res": PATCH * SIDE}, "epoch": 29, "optimizer": {"state": {}}}
    torch.save({"model": weights(vocabulary), **more}, directory / "ALBEF.pth")
    torch.save({"model": weights(vocabulary, retrieval=True), **more}, directory / "flickr30k.pth")
    return directory


def load(place: Path, file: str = "ALBEF.pth", scheme: str = "albef", more: str = "") -> Any:
    return tm.load_model(f"{scheme}:{place / file}?tokenizer={place}{more}")


@pytest.fixture(scope="module")
def model(place: Path) -> Any:
    return load(place)


def part(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


class Reference:
    """The same weights in the classes of transformers."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        self.see, self.read = self._eye(), self._reader()
        config = self._config(is_decoder=True, add_cross_attention=True)
        self.layers = [self._layer(config, n) for n in range(FUSION, TEXT_LAYERS)]
        self.words = transformers.models.bert.modeling_bert.BertLMPredictionHead(self._config())
        self.words.load_state_dict(part(state, HEAD))

    def _config(self, **more: Any) -> Any:
        vocabulary = len(self.state[f"{HEAD}bias"])
        return transformers.BertConfig(
            vocab_size=vocabulary, hidden_size=TEXT, num_hidden_layers=FUSION,
            num_attention_heads=TEXT // 64, intermediate_size=TEXT_MLP, hidden_dropout_prob=0,
            attention_probs_dropout_prob=0, max_position_embeddings=PLACES,
            attn_implementation="eager", **more,
        )  # fmt: skip

    def _reader(self) -> Any:
        reader = transformers.BertModel(self._config(), add_pooling_layer=False).eval()
        later = tuple(f"encoder.layer.{n}." for n in range(FUSION, TEXT_LAYERS))
        kept = {k: v for k, v in part(self.state, BERT).items() if not k.startswith(later)}
        del kept["embeddings.position_ids"]
        reader.load_state_dict(kept)
        return reader

    def _layer(self, config: Any, n: int) -> Any:
        layer = transformers.models.bert.modeling_bert.BertLayer(config, layer_idx=n).eval()
        for name in ("key", "value"):  # the picture's states are wider than the words'
            setattr(layer.crossattention.self, name, torch.nn.Linear(IMAGE, TEXT))
        layer.load_state_dict(part(self.state, f"{BERT}encoder.layer.{n}."))
        return layer

    def _eye(self) -> Any:
        config = transformers.ViTConfig(
            hidden_size=IMAGE, num_hidden_layers=IMAGE_LAYERS, num_attention_heads=IMAGE // 64,
            intermediate_size=IMAGE_MLP, image_size=PATCH * SIDE, patch_size=PATCH,
            layer_norm_eps=1e-6, hidden_act="gelu", qkv_bias=True,
        )  # fmt: skip
        renamed: dict[str, Any] = {}
        for name, value in part(self.state, "visual_encoder.").items():
            for old, new in (
                ("cls_token", "embeddings.cls_token"),
                ("pos_embed", "embeddings.position_embeddings"),
                ("patch_embed.proj", "embeddings.patch_embeddings.projection"),
                ("blocks.", "layers."), ("norm1", "layernorm_before"),
                ("norm2", "layernorm_after"), ("attn.proj", "attention.o_proj"),
            ):  # fmt: skip
                name = name.replace(old, new)
            if name.startswith("norm."):
                name = f"layer{name}"
            if "attn.qkv" in name:
                for letter, third in zip("qkv", value.chunk(3), strict=True):
                    renamed[name.replace("attn.qkv", f"attention.{letter}_proj")] = third
            else:
                renamed[name] = value
        tower = transformers.ViTModel(config, add_pooling_layer=False).eval()
        tower.load_state_dict(renamed)
        return tower

    def linear(self, name: str, x: Any) -> Any:
        return torch.nn.functional.linear(
            x, self.state[f"{name}.weight"], self.state[f"{name}.bias"]
        )

    def both(self, pixels: Any, ids: Any, real: Any) -> Any:
        x = self.read(input_ids=ids, attention_mask=real).last_hidden_state
        hidden = (1 - real[:, None, None].float()) * torch.finfo(torch.float32).min
        picture = self.see(pixel_values=pixels).last_hidden_state
        for layer in self.layers:
            x = layer(x, attention_mask=hidden, encoder_hidden_states=picture)
            x = x[0] if isinstance(x, tuple) else x
        return x


def by_hand(place: Path, texts: list[str]) -> tuple[Any, Any]:
    """[CLS], then the pieces of a text without capitals and full stops, and no [SEP]."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    rows = [
        [tokenizer.cls_token_id,
         *tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text.replace(".", "")))]
        for text in texts
    ]  # fmt: skip
    longest = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows])
    real = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return ids, real


def prepared(pictures: list[Any]) -> Any:
    """Pictures resized to a square, and normalised with CLIP's constants."""
    processor = transformers.CLIPImageProcessorPil(
        size={"height": PATCH * SIDE, "width": PATCH * SIDE}, do_center_crop=False
    )
    return processor(pictures, return_tensors="pt")["pixel_values"]


def test_the_numbers_are_those_of_independent_classes(place: Path, model: Any) -> None:
    state = torch.load(place / "ALBEF.pth", weights_only=True)["model"]
    reference, pictures = Reference(state), tiny.pictures()
    assert all(isinstance(model, kind) for kind in (DualEncoder, Matcher, MaskedPredictor))
    ids, real = by_hand(place, TEXTS)
    pixels = prepared(pictures)
    with torch.no_grad():
        unit = torch.nn.functional.normalize
        images = reference.see(pixel_values=pixels).last_hidden_state
        image_vectors = unit(reference.linear("vision_proj", images[:, 0]), dim=-1)
        texts = reference.read(input_ids=ids, attention_mask=real).last_hidden_state
        text_vectors = unit(reference.linear("text_proj", texts[:, 0]), dim=-1)
        two = reference.linear("itm_head", reference.both(pixels, ids, real)[:, 0])
        masked, masked_real = by_hand(place, MASKED)
        found = reference.words(reference.both(pixels, masked, masked_real))
    logprobs = found[masked == model.mask_id].log_softmax(dim=-1)
    differences = [
        np.abs(ours - theirs.numpy()).max()
        for ours, theirs in (
            (model.encode_images(pictures), image_vectors),
            (model.encode_texts(TEXTS), text_vectors),
            (model.match(pictures, TEXTS), two[:, 1] - two[:, 0]),
            (model.mask_logprobs(pictures, MASKED)[:, 0], logprobs),
        )
    ]
    assert max(differences) < 1e-5, differences
    for theirs in (image_vectors, text_vectors, two, logprobs):  # not all the same
        assert np.ptp(theirs.numpy(), axis=0).max() > 0.01
    assert model.logit_scale == pytest.approx(1 / 0.05)


def test_the_sizes_are_those_of_the_paper() -> None:
    """A ViT-B/16 of 85.8 million weights and a BERT of 123.7 million (Li and others, 2021)."""
    sizes = Sizes(
        patch=16, side=16, image_width=768, image_mlp=3072, image_layers=12, text_width=768,
        text_mlp=3072, text_layers=12, fusion=6, vocabulary=30522, places=512, types=2, joint=256,
        words=True,
    )  # fmt: skip
    with torch.device("meta"):
        network = AlbefNetwork(sizes)
    eye, bert = (
        sum(weights.numel() for weights in part.parameters())
        for part in (network.visual_encoder, network.text_encoder)
    )
    tied = 30522 * 768  # counted once: the words that are read are those that are guessed
    assert round(eye / 1e6, 1) == 85.8
    assert round((bert - tied) / 1e6, 1) == 123.7


def test_tcl_is_the_same_network(place: Path, model: Any) -> None:
    other = load(place, scheme="tcl")
    assert (other.name, model.name) == ("tcl:ALBEF", "albef:ALBEF")
    assert np.array_equal(other.encode_texts(TEXTS), model.encode_texts(TEXTS))


def test_pixels_give_what_pictures_give_and_take_gradients(model: Any) -> None:
    pictures = tiny.pictures()
    pixels = model.pixels(pictures).requires_grad_()
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    for ask in (
        lambda images: model.encode_images(images),
        lambda images: model.match(images, TEXTS),
        lambda images: model.mask_logprobs(images, MASKED),
    ):
        found = ask(pixels)
        assert np.abs(found.detach().numpy() - ask(pictures)).max() < 1e-5
        pixels.grad = None
        found.square().sum().backward()
        assert pixels.grad.abs().sum() > 0


def test_padding_changes_nothing(model: Any) -> None:
    pictures = tiny.pictures()
    together = model.match(pictures, TEXTS)
    alone = [model.match(pictures[n : n + 1], TEXTS[n : n + 1])[0] for n in range(len(TEXTS))]
    assert np.abs(together - np.array(alone)).max() < 1e-5
    check_grid(model, pictures, TEXTS)


def test_a_checkpoint_tuned_for_retrieval_has_no_words(place: Path) -> None:
    model = load(place, "flickr30k.pth")
    assert isinstance(model, DualEncoder)
    assert isinstance(model, Matcher)
    assert not isinstance(model, MaskedPredictor)
    assert model.match(tiny.pictures(), TEXTS).shape == (3,)


def test_another_image_size_interpolates_the_places(place: Path, model: Any) -> None:
    large = load(place, more="&image_size=48")
    assert large.pixels(tiny.pictures()).shape == (3, 3, 48, 48)
    assert large.encode_images(tiny.pictures()).shape == (3, JOINT)
    before, after = (m.network.visual_encoder.pos_embed[0] for m in (model, large))
    assert torch.equal(before[0], after[0])
    grid = before[1:].T.reshape(1, IMAGE, SIDE, SIDE)
    theirs = torch.nn.functional.interpolate(grid, size=(6, 6), mode="bicubic")
    assert torch.allclose(after[1:].T.reshape(1, IMAGE, 6, 6), theirs, atol=1e-6)
    same = load(place, more="&image_size=32")
    ours, theirs = (m.encode_images(tiny.pictures()) for m in (same, model))
    assert np.abs(ours - theirs).max() < 1e-6
    with pytest.raises(InputError, match="multiple of 8"):
        load(place, more="&image_size=50")


def test_words_without_an_image_attend_to_nothing(model: Any) -> None:
    """As a network whose attention to the image carries no value, whatever the image."""
    mute = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in mute.network.named_parameters():
            if "crossattention.self.value" in name:
                weight.zero_()
    alone = model.mask_logprobs(None, MASKED)
    shown = mute.mask_logprobs(tiny.pictures(len(MASKED)), MASKED)
    assert np.abs(alone - shown).max() < 1e-5
    assert np.abs(alone - model.mask_logprobs(tiny.pictures(len(MASKED)), MASKED)).max() > 1e-3


def test_a_mask_that_is_cut_off_is_said(model: Any) -> None:
    with pytest.raises(InputError, match="a \\[MASK\\] is cut off"):
        model.mask_logprobs(tiny.pictures(1), ["a red dog " * 12 + "[MASK]"])


def test_captions_are_written_as_in_training(model: Any) -> None:
    assert caption('Two "smart" dogs -- and a Man/Woman!', "[MASK]") == (
        "two smart dogs and a man woman"
    )
    assert caption("The [MASK], <person>", "[MASK]") == "the [MASK] person"
    assert len(caption("dog " * 50, "[MASK]").split()) == 30
    ids = model.tokens(["The Doctor."])["input_ids"][0].tolist()
    assert model.tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "the", "doctor"]
    assert model.tokenizer.convert_ids_to_tokens(model.pieces("Nurse")) == ["nurse"]


def test_safetensors_hold_a_shared_tensor_once(place: Path, tmp_path: Path, model: Any) -> None:
    from safetensors.torch import save_file

    state = torch.load(place / "ALBEF.pth", weights_only=True)["model"]
    once = {k: v for k, v in state.items() if not k.endswith(("decoder.weight", "decoder.bias"))}
    save_file(once, tmp_path / "albef.safetensors")
    other = tm.load_model(f"albef:{tmp_path / 'albef.safetensors'}?tokenizer={place}")
    first, second = (m.mask_logprobs(tiny.pictures(), MASKED) for m in (model, other))
    assert np.array_equal(first, second)
    assert model.provenance["weights"] == other.provenance["weights"]


def changed(place: Path, to: Path, change: Any) -> str:
    state = torch.load(place / "ALBEF.pth", weights_only=True)["model"]
    change(state)
    torch.save({"model": state}, to / "changed.pth")
    return f"albef:{to / 'changed.pth'}?tokenizer={place}"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda s: s.pop("itm_head.bias"), "has no weights of these names: itm_head.bias"),
        (lambda s: s.pop(f"{BERT}encoder.layer.3.crossattention.self.key.weight"),
         "layer.3.crossattention.self.key.weight"),
        (lambda s: s.pop("visual_encoder.pos_embed"), "visual_encoder.pos_embed"),
        (lambda s: s.pop(f"{HEAD}bias"), "cls.predictions.bias"),
        (lambda s: s.update(other=torch.ones(1)), "has unknown weights of these names: other"),
        (lambda s: s.update({"visual_encoder_n.norm.bias": torch.ones(1)}), "visual_encoder_n"),
        (lambda s: s.update({"itm_head.bias": torch.ones(3)}), "size mismatch"),
        (lambda s: s.clear(), "contains no weights"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit(place: Path, tmp_path: Path, change: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        tm.load_model(changed(place, tmp_path, change))


class Trap:
    """A pickle that would write a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_code_in_a_file_is_not_run(place: Path, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists()  # the trap works
    sprung.unlink()
    state = torch.load(place / "ALBEF.pth", weights_only=True)["model"]
    torch.save({"model": state, "config": Trap(sprung)}, tmp_path / "new.pth")
    torch.save({"model": Trap(sprung)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"model": Trap(sprung)}, protocol=2))
    for name in ("new.pth", "old.pth", "plain.pkl"):
        with pytest.raises(InputError, match="cannot be read as weights"):
            tm.load_model(f"albef:{tmp_path / name}?tokenizer={place}")
        assert not sprung.exists()


def test_files_that_are_none(place: Path, tmp_path: Path) -> None:
    for name in ("broken.pth", "broken.safetensors"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(InputError, match="cannot be read as weights"):
            tm.load_model(f"albef:{tmp_path / name}")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(InputError, match="no weights by name"):
        tm.load_model(f"tcl:{tmp_path / 'list.pth'}")
    with pytest.raises(InputError, match="is not a file"):
        tm.load_model(f"albef:{tmp_path}/nothing.pth")
    with pytest.raises(UnknownNameError, match="tokeniser"):
        tm.load_model(f"albef:{place / 'ALBEF.pth'}?tokeniser=x")


def test_a_tokenizer_of_another_model(place: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="tokenizer=DIR"):
        tm.load_model(f"albef:{place / 'ALBEF.pth'}?tokenizer={tmp_path}/nothing")
    tiny.clip_tokenizer(tmp_path)
    with pytest.raises(InputError, match="pieces, the weights"):
        tm.load_model(f"albef:{place / 'ALBEF.pth'}?tokenizer={tmp_path}")
