"""Generative models of transformers: likelihoods are those of the library's own decoding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.open_clip_library import add_torchvision

torch = pytest.importorskip("torch")
HAS_TORCHVISION = add_torchvision()  # transformers looks for it once, when it is imported
transformers = pytest.importorskip("transformers")

import tiltmeter as tm  # noqa: E402
from tests.models import tiny, tiny_generative  # noqa: E402
from tiltmeter.errors import InputError  # noqa: E402
from tiltmeter.types import Continuer, Writer  # noqa: E402

PROMPT = "who is this ?"
TEXTS = ["nurse", "a doctor", "the red ball is smart", "dog in the picture"]  # 1, 2, 5, 4 tokens
NEAR = 1e-4
with_torchvision = pytest.mark.skipif(
    not HAS_TORCHVISION, reason="its processor needs torchvision: make test-open-clip"
)


class Forced(transformers.LogitsProcessor):  # type: ignore[misc, name-defined]
    """Makes `generate` write given tokens; the raw logits stay as they are."""

    def __init__(self, ids: list[int], start: int) -> None:
        self.ids, self.start = ids, start

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        forced = torch.full_like(scores, -1e9)
        forced[:, self.ids[input_ids.shape[1] - self.start]] = 0
        return forced


def decoded(model: Any, image: Any, text: str) -> float:
    """The log-likelihood, read off token by token while the library decodes.

    No later token exists when a token is scored, so this cannot see ahead.
    """
    inputs, ids = model.prompt_inputs(image, PROMPT), model.continuation_ids(text)
    with torch.no_grad():
        out = model.network.generate(
            **inputs, max_new_tokens=len(ids), do_sample=False, output_logits=True,
            return_dict_in_generate=True,
            logits_processor=[Forced(ids, inputs["input_ids"].shape[1])],
        )  # fmt: skip
    return sum(float(at[0].log_softmax(-1)[i]) for at, i in zip(out.logits, ids, strict=True))


@pytest.fixture(
    scope="module",
    params=[
        *tiny_generative.FAMILIES,
        *(pytest.param(name, marks=with_torchvision) for name in tiny_generative.WITH_TORCHVISION),
    ],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    builders: dict[str, Callable[[Path], Any]] = {
        **tiny_generative.FAMILIES,
        **tiny_generative.WITH_TORCHVISION,
    }
    directory = tmp_path_factory.mktemp(request.param)
    builders[request.param](directory)
    return tm.load_model(f"hf:{directory}")


def test_equal_to_decoding(model: Any) -> None:
    """No leak: tokens after the one that is scored change nothing."""
    images = tiny.pictures()
    found = model.continuations(images, PROMPT, TEXTS)
    expected = [[decoded(model, image, text) for text in TEXTS] for image in images]
    assert np.allclose(found.logprobs, expected, atol=NEAR)
    assert found.tokens.tolist() == [1, 2, 5, 4]
    assert found.exact.all()
    assert np.ptp(found.logprobs, axis=0).min() > 0.01  # the image does count


def test_batches_and_neighbours_change_nothing(model: Any) -> None:
    images = tiny.pictures()
    together = model.continuations(images, PROMPT, TEXTS).logprobs
    alone = model.continuations(images[1:2], PROMPT, TEXTS[2:3]).logprobs
    assert np.allclose(together[1, 2], alone[0, 0], atol=NEAR)
    model.block, model.rows, before = 2, 2, (model.block, model.rows)
    assert np.allclose(model.continuations(images, PROMPT, TEXTS).logprobs, together, atol=NEAR)
    model.block, model.rows = before
    model.copied_bytes, most = 1, model.copied_bytes  # one copy of a prompt at a time
    assert np.allclose(model.continuations(images, PROMPT, TEXTS).logprobs, together, atol=NEAR)
    model.copied_bytes = most


def test_padding_and_shared_beginnings_change_nothing(model: Any) -> None:
    """Each text alone has the likelihood that it has next to longer ones and its own beginning."""
    texts = ["the", "the red", "the red ball", "the red ball is smart", "the red dog", "a doctor"]
    images = tiny.pictures()[:2]
    together = model.continuations(images, PROMPT, texts).logprobs
    for at, text in enumerate(texts):
        alone = model.continuations(images, PROMPT, [text]).logprobs[:, 0]
        assert np.allclose(together[:, at], alone, atol=NEAR)
    assert (np.diff(together[:, :4], axis=1) < 0).all()  # a longer text is less likely


def test_likelihoods_of_a_slow_loop(model: Any) -> None:
    """One pass over prefix and all tokens, by the library's plain forward pass, for each pair.

    Against decoding token by token (above) it shows that a single pass does not see ahead.
    """
    # PaliGemma sees ahead in its prefix: what follows must be marked as an answer
    marked = int(model.network.config.model_type == "paligemma")
    image = tiny.pictures()[0]
    for text in TEXTS:
        inputs, ids = model.prompt_inputs(image, PROMPT), model.continuation_ids(text)
        start = inputs["input_ids"].shape[1]
        tokens = torch.cat([inputs["input_ids"], torch.tensor([ids])], dim=1)
        more = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        for key in ("mm_token_type_ids", "token_type_ids"):
            if key in inputs:
                more[key] = torch.nn.functional.pad(inputs[key], (0, len(ids)), value=marked)
        if "cross_attention_mask" in inputs:
            seen = inputs["cross_attention_mask"]
            more["cross_attention_mask"] = torch.cat(
                [seen, seen[:, -1:].expand(-1, len(ids), -1, -1)], dim=1
            )
        with torch.no_grad():
            logits = model.network(**{**inputs, **more}).logits[0, -len(ids) - 1 : -1]
        expected = logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)].sum().item()
        assert tokens.shape[1] == start + len(ids)
        found = model.continuations([image], PROMPT, [text]).logprobs.item()
        assert found == pytest.approx(expected, abs=NEAR)


def test_prompts_about_the_same_images_share_what_was_read(model: Any) -> None:
    """The cached beginning changes nothing, and is not used for other images or other weights."""
    images, prompts = tiny.pictures()[:2], [PROMPT, "is this the red ball ?", "a nurse ?", PROMPT]
    fresh = []
    for prompt in prompts:
        model._prefixes.clear()
        fresh.append(model.continuations(images, prompt, TEXTS).logprobs)
    model._prefixes.clear()
    shared = [model.continuations(images, prompt, TEXTS).logprobs for prompt in prompts]
    assert np.allclose(shared, fresh, atol=NEAR)
    read_apart = {"paligemma", "gemma3", "mllama"}  # what follows an image changes how it is read
    cached = any(prefix.cache is not None for prefix in model._prefixes)
    assert cached == (model.network.config.model_type not in read_apart)
    swapped = model.continuations(images[::-1], PROMPT, TEXTS).logprobs
    assert np.allclose(swapped, fresh[0][::-1], atol=NEAR)
    model.continuations(images[::-1], PROMPT, TEXTS)
    with torch.no_grad():  # the weights change while the beginning is cached
        weights = next(iter(model.network.get_input_embeddings().parameters()))
        weights.mul_(1.5)
        trained = model.continuations(images[::-1], PROMPT, TEXTS).logprobs
        weights.div_(1.5)
    assert not np.allclose(trained, swapped, atol=NEAR)


def test_half_precision(model: Any) -> None:
    """Pixels follow the weights; what is found stays near, and the precision is recorded."""
    images = tiny.pictures()[:2]
    full = model.continuations(images, PROMPT, TEXTS).logprobs
    model.network.to(torch.bfloat16)
    try:
        half = model.continuations(images, PROMPT, TEXTS).logprobs
        assert model.provenance["dtype"] == "bfloat16"
    finally:
        model.network.to(torch.float32)
    assert np.allclose(half, full, atol=0.2)
    assert (half != full).any()


def test_without_an_image(model: Any) -> None:
    """After a question with an image too: a model must not remember it."""
    blind = model.continuations(None, PROMPT, TEXTS).logprobs
    model.continuations(tiny.pictures(), PROMPT, TEXTS)
    again = model.continuations(None, PROMPT, TEXTS).logprobs
    assert blind.shape == (1, len(TEXTS))
    assert (blind == again).all()
    if not hasattr(model.network.config, "qformer_config"):  # BLIP-2 cannot generate without one
        expected = [decoded(model, None, text) for text in TEXTS]
        assert np.allclose(blind[0], expected, atol=NEAR)


def test_words_of_one_token_have_the_probability_of_that_token(model: Any) -> None:
    image = tiny.pictures()[:1]
    words = tiny_generative.WORDS
    found = np.exp(model.continuations(image, PROMPT, words).logprobs).sum()
    with torch.no_grad():
        logits = model.network(**model.prompt_inputs(image[0], PROMPT)).logits[0, -1]
    ids = [model.continuation_ids(word)[0] for word in words]
    assert found == pytest.approx(float(logits.softmax(-1)[ids].sum()), rel=1e-4)


def test_an_answer_that_begins_with_a_stem(model: Any) -> None:
    """p(stem and end) = p(stem) p(end | stem), where the stem is part of the answer."""
    image = tiny.pictures()[:1]
    if not getattr(model.processor, "chat_template", None):
        pytest.skip("no chat template: the stem is a part of the prompt")
    whole = model.continuations(image, PROMPT, ["the nurse"]).logprobs
    begin = model.continuations(image, PROMPT, ["the"]).logprobs
    end = model.continuations(image, PROMPT, ["nurse"], stem="the").logprobs
    assert whole == pytest.approx(begin + end, abs=NEAR)


def test_writes(model: Any) -> None:
    images = tiny.pictures()[:2]
    (first,), (second,) = model.write(images, PROMPT, limit=4)
    assert {first.ended, second.ended} <= {"stop", "length"}
    assert first.tokens <= 4
    assert model.write(images, PROMPT, limit=4) == [[first], [second]]
    drawn = model.write(images[:1], PROMPT, limit=4, samples=3, temperature=2.0, seed=1)
    assert drawn == model.write(images[:1], PROMPT, limit=4, samples=3, temperature=2.0, seed=1)
    assert len({text.text for text in drawn[0]}) > 1
    with pytest.raises(InputError):
        model.write(images, PROMPT, samples=2)


def test_contract(model: Any) -> None:
    assert isinstance(model, Continuer)
    assert isinstance(model, Writer)
    assert model.provenance["dtype"] == "float32"
    with pytest.raises(InputError):
        model.continuations(None, PROMPT, ["unheard-of"])
