"""Models of transformers that see and read at once: what we give is what the library gives."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tiltmeter as tm  # noqa: E402
from tests.models import tiny, tiny_fused  # noqa: E402
from tiltmeter.errors import InputError, UnknownNameError  # noqa: E402
from tiltmeter.io.region_files import read_regions  # noqa: E402
from tiltmeter.io.regions import Regions  # noqa: E402
from tiltmeter.models.hf.regions import detect  # noqa: E402
from tiltmeter.types import DualEncoder, MaskedPredictor, Matcher  # noqa: E402

CAPTIONS = ["a photo of a nurse", "the doctor", "a red ball is in the picture"]
#: `_` is a mask; the texts are of different lengths, so that some are padded.
MASKS = {
    1: ["the nurse is _", "a _ is in the picture", "a photo of the _ in a red ball"],
    2: ["the _ is _", "a _ is in the _", "_ photo of the _ in a red ball"],
}
NEAR = 1e-5


def photographs() -> Any:
    """Of three shapes, which ViLT pads to one."""
    upright, square, lying = tiny.pictures()
    return [upright, square.resize((52, 90)), lying.resize((90, 52))]


def regions() -> Regions:
    return Regions(*tiny_fused.regions())


@dataclass
class Case:
    """A class of checkpoints, what it is shown, and what the library calls its answers."""

    build: Callable[[Path], tiny_fused.Built]
    images: Callable[[], Any] | None = photographs
    words: str = ""  # log-odds of pieces beside images
    alone: str = ""  # and without
    match: Callable[[Any], Any] | None = None  # the logit of a match, less that of none


CASES = {
    "vilt-words": Case(tiny_fused.vilt, words="logits", alone="logits"),
    "vilt-match": Case(
        lambda at: tiny_fused.vilt(at, "ViltForImageAndTextRetrieval"),
        match=lambda out: out.logits[:, 0],
    ),
    "flava": Case(
        tiny_fused.flava,
        words="mmm_text_logits",
        alone="mlm_logits",
        match=lambda out: out.itm_logits[:, 1] - out.itm_logits[:, 0],
    ),
    "bridgetower-words": Case(tiny_fused.bridgetower, words="logits"),
    "bridgetower-match": Case(
        lambda at: tiny_fused.bridgetower(at, "BridgeTowerForImageAndTextRetrieval"),
        match=lambda out: out.logits[:, 1] - out.logits[:, 0],
    ),
    "visual_bert": Case(
        tiny_fused.visual_bert,
        regions,
        words="prediction_logits",
        alone="prediction_logits",
        match=lambda out: out.seq_relationship_logits[:, 1] - out.seq_relationship_logits[:, 0],
    ),
    "lxmert": Case(
        tiny_fused.lxmert,
        regions,
        words="prediction_logits",
        match=lambda out: out.cross_relationship_score[:, 1] - out.cross_relationship_score[:, 0],
    ),
    "bert": Case(tiny_fused.bert, None, alone="logits"),
    "bert-pretraining": Case(
        lambda at: tiny_fused.bert(at, "BertForPreTraining"), None, alone="prediction_logits"
    ),
    "roberta": Case(tiny_fused.roberta, None, alone="logits"),
}
MATCHERS = [name for name, case in CASES.items() if case.match]
PREDICTORS = [name for name, case in CASES.items() if case.words or case.alone]
SEEING = [name for name in PREDICTORS if CASES[name].words]
DUAL = {
    "flava": tiny_fused.flava,
    "flava-towers": lambda at: tiny_fused.flava(at, "FlavaModel"),
    "bridgetower": lambda at: tiny_fused.bridgetower(at, "BridgeTowerForContrastiveLearning"),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    """So small models only wait for each other's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def record() -> Any:
    """Passes a difference through; `pytest -s` tells the largest of each kind at the end."""
    largest: dict[str, float] = {}

    def keep(what: str, size: float) -> float:
        largest[what] = max(largest.get(what, 0.0), float(size))
        return float(size)

    yield keep
    print("".join(f"\n{what}: {size:.1e}" for what, size in largest.items()))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Case, Any, Any]]:
    """A case, what the library has, and what we have; built once."""
    held: dict[str, Any] = {}

    def make(name: str) -> tuple[Case, Any, Any]:
        if name not in held:
            directory = tmp_path_factory.mktemp(name)
            built = CASES[name].build(directory)
            held[name] = CASES[name], built, tm.load_model(f"hf:{directory}")
        return held[name]

    return make


