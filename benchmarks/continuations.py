"""Likelihoods of continuations, by the package, bare, and in a loop over pairs.

`python -m benchmarks.continuations`. A random LLaVA of a billion parameters on a GPU, a tiny one on
a CPU. Bare is the same work with inputs that are ready on the device: each image's prompt once,
then all continuations on its cache. The loop over pairs, which other harnesses have, computes the
image again for every continuation; a part of it is timed, and counted up.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiltmeter.models.hf.generative import Generative
from tiltmeter.models.network import Network

PROMPT = "w1 w2 w3 w4 w5 w6"
SIZES: dict[str, dict[str, dict[str, int]]] = {
    "tiny": {
        "vision": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                   "num_attention_heads": 4, "image_size": 56, "patch_size": 14},
        "text": {"vocab_size": 1000, "hidden_size": 32, "intermediate_size": 64,
                 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    },
    "1b": {
        "vision": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
                   "num_attention_heads": 16, "image_size": 336, "patch_size": 14},
        "text": {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632,
                 "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8},
    },
}  # fmt: skip


class RandomLlava(Generative):
    """A LLaVA with random weights and one token per word."""

    def __init__(self, size: str, device: str, dtype: torch.dtype) -> None:
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from tokenizers.pre_tokenizers import WhitespaceSplit
        from transformers import (
            CLIPImageProcessorPil,
            CLIPVisionConfig,
            LlamaConfig,
            LlavaConfig,
            LlavaForConditionalGeneration,
            LlavaProcessor,
            PreTrainedTokenizerFast,
        )

        vision, text = CLIPVisionConfig(**SIZES[size]["vision"]), LlamaConfig(**SIZES[size]["text"])
        config = LlavaConfig(
            vision_config=vision, text_config=text, image_token_index=3, vision_feature_layer=-2,
            vision_feature_select_strategy="default",
            image_seq_length=(vision.image_size // vision.patch_size) ** 2,
        )  # fmt: skip
        torch.manual_seed(0)
        with torch.device(device):
            network = LlavaForConditionalGeneration(config).to(dtype)
        super(Generative, self).__init__(network, f"random-llava-{size}", {})
        names = ["<pad>", "<s>", "</s>", "<image>"]
        names += [f"w{at}" for at in range(text.vocab_size - len(names))]
        words = Tokenizer(WordLevel({word: at for at, word in enumerate(names)}, unk_token="<pad>"))
        words.pre_tokenizer = WhitespaceSplit()
        tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
            extra_special_tokens={"image_token": "<image>"},
        )  # fmt: skip
        side = vision.image_size
        pixels = CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size=side)
        self.processor = LlavaProcessor(  # type: ignore[no-untyped-call]
            pixels, tokenizer, patch_size=vision.patch_size, num_additional_image_tokens=1,
            vision_feature_select_strategy="default",
            chat_template="<s> {% for message in messages %}{% for part in message.content %}"
            "{% if part.type == 'image' %}<image> {% else %}{{ part.text }} {% endif %}"
            "{% endfor %}{% endfor %}",
        )  # fmt: skip
        self.tokenizer = self.processor.tokenizer
        assert isinstance(self, Network)


def bare(model: RandomLlava, inputs: list[dict[str, Tensor]], ids: Tensor, texts: int) -> Tensor:
    """Images x texts; `ids` is texts x tokens, all of the same length."""
    network, found = model.network, []
    for some in inputs:
        n = len(some["input_ids"])
        prompt = network(**some, use_cache=True, logits_to_keep=1)
        first = prompt.logits[:, -1].float().log_softmax(dim=-1)[:, ids[:, 0]]
        cache = prompt.past_key_values
        rest: list[Tensor] = []
        cache.batch_repeat_interleave(texts)
        for start in range(0, len(ids), texts):
            own = ids[start : start + texts]
            if rest:
                cache.crop(1 - ids.shape[1])  # what the last texts added
            if len(own) < texts:  # the last ones: as many copies of each image's prompt
                copies = torch.arange(n * texts, device=ids.device).reshape(n, texts)
                cache.batch_select_indices(copies[:, : len(own)].flatten())
            read = own[:, :-1].repeat(n, 1)
            logits = network(input_ids=read, past_key_values=cache, use_cache=True).logits
            p = logits.float().log_softmax(dim=-1).reshape(n, len(own), read.shape[1], -1)
            at = own[:, 1:].expand(n, -1, -1)[..., None]
            rest.append(p.gather(-1, at)[..., 0].sum(dim=-1))
        found.append(first + torch.cat(rest, dim=1))
    return torch.cat(found)


def by_pairs(model: RandomLlava, inputs: dict[str, Tensor], ids: Tensor) -> Tensor:
    """One image with each text in a pass of its own."""
    found = []
    for own in ids:
        tokens = torch.cat([inputs["input_ids"], own[None]], dim=1)
        logits = model.network(input_ids=tokens, pixel_values=inputs["pixel_values"]).logits
        p = logits[0, -len(own) - 1 : -1].float().log_softmax(dim=-1)
        found.append(p.gather(1, own[:, None]).sum())
    return torch.stack(found)


def seconds(work: Callable[[], Any], device: str, repeats: int) -> tuple[float, Any]:
    """The shortest of some runs."""
    times = []
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        result = work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times), result


def main() -> None:
    """Measure and print."""
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--size", choices=SIZES, default="1b" if on_gpu else "tiny")
    parser.add_argument("--images", type=int, default=1000 if on_gpu else 40)
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=4, help="of each text")
    parser.add_argument("--pairs", type=int, default=50, help="timed in the loop over pairs")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    device = "cuda" if on_gpu else "cpu"
    model = RandomLlava(options.size, device, getattr(torch, options.dtype))
    from PIL import Image

    rng = np.random.default_rng(0)
    side = model.processor.image_processor.crop_size["height"]
    images = [
        Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8))
        for _ in range(options.images)
    ]
    words = rng.integers(10, 990, (options.texts, options.tokens))
    texts = [" ".join(f"w{word}" for word in row) for row in words]
    ids = torch.tensor([model.continuation_ids(text) for text in texts], device=device)
    with torch.inference_mode():
        ready = [model._moved(inputs) for _, inputs in model._batches(images, PROMPT)]
        share = ceil(len(texts) / ceil(len(texts) / max(1, model.rows // model.block)))
        model.continuations(images[: model.block], PROMPT, texts)  # warm up
        bare(model, ready[:1], ids, share)
        by_pairs(model, {k: x[:1] for k, x in ready[0].items()}, ids[:2])
        ours, found = seconds(
            lambda: model.continuations(images, PROMPT, texts).logprobs, device, options.repeats
        )
        least, expected = seconds(lambda: bare(model, ready, ids, share), device, options.repeats)
        some = {k: x[:1] for k, x in ready[0].items()}
        pairs = min(options.pairs, options.texts)
        loop, single = seconds(lambda: by_pairs(model, some, ids[:pairs]), device, 1)
    count = sum(x.numel() for x in model.parameters())
    loop *= options.images * options.texts / pairs
    print(f"{count / 1e9:.2f} billion parameters, {options.dtype}, {len(images)} images x "
          f"{len(texts)} continuations of {options.tokens} tokens, {device}")  # fmt: skip
    print(f"package {ours:.2f} s; bare {least:.2f} s: {least / ours:.0%} of the bare speed")
    print(f"loop over pairs {loop:.1f} s (from {pairs} pairs): {loop / ours:.1f} times as long")
    print(f"largest difference: to bare {np.abs(found - expected.cpu().numpy()).max():.1e}, to "
          f"the loop {np.abs(found[0, :pairs] - single.cpu().numpy()).max():.1e}")  # fmt: skip


if __name__ == "__main__":
    main()
