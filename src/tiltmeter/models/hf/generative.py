"""Generative checkpoints: LLaVA, Qwen2-VL, PaliGemma, Idefics3, BLIP-2, Gemma 3, Mllama and others.

A continuation is scored by its own tokens, appended to those of the prompt: the joined text is
never tokenized again, so an image counts with all of its tokens, and the tokens of a continuation
are known. The prompt with its image is computed once, and all continuations read its cache. If
the next prompts are about the same images, they read the cache of those images too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from tiltmeter.errors import InputError
from tiltmeter.io.image_files import rendered
from tiltmeter.models.hf.checkpoint import Checkpoint
from tiltmeter.models.hf.continued_texts import ContinuedTexts
from tiltmeter.models.network import Network
from tiltmeter.results import content_hash
from tiltmeter.types import Continuations, WrittenText

T = TypeVar("T")
#: Entries of the processor's output that are for training.
TRAINING = ("labels",)


@dataclass(eq=False)
class _ImagePrefix:
    """The beginning of a prompt with its images, and what the network computed for it."""

    inputs: dict[str, Tensor]  # on the CPU: a comparison on a GPU would wait for it
    versions: list[int]  # of the weights, which may be trained between two prompts
    cache: Any = None  # made when a second prompt begins alike
    rope_deltas: Any = None  # Qwen2-VL keeps those of the last image, next to its cache

    def begins(self, inputs: dict[str, Tensor], versions: list[int]) -> bool:
        return (
            self.versions == versions
            and self.inputs.keys() == inputs.keys()
            and all(_equal(own, inputs[name]) for name, own in self.inputs.items())
        )


class Generative(Network):
    """A checkpoint that continues a prompt about an image: `Continuer` and `Writer`.

    Parameters
    ----------
    checkpoint : Checkpoint
        Any class of transformers' `AutoModelForImageTextToText` with a causal text decoder.
    """

    block = 8  # images at a time
    rows = 256  # continuations at a time: pairs of an image and a text
    copied_bytes = 4 << 30  # most memory for the copies of the prompts' caches that they read

    def __init__(self, checkpoint: Checkpoint) -> None:
        from transformers import AutoModelForImageTextToText

        network = checkpoint.network(AutoModelForImageTextToText)
        if network.config.get_text_config().is_encoder_decoder:
            raise InputError(
                f"hf:{checkpoint.name} has an encoder-decoder as its text model "
                f"({network.config.get_text_config().model_type}): only causal decoders can be "
                "measured"
            )
        super().__init__(network, checkpoint.name, checkpoint.provenance(network))
        self.processor = checkpoint.processor
        self.tokenizer = self.processor.tokenizer
        self.preprocessing = self.processor.image_processor.to_dict()

    @property
    def provenance(self) -> dict[str, Any]:
        """With the hash of the chat template and the precision, which both decide an answer."""
        template = getattr(self.processor, "chat_template", None)
        return {
            **super().provenance,
            "chat_template": content_hash(template) if template else None,
            "dtype": str(self.network.dtype).removeprefix("torch."),
        }

    def continuations(
        self, images: Any | None, prompt: str, texts: Sequence[str], *, stem: str = ""
    ) -> Continuations:
        """Log-likelihoods of texts as answers, or as ends of an answer that begins with `stem`.

        Parameters
        ----------
        images : sequence of PIL.Image.Image or None
            None asks without an image: the prompt then has no image tokens at all.
        prompt : str
            The question.
        texts : sequence of str
            What may follow.
        stem : str
            The beginning of the answer.

        Returns
        -------
        Continuations
            One row per image; a single row without images.
        """
        ids = [self.continuation_ids(text, after=stem) for text in texts]
        asked = [None] if images is None else rendered(images)
        logprobs = np.empty((len(asked), len(texts)))
        with torch.inference_mode():
            continued = ContinuedTexts(ids, self.device)
            # read from the device at the end: a copy would wait for all that was asked of it
            scored = [(rows, self._score(inputs, continued))
                      for rows, inputs in ahead(self._batches(asked, prompt, stem))]  # fmt: skip
            for rows, found in scored:
                logprobs[rows] = found.double().cpu().numpy()
        tokens = np.array([len(pieces) for pieces in ids])
        return Continuations(logprobs, tokens, np.ones(logprobs.shape, dtype=bool))

    def write(
        self,
        images: Any | None,
        prompt: str,
        *,
        samples: int = 1,
        temperature: float = 0.0,
        limit: int = 128,
        seed: int = 0,
    ) -> list[list[WrittenText]]:
        """Answers in free text; see `tiltmeter.types.Writer`."""
        if samples > 1 and temperature == 0:
            raise InputError(
                f"{samples} samples at temperature 0 are all the same: give a temperature above 0"
            )
        drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        asked = [None] if images is None else rendered(images)
        written: list[list[WrittenText]] = [[] for _ in asked]
        with torch.inference_mode(), torch.random.fork_rng(devices=self._cuda()):
            torch.manual_seed(seed)
            for rows, inputs in self._batches(asked, prompt):
                tokens = self.network.generate(
                    **self._moved(inputs),
                    max_new_tokens=limit,
                    num_return_sequences=samples,
                    repetition_penalty=1.0,
                    **(drawn if temperature else {"do_sample": False}),
                )
                answers = tokens[:, inputs["input_ids"].shape[1] :].reshape(len(rows), samples, -1)
                for row, own in zip(rows, answers, strict=True):
                    written[row] = [self._written(answer.tolist()) for answer in own]
        return written

    def continuation_ids(self, text: str, *, after: str = "") -> list[int]:
        """Token numbers of a text as it begins an answer, or as it follows a stem after a space."""
        if not after:
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        else:  # a word inside a sentence: byte-level and sentencepiece tokens include the space
            anchor = self.tokenizer("a", add_special_tokens=False)["input_ids"]
            ids = self.tokenizer(f"a {text}", add_special_tokens=False)["input_ids"]
            ids = ids[len(anchor) :]
        if not ids:
            raise InputError(f"the continuation {text!r} has no tokens for {self.name}")
        if self.tokenizer.unk_token_id is not None and self.tokenizer.unk_token_id in ids:
            raise InputError(
                f"the tokenizer of {self.name} has no tokens for {text!r}",
                code="unknown-name",
                value=text,
            )
        return list(ids)

    def knows(self, text: str) -> bool:
        """Whether the tokenizer can spell a text: one with a closed vocabulary may not."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return self.tokenizer.unk_token_id is None or self.tokenizer.unk_token_id not in ids

    def prompt_inputs(self, image: Any | None, prompt: str, stem: str = "") -> dict[str, Tensor]:
        """What the network takes for a prompt, with image tokens where there is an image."""
        if getattr(self.processor, "chat_template", None):
            inputs = self._chat(image, prompt, stem)
        else:
            inputs = self._plain(image, f"{prompt} {stem}".rstrip())
        return {key: value for key, value in inputs.items() if key not in TRAINING}

    def _chat(self, image: Any | None, prompt: str, stem: str) -> Any:
        content: list[dict[str, Any]] = [{"type": "text", "text": prompt}]
        if image is not None:
            content.insert(0, {"type": "image", "image": image})
        messages = [{"role": "user", "content": content}]
        if stem:
            messages.append({"role": "assistant", "content": [{"type": "text", "text": stem}]})
        return self.processor.apply_chat_template(
            messages,
            add_generation_prompt=not stem,
            continue_final_message=bool(stem),
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )

    def _plain(self, image: Any | None, text: str) -> Any:
        if image is None:
            return self.tokenizer(text, return_tensors="pt")
        return self.processor(images=image, text=text, return_tensors="pt")

    def _batches(
        self, images: Any, prompt: str, stem: str = ""
    ) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """Inputs of images whose shapes are the same, so that nothing is padded; not yet moved."""
        for start in range(0, len(images), self.block):
            alike: dict[Any, tuple[list[int], list[dict[str, Tensor]]]] = {}
            for row in range(start, min(start + self.block, len(images))):
                inputs = self.prompt_inputs(images[row], prompt, stem)
                shapes = tuple((key, tuple(value.shape)) for key, value in inputs.items())
                rows, parts = alike.setdefault(shapes, ([], []))
                rows.append(row)
                parts.append(inputs)
            for rows, parts in alike.values():
                yield rows, {k: self._ready(torch.cat([x[k] for x in parts])) for k in parts[0]}

    def _ready(self, x: Tensor) -> Tensor:
        """Pixels in the precision of the weights, where a GPU can fetch them by itself."""
        x = x.to(self.network.dtype) if x.is_floating_point() else x
        return x.pin_memory() if self.device.type == "cuda" else x

    def _moved(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {name: x.to(self.device, non_blocking=True) if isinstance(x, Tensor) else x
                for name, x in inputs.items()}  # fmt: skip

    def _score(self, inputs: dict[str, Tensor], texts: ContinuedTexts) -> Tensor:
        """Log-likelihoods, images x texts: the prompt once, then all texts on its cache."""
        prompt = self._read(inputs)
        images = len(inputs["input_ids"])
        logprobs = prompt.logits[:, -1].float().log_softmax(dim=-1)[:, texts.first]
        cache, copies = _cache(prompt), 0
        each = sum(x.nbytes for x in _tensors(cache)) // images
        most = max(1, min(self.rows, self.copied_bytes // max(1, each)) // images)
        for share in texts.shares(most):
            if copies != len(share.read):  # row = image * contexts + context
                copies, repeated = len(share.read), _copied(cache)
                repeated.batch_repeat_interleave(copies)
            follow = self._followed_by(inputs, share.read.repeat(images, 1))
            output = self._forward({**follow, "past_key_values": _copied(repeated)})
            logprobs[:, share.texts] += share.logprobs(output.logits)
        return logprobs  # type: ignore[no-any-return]

    def _read(self, inputs: dict[str, Tensor]) -> Any:
        """A forward pass over a prompt; images that the last prompt had too are read once."""
        base, head = self.network.base_model, self._image_inputs(inputs)
        versions = [weights._version for weights in self.parameters()]
        last = next((one for one in self._prefixes if head and one.begins(head, versions)), None)
        if head is None or last is None:
            if head is not None:
                self._remember(_ImagePrefix(head, versions))
            _set_rope_deltas(base, None)
            return self._forward(inputs, logits_to_keep=1)
        if last.cache is None:
            _set_rope_deltas(base, None)
            last.cache = _cache(self._forward(head, logits_to_keep=1))
            last.rope_deltas = getattr(base, "rope_deltas", None)
        _set_rope_deltas(base, last.rope_deltas)
        rest = inputs["input_ids"][:, head["input_ids"].shape[1] :]
        return self._forward(
            {"input_ids": rest, "past_key_values": _copied(last.cache)}, logits_to_keep=1
        )

    @cached_property
    def _prefixes(self) -> list[_ImagePrefix]:
        """The last prompts' beginnings: as many images as fit into a block."""
        return []

    def _remember(self, prefix: _ImagePrefix) -> None:
        self._prefixes.append(prefix)
        while sum(len(one.inputs["input_ids"]) for one in self._prefixes) > self.block:
            self._prefixes.pop(0)

    def _image_inputs(self, inputs: dict[str, Tensor]) -> dict[str, Tensor] | None:
        """The inputs up to the last image token; None if they cannot be read on their own.

        Where tokens have types or see tiles, what follows an image may change how it is read.
        """
        tokens = inputs["input_ids"]
        image = getattr(self.network.config, "image_token_id", None)
        if image is None or {"token_type_ids", "cross_attention_mask"} & {*inputs}:
            return None
        places = (tokens == image).any(dim=0).nonzero()
        end = int(places[-1]) + 1 if len(places) else 0
        if not 0 < end < tokens.shape[1]:
            return None
        return {name: x[:, :end] if x.shape[:2] == tokens.shape else x
                for name, x in inputs.items()}  # fmt: skip

    def _followed_by(self, inputs: dict[str, Tensor], tokens: Tensor) -> dict[str, Tensor]:
        """Inputs of tokens that follow the prompt; no attention mask, since nothing is padded."""
        if "cross_attention_mask" not in inputs:
            return {"input_ids": tokens}
        # Mllama: each token sees the tiles that the prompt's last token sees
        each = len(tokens) // len(inputs["input_ids"])
        seen = inputs["cross_attention_mask"][:, -1:].repeat_interleave(each, dim=0)
        seen = seen.expand(-1, tokens.shape[1], -1, -1)
        return {"input_ids": tokens, "cross_attention_mask": seen}

    def _forward(self, inputs: dict[str, Any], **options: Any) -> Any:
        return self.network(**self._moved(inputs), use_cache=True, **options)

    def _written(self, tokens: list[int]) -> WrittenText:
        ends = self._end_tokens
        stop = next((at for at, token in enumerate(tokens) if token in ends), None)
        text = self.tokenizer.decode(tokens[:stop], skip_special_tokens=True).strip()
        return WrittenText(text, "length" if stop is None else "stop", len(tokens[:stop]))

    @cached_property
    def _end_tokens(self) -> set[int]:
        ends = self.network.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        return {end for end in (*ends, self.tokenizer.eos_token_id) if end is not None}

    def _cuda(self) -> list[torch.device]:
        return [self.device] if self.device.type == "cuda" else []


class Blip2Writer(Generative):
    """BLIP-2 with a causal language model, which reads the query tokens as a prefix."""

    def _forward(self, inputs: dict[str, Any], **options: Any) -> Any:
        # without an image, and after the prompt, only the language model is asked
        network = self.network if "pixel_values" in inputs else self.network.language_model
        return network(**self._moved(inputs), use_cache=True, **options)


def ahead(items: Iterable[T]) -> Iterator[T]:
    """The same items; while one is used, the next is prepared in a thread.

    >>> list(ahead(iter("abc")))
    ['a', 'b', 'c']
    """
    source, end = iter(items), object()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, source, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, source, end)
            yield cast(T, item)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


def _set_rope_deltas(network: Any, value: Any) -> None:
    if hasattr(network, "rope_deltas"):
        network.rope_deltas = value


def _copied(cache: Any) -> Any:
    """A cache that may be extended: layers replace their tensors, and never change them."""
    copied = copy(cache)
    copied.layers = [copy(layer) for layer in cache.layers]
    return copied


def _tensors(cache: Any) -> Iterator[Tensor]:
    return (x for layer in cache.layers for x in (layer.keys, layer.values) if x is not None)


def _cache(output: Any) -> Any:
    """Keys and values of a forward pass; BLIP-2 returns those of its language model."""
    cache = getattr(output, "past_key_values", None)
    return output.language_model_outputs.past_key_values if cache is None else cache