def call(built: tiny_fused.Built, texts: list[str], images: Any) -> tuple[Any, Any]:
    """The library's own inputs, and its own answer to them."""
    inputs = built.inputs(texts, images)
    kind = type(built.library).__name__
    quiet = {"return_loss": False} if kind == "FlavaForPreTraining" else {}
    with torch.no_grad():
        return inputs, built.library(**inputs, **quiet)


def difference(ours: Any, theirs: Any) -> float:
    """The largest; the answers must differ from row to row, or equal ones would say nothing."""
    theirs = theirs.detach().numpy()
    assert ours.shape == theirs.shape
    assert np.ptp(theirs, axis=0).max() > 1e-2
    return float(np.abs(ours - theirs).max())


def masked(model: Any, count: int) -> list[str]:
    return [text.replace("_", model.mask_token) for text in MASKS[count]]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize("name", PREDICTORS)
def test_hidden_words(name: str, shown: bool, count: int, made: Any, record: Any) -> None:
    case, built, model = made(name)
    assert isinstance(model, MaskedPredictor)
    key = case.words if shown else case.alone
    images, texts = case.images() if case.images and shown else None, masked(model, count)
    if not key:  # cannot see, or cannot do without
        images = tiny.pictures() if shown else None
        with pytest.raises(InputError, match="only reads|cannot read without"):
            model.mask_logprobs(images, texts)
        return
    ours = model.mask_logprobs(images, texts)
    assert ours.shape == (3, count, len(model.tokenizer))
    assert np.abs(np.exp(ours.astype(np.float64)).sum(axis=-1) - 1).max() < NEAR
    inputs, answer = call(built, texts, images)
    hidden = inputs["input_ids"] == model.tokenizer.mask_token_id
    found = answer[key][:, : hidden.shape[1]][hidden].log_softmax(dim=-1)
    found = found.reshape(3, count, -1)
    assert record(f"{name}, words, {'shown' if shown else 'alone'}", difference(ours, found)) < NEAR


@pytest.mark.parametrize("name", MATCHERS)
def test_matching(name: str, made: Any, record: Any) -> None:
    case, built, model = made(name)
    assert isinstance(model, Matcher)
    images = case.images()
    theirs = case.match(call(built, CAPTIONS, images)[1])
    assert record(f"{name}, match", difference(model.match(images, CAPTIONS), theirs)) < NEAR
    with pytest.raises(InputError, match="3 images, but 2 texts"):
        model.match(images, CAPTIONS[:2])


