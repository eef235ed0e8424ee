"""A random LLaVA that knows every word of the built-in questions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.models.tiny_fused import saved
from tests.models.tiny_generative import CHAT, SPECIAL, TEXT, VISION, clip_pixels
from tiltmeter import stimuli

LISTS = ("sobit", "neutral-people", "placebo-nouns", "placebo-adjectives", "default")
TABLES = ("questions", "pairs-questions", "answer-words")


def words() -> list[str]:
    """Every word that the probes of generative models ask about or look for."""
    texts = [word.text for name in LISTS for word in stimuli.load(name).words]
    texts += [str(stimuli.load(name).table) for name in TABLES]
    found = {word for text in texts for word in re.findall(r"[^\s'\"\[\]{},.?!:]+", text)}
    return sorted({*found, *"ABC", "a", "an", "user", "assistant", ".", ",", "?", ":", "'"})


def random_llava(directory: Path, seed: int = 0) -> Any:
    """Saved in a directory, for `hf:DIR`."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split

    torch.manual_seed(seed)
    vocab = {word: at for at, word in enumerate([*SPECIAL, *words()])}
    model = Tokenizer(WordLevel(vocab, unk_token="<unk>"))
    model.pre_tokenizer = Split(Regex(r"\s+|(?=[.,?:'])"), "removed")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        unk_token="<unk>", model_max_length=256, extra_special_tokens={"image_token": "<image>"},
    )  # fmt: skip
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL[4:])})
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION, projection_dim=32),
        text_config=transformers.LlamaConfig(
            **{**TEXT, "max_position_embeddings": 256}, vocab_size=len(tokenizer)
        ),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1, vision_feature_select_strategy="default", image_seq_length=16,
    )  # fmt: skip
    transformers.LlavaProcessor(
        clip_pixels(), tokenizer, patch_size=8, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, chat_template=CHAT,
    ).save_pretrained(directory)  # fmt: skip
    return saved(transformers.LlavaForConditionalGeneration(config), directory)
