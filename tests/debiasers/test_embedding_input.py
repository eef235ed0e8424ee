"""Models of a user's own that take input embeddings: learned tokens among their words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiltmeter as tm  # noqa: E402
from tests.debiasers.making import planted  # noqa: E402
from tiltmeter.datasets.roles import Captions  # noqa: E402
from tiltmeter.debiasers.debiased import Debiased  # noqa: E402
from tiltmeter.debiasers.prompt_array import PromptArray  # noqa: E402
from tiltmeter.debiasers.text_tower import tower_of  # noqa: E402
from tiltmeter.errors import InputError  # noqa: E402
from tiltmeter.store import Store  # noqa: E402
from tiltmeter.types import TakesInputEmbeddings  # noqa: E402

torch.set_num_threads(1)
HERE = Path(__file__).parent
SPEC = f"python:{HERE / 'bert_tower.py'}:BertTower"
TEXTS = ["a photo of a good person", "this individual is kind", "a lawful individual"]
COURSE = {"epochs": 6, "warmup": 10, "block": 2, "batch": 64, "learning_rate": 1e-1,
          "adversary_rate": 1e-2, "words": TEXTS}  # fmt: skip


@pytest.fixture(scope="module")
def bert():
    return tm.load_model(SPEC)


@pytest.fixture(scope="module")
def captions():
    rng = np.random.default_rng(0)
    images = rng.normal(size=(40, 12)).astype(np.float32)
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    texts = tuple(f"a {'good ' * (at % 3)}photo of a person" for at in range(40))
    return Captions(tuple(map(str, range(40))), texts, np.arange(40), images)


def test_it_has_the_protocol(bert) -> None:
    assert isinstance(bert, TakesInputEmbeddings)
    assert not isinstance(tm.load_model("testbed:dual"), TakesInputEmbeddings)


@pytest.mark.parametrize("place", ["after_sos", "appended", "append_after_eos", "add"])
def test_tokens_stand_where_they_should(place: str, bert) -> None:
    """Each text alone, its row of embeddings put together by hand."""
    table = bert.word_embeddings().weight.detach()
    tokens = 0.5 * np.random.default_rng(1).normal(size=(2, 16)).astype(np.float32)
    method = PromptArray(place=place, variant="adversarial", epochs=0).fit(bert)
    method.tokens_ = tokens
    found = method.apply(bert).encode_texts(TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        words = table[bert.tokenizer(text)["input_ids"]]
        learned = torch.as_tensor(tokens)
        at = {"after_sos": 1, "appended": len(words) - 1}.get(place, len(words))
        row = torch.cat([words[:at], learned, words[at:]])
        if place == "add":
            row = words.clone()
            row[1:3] += learned
        with torch.no_grad():
            wanted = bert.encode_embeddings(row[None], torch.ones(1, len(row)))[0]
        assert np.abs(vector - wanted.numpy()).max() < 1e-5
    assert np.abs(found - bert.encode_texts(TEXTS)).max() > 0.01


def test_a_planted_label_is_hidden_and_the_model_left_alone(bert, captions, tmp_path) -> None:
    x, groups = planted(512, 12, groups=2, lean=0.7)
    before = bert.identity
    method = PromptArray(**COURSE, stop=0.0).fit(bert, captions, vectors=x, groups=groups)
    assert bert.identity == before
    assert all(weight.requires_grad for weight in bert.text.parameters())
    by_epoch = {line["epoch"]: line for line in method.log_}
    assert by_epoch[-1]["adversary's accuracy"] > 0.9
    assert by_epoch[5]["adversary's loss"] > 1.5 * by_epoch[-1]["adversary's loss"]
    place = Debiased(bert, method, spec=SPEC).save(tmp_path / "fair")
    again = tm.load_model(str(place), device="cpu")  # as an audit does
    made = method.apply(bert)
    assert np.array_equal(again.encode_texts(TEXTS), made.encode_texts(TEXTS))
    assert again.identity["weights"] == made.identity["weights"] != before["weights"]


def test_images_are_stored_once_for_the_model_and_its_debiased_twin(bert, tmp_path) -> None:
    """Learned tokens change no image: its embeddings are those of the model, found by content."""
    method = PromptArray(variant="adversarial", epochs=0).fit(bert)
    place = Debiased(bert, method, spec=SPEC).save(tmp_path / "fair")
    spaces = {
        Store(tmp_path / "store").space(one).path for one in (bert, tm.load_model(str(place)))
    }
    assert len(spaces) == 1
    other = tm.load_model(f"{SPEC}?seed=1")
    assert Store(tmp_path / "store").space(other).path not in spaces


def test_embeddings_given_with_captions_are_used(bert, captions) -> None:
    x, groups = planted(64, 12, groups=2)
    short = {**COURSE, "epochs": 1, "warmup": 1}
    wanted = PromptArray(**short).fit(bert, captions, vectors=x, groups=groups)
    given = Captions(captions.ids, captions.texts, captions.of, "never read",
                     vectors=captions.images)  # fmt: skip
    found = PromptArray(**short).fit(bert, given, vectors=x, groups=groups)
    assert np.array_equal(found.tokens_, wanted.tokens_)


def test_what_it_refuses(bert) -> None:
    with pytest.raises(InputError, match="use after_sos"):
        tower_of(bert, "before_sos", 2)
    with pytest.raises(InputError, match="only tokens can be tuned"):
        PromptArray(tune="text", variant="adversarial").fit(bert)
    bare = tm.load_model(f"python:{HERE / 'bert_tower.py'}:Bare")
    with pytest.raises(InputError, match="word_embeddings and encode_embeddings"):
        PromptArray(variant="adversarial").fit(bare)