@pytest.mark.parametrize("name", DUAL)
def test_two_towers(name: str, tmp_path: Path, record: Any) -> None:
    built, images = DUAL[name](tmp_path), photographs()
    model = tm.load_model(f"hf:{tmp_path}")
    assert isinstance(model, DualEncoder)
    assert isinstance(model, Matcher) == (name == "flava")
    answer = call(built, CAPTIONS, images)[1]
    pictures, texts = model.encode_images(images), model.encode_texts(CAPTIONS)
    if name == "bridgetower":
        theirs = (answer.image_embeds, answer.text_embeds)
        scale = built.library.logit_scale
    else:
        towers = built.library if name == "flava-towers" else built.library.flava
        scale = towers.logit_scale
        normal = torch.nn.functional.normalize
        theirs = (
            normal(towers.image_projection(answer.image_embeddings[:, 0]), dim=-1),
            normal(towers.text_projection(answer.text_embeddings[:, 0]), dim=-1),
        )
    if name == "flava":  # the library gives no vectors, but all their products
        products = model.logit_scale * pictures @ texts.T
        assert difference(products, answer.contrastive_logits_per_image) < NEAR
    assert record(f"{name}, images", difference(pictures, theirs[0])) < NEAR
    assert record(f"{name}, texts", difference(texts, theirs[1])) < NEAR
    assert model.logit_scale == pytest.approx(scale.exp().item())
    # a vector of one side does not depend on what stood on the other
    other = call(built, CAPTIONS[::-1], images)[1]
    if name == "bridgetower":
        assert torch.equal(other.image_embeds, answer.image_embeds)
        assert not torch.allclose(other.cross_embeds, answer.cross_embeds, atol=1e-3)
    pixels = model.pixels(images).requires_grad_()
    model.encode_images(pixels)[:, 0].sum().backward()
    assert pixels.grad.abs().sum() > 0


