"""`testbed:writer`: a small LLaVA that describes scenes and answers questions about them.

What it answers is in `tiltmeter.testbed.dialogue`. It has the classes of the transformers library:
`python -m tiltmeter.testbed.writer DIR` writes a checkpoint that the library loads, and that
`hf:DIR` and servers answer with alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from tiltmeter.models.hf.generative import Generative
from tiltmeter.models.network import Network
from tiltmeter.testbed.dialogue import IMAGE, LETTERS, UNKNOWN_WORD, words
from tiltmeter.testbed.language import SPECIAL
from tiltmeter.testbed.models import TWINS, WRITER, Testbed
from tiltmeter.testbed.networks import WEIGHTS, provenance_of
from tiltmeter.testbed.render import SIZE

PATCH = 4
WIDTH = 96
CHAT = (
    "{% for message in messages %}{% if message.role == 'user' %}[CLS]"
    "{% for part in message.content %}{% if part.type == 'image' %}" + IMAGE + "{% else %}"
    " {{ part.text }} {% endif %}{% endfor %}[SEP]{% else %} {{ message.content[0].text }}"
    "{% endif %}{% endfor %}"
)


def writer_network() -> Any:
    """The network, with random weights."""
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
    )

    known = words()
    vision = CLIPVisionConfig(
        hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=3, num_attention_heads=4,
        image_size=SIZE, patch_size=PATCH, hidden_act="gelu", projection_dim=WIDTH,
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=len(known), hidden_size=WIDTH, intermediate_size=3 * WIDTH, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=128,
        tie_word_embeddings=True, bos_token_id=known["[CLS]"], eos_token_id=known["[SEP]"],
        pad_token_id=known["[PAD]"],
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=known[IMAGE],
        vision_feature_layer=-1, vision_feature_select_strategy="default",
        image_seq_length=(SIZE // PATCH) ** 2, tie_word_embeddings=True,
    )  # fmt: skip
    return LlavaForConditionalGeneration(config)


def trained_writer(name: str) -> Any:
    """The network with its shipped weights, `writer` or `writer-fair`, in single precision."""
    from safetensors.torch import load_file

    network = writer_network()
    network.load_state_dict(load_file(WEIGHTS / f"{name}.safetensors"))
    return network.float().eval()


def writer_processor() -> Any:
    """Its tokenizer, image processor and chat template."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.normalizers import Lowercase
    from tokenizers.pre_tokenizers import Split
    from transformers import (
        AddedToken,
        CLIPImageProcessorPil,
        LlavaProcessor,
        PreTrainedTokenizerFast,
    )

    known = Tokenizer(WordLevel(words(), unk_token=UNKNOWN_WORD))
    known.normalizer = Lowercase()
    known.pre_tokenizer = Split(Regex(r"[^\s.,;:!?\"()]+"), "removed", invert=True)
    special = [AddedToken(token, special=True, normalized=False) for token in (*SPECIAL, *LETTERS)]
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=known, pad_token="[PAD]", bos_token="[CLS]", eos_token="[SEP]",
        unk_token=UNKNOWN_WORD, extra_special_tokens={"image_token": IMAGE},
    )  # fmt: skip
    tokenizer.add_tokens(special)
    images = CLIPImageProcessorPil(
        size={"height": SIZE, "width": SIZE}, do_center_crop=False, image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )  # fmt: skip
    return LlavaProcessor(  # type: ignore[no-untyped-call]
        images, tokenizer, patch_size=PATCH, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, chat_template=CHAT,
    )  # fmt: skip


class WriterTestbed(Generative, Testbed):
    """A trained writer of the testbed."""

    block, rows = 256, 4096
    losses = None  # type: ignore[assignment]  # only `tools.testbed.train_writer` trains it

    def __init__(self, network: Any, name: str, provenance: dict[str, Any]) -> None:
        Network.__init__(self, network, name, provenance)
        self.processor = writer_processor()
        self.tokenizer = self.processor.tokenizer
        self.preprocessing = {"size": SIZE}

    def _batches(
        self, images: Any, prompt: str, stem: str = ""
    ) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """As the processor makes them, whose tokens are the same for every image."""
        for start in range(0, len(images), self.block):
            some = images[start : start + self.block]
            seen = some[0] is not None
            same = self._prompt(prompt, stem, sees_image=seen)
            inputs = {name: tokens.expand(len(some), -1) for name, tokens in same.items()}
            if seen:
                inputs["pixel_values"] = 2 * self.pixels(some) - 1
            rows = list(range(start, start + len(some)))
            yield rows, {name: self._ready(x) for name, x in inputs.items()}

    @lru_cache(maxsize=64)  # noqa: B019 (a model lives as long as its prompts)
    def _prompt(self, prompt: str, stem: str, *, sees_image: bool) -> dict[str, Tensor]:
        from PIL import Image

        blank = Image.new("RGB", (SIZE, SIZE)) if sees_image else None
        inputs = self.prompt_inputs(blank, prompt, stem)
        return {name: x for name, x in inputs.items() if name != "pixel_values"}

    def save_pretrained(self, place: str | Path) -> None:
        """Write a checkpoint that `hf:` and the transformers library load."""
        self.network.generation_config.do_sample = True  # a server then obeys the temperature
        self.network.save_pretrained(place)
        self.processor.save_pretrained(place)


def load_writer(name: str) -> WriterTestbed:
    """The trained writer, `writer` or `writer-fair`."""
    return WriterTestbed(trained_writer(name), f"testbed:{name}", provenance_of(name))


def main() -> None:
    """Write a twin as a LLaVA checkpoint."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--twin", choices=TWINS, default=TWINS[0])
    options = parser.parse_args()
    load_writer(WRITER if options.twin == TWINS[0] else f"{WRITER}-fair").save_pretrained(
        options.directory
    )
    print(f"Try it: tiltmeter audit hf:{options.directory} --images testbed: --probe silence")


if __name__ == "__main__":
    main()