@pytest.mark.parametrize("name", PREDICTORS)
def test_the_same_in_small_blocks(
    name: str, made: Any, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    case, _, model = made(name)
    images, texts = case.images() if case.images else None, masked(model, 2)
    whole = model.mask_logprobs(images, texts)
    monkeypatch.setattr(model, "block", 2)
    assert (
        record(f"{name}, blocks", np.abs(model.mask_logprobs(images, texts) - whole).max()) < NEAR
    )
    if case.match:
        blocks = model.match(images, CAPTIONS)
        monkeypatch.undo()
        assert np.abs(model.match(images, CAPTIONS) - blocks).max() < NEAR


@pytest.mark.parametrize("name", PREDICTORS)
def test_masks_must_be_alike_and_within_reach(name: str, made: Any) -> None:
    case, _, model = made(name)
    images, one, two = case.images() if case.images else None, masked(model, 1), masked(model, 2)
    with pytest.raises(InputError, match="equally often; got texts with 1, 2"):
        model.mask_logprobs(images, [one[0], two[1], one[2]])
    with pytest.raises(InputError, match="every text must contain"):
        model.mask_logprobs(images, CAPTIONS)
    long = ["red " * 40 + text for text in one]
    with pytest.raises(InputError, match="too long"):
        model.mask_logprobs(images, long)


@pytest.mark.parametrize("name", [*SEEING, *(name for name in MATCHERS if name not in SEEING)])
def test_gradients_reach_what_is_seen(name: str, made: Any) -> None:
    case, _, model = made(name)
    images = case.images()
    if isinstance(images, Regions):
        leaf = torch.tensor(images.features, requires_grad=True)
        shown: Any = Regions(leaf, images.boxes)
    else:
        leaf = shown = model.pixels(images).requires_grad_()
        assert leaf.min() >= 0
        assert leaf.max() <= 1
    tasks = [(model.mask_logprobs, masked(model, 2))] if case.words else []
    tasks += [(model.match, CAPTIONS)] if case.match else []
    for ask, texts in tasks:
        leaf.grad = None
        found = ask(shown, texts)
        assert np.abs(found.detach().numpy() - ask(images, texts)).max() < NEAR
        found.flatten(1)[:, 0].sum().backward() if found.ndim > 1 else found.sum().backward()
        assert (leaf.grad.flatten(1).abs().sum(dim=1) > 0).all()


@pytest.mark.parametrize("name", PREDICTORS)
def test_pieces_are_those_within_a_sentence(name: str, made: Any) -> None:
    _, built, model = made(name)
    for word in ("nurse", "smart", "animated"):  # the last is no word of any vocabulary
        sentence = model.tokens([f"the {word} in"])["input_ids"][0].tolist()
        pieces = list(model.pieces(word))
        places = range(len(sentence) - len(pieces) + 1)
        assert any(sentence[at : at + len(pieces)] == pieces for at in places)
        # masks in the place of the word take up the same places
        hidden = model.tokens([f"the {' '.join([model.mask_token] * len(pieces))} in"])["input_ids"]
        assert hidden.shape[1] == len(sentence)
    if "roberta" not in type(built.library).__name__.lower() and "bridge" not in name:
        with pytest.raises(InputError, match="has no pieces"):
            model.pieces("żółw")


def test_vilt_pads_with_a_mask_that_nothing_moves(made: Any) -> None:
    _, _, model = made("vilt-words")
    images, texts = photographs(), masked(model, 1)
    pixels = model.pixels(images)
    assert pixels.shape[:2] == (3, 4)
    assert {tuple(model.pixels([image]).shape[:2]) for image in images} == {(1, 3)}
    assert model.pixels([images[0]] * 2).shape[1] == 3
    each = [
        model.mask_logprobs(model.pixels([image]), [text])[0]
        for image, text in zip(images, texts, strict=True)
    ]
    whole = model.mask_logprobs(pixels, texts)
    assert (torch.stack(each) - whole).abs().max() < NEAR
    # what is painted onto padding, or into the mask by less than a half, changes nothing
    padding = pixels[:, 3:] == 0
    assert padding.any()
    painted = torch.cat([pixels[:, :3] + padding * 0.7, pixels[:, 3:] + 0.03 - 0.06 * padding], 1)
    assert (model.mask_logprobs(painted, texts) - whole).abs().max() < NEAR
    # its patches are shuffled, but always in the same way, and with dice of its own
    torch.manual_seed(20)
    state = torch.get_rng_state()
    assert torch.equal(model.mask_logprobs(pixels, texts), whole)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_tokenizer_without_its_file_still_takes_the_space(tmp_path: Path) -> None:
    tiny_fused.roberta(tmp_path)
    whole = tm.load_model(f"hf:{tmp_path}")
    (tmp_path / "tokenizer.json").unlink()  # vocab.json and merges.txt are left, as of old
    model = tm.load_model(f"hf:{tmp_path}")
    texts = masked(whole, 2)
    assert torch.equal(model.tokens(texts)["input_ids"], whole.tokens(texts)["input_ids"])
    assert np.abs(model.mask_logprobs(None, texts) - whole.mask_logprobs(None, texts)).max() < NEAR


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda at: tiny_fused.vilt(at, "ViltModel"), "ViltModel.*ViltForMaskedLM"),
        (lambda at: tiny_fused.bert(at, "BertModel"), "BertModel.*BertForMaskedLM"),
        (lambda at: tiny_fused.bridgetower(at, "BridgeTowerModel"), "BridgeTowerForMaskedLM"),
    ],
)
def test_a_class_that_does_not_fit(build: Any, expected: str, tmp_path: Path) -> None:
    build(tmp_path)
    with pytest.raises(InputError, match=expected):
        tm.load_model(f"hf:{tmp_path}")


def test_a_class_that_is_not_what_was_saved(tmp_path: Path) -> None:
    tiny_fused.vilt(tmp_path, "ViltModel")
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "architectures": ["ViltForMaskedLM"]})
    )
    with pytest.raises(InputError, match="has no weights for"):
        tm.load_model(f"hf:{tmp_path}")


def test_regions_are_read(tmp_path: Path) -> None:
    features, boxes = tiny_fused.regions()
    ids = ("one", "two", "three")
    np.save(tmp_path / "seen.npy", features)
    np.savez(tmp_path / "seen.npz", features=features, boxes=boxes, ids=ids)
    table = {"id": ids, "features": features.tolist(), "boxes": boxes.tolist()}
    pq.write_table(pa.table(table), tmp_path / "seen.parquet")
    plain, packed, rows = (
        read_regions(tmp_path / f"seen.{end}") for end in ("npy", "npz", "parquet")
    )
    for read in (plain, packed, rows):
        assert np.allclose(read.features, features)
    assert plain.boxes is None
    assert plain.ids == ("0", "1", "2")
    assert packed.ids == rows.ids == ids
    assert np.allclose(rows.boxes, boxes)
    assert [one.ids for one in packed] == [("one",), ("two",), ("three",)]
    assert packed[1:].ids == ("two", "three")
    assert packed.select([2, 0]).ids == packed.of(["three", "one"]).ids == ("three", "one")
    assert np.allclose(packed.select([2, 0]).boxes, boxes[[2, 0]])
    joined = Regions.joined([packed[2], packed[0]])
    assert np.allclose(joined.features, features[[2, 0]])
    assert np.allclose(joined.boxes, boxes[[2, 0]])
    with pytest.raises(UnknownNameError, match="did you mean 'three'"):
        packed.of(["thre"])
    np.savez(tmp_path / "other.npz", boxes=boxes)
    with pytest.raises(InputError, match="boxes; expected features"):
        read_regions(tmp_path / "other.npz")
    ragged = {"id": ids, "features": [features[0].tolist(), *features[1:, :2].tolist()]}
    pq.write_table(pa.table(ragged), tmp_path / "ragged.parquet")
    with pytest.raises(InputError, match="the same number of regions"):
        read_regions(tmp_path / "ragged.parquet")
    with pytest.raises(InputError, match="no such file"):
        read_regions(tmp_path / "none.npz")
    with pytest.raises(InputError, match="expected .tsv, .npz, .npy, .parquet"):
        read_regions(Path(__file__))


def test_regions_that_do_not_fit(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    features, boxes = tiny_fused.regions()
    with pytest.raises(InputError, match="n x regions x d; got 3 x 12"):
        Regions(features[:, 0])
    with pytest.raises(InputError, match="boxes of these regions are 3 x 5 x 4; got 3 x 5 x 2"):
        Regions(features, boxes[..., :2])
    with pytest.raises(InputError, match="shares of the image, from 0 to 1"):
        Regions(features, boxes * 640)
    with pytest.raises(InputError, match="3 images with regions, but 2 ids"):
        Regions(features, ids=("a", "b"))
    lxmert, visual_bert = made("lxmert")[2], made("visual_bert")[2]
    with pytest.raises(InputError, match="needs the boxes"):
        lxmert.match(Regions(features), CAPTIONS)
    with pytest.raises(InputError, match="takes regions of 12 dimensions; these have 7"):
        visual_bert.match(Regions(features[..., :7]), CAPTIONS)
    with pytest.raises(InputError, match="expected Regions, got Image"):
        visual_bert.match(tiny.pictures(), CAPTIONS)
    with pytest.raises(InputError, match="3 images, but 2 texts"):
        visual_bert.match(Regions(torch.tensor(features)), CAPTIONS[:2])
    # weights may have been trained with the two logits the other way round
    whole = visual_bert.match(Regions(features), CAPTIONS)
    monkeypatch.setattr(visual_bert, "matched", 0)
    assert np.abs(visual_bert.match(Regions(features), CAPTIONS) + whole).max() < NEAR
    monkeypatch.undo()
    # a list of single ones, and a bare tensor of features, are taken too
    assert np.abs(visual_bert.match(list(Regions(features)), CAPTIONS) - whole).max() < NEAR
    bare = visual_bert.match(torch.tensor(features), CAPTIONS)
    assert np.abs(bare.numpy(force=True) - whole).max() < NEAR


def test_regions_are_detected() -> None:
    if importlib.util.find_spec("torchvision") is None:
        with pytest.raises(InputError, match="torchvision must be installed"):
            detect(tiny.pictures())
        return
    from torchvision.models.detection import fasterrcnn_resnet50_fpn

    torch.manual_seed(0)
    network = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, min_size=64)
    found = detect(tiny.pictures(2), count=4, network=network)
    assert found.features.shape == (2, 4, 1024)
    assert found.boxes.shape == (2, 4, 4)
