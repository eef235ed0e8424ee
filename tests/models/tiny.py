"""Small random checkpoints of the real classes, saved as their libraries save them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

WORDS = ("a", "photo", "of", "the", "nurse", "doctor", "man", "woman", "person", "is", "in",
         "picture", "smart", "red", "ball", "dog")  # fmt: skip


def pictures(count: int = 3, seed: int = 0) -> list[Image.Image]:
    """Photographs of noise, none of them square."""
    rng = np.random.default_rng(seed)
    return [
        Image.fromarray(rng.integers(0, 256, (40 + 3 * i, 52, 3), dtype=np.uint8))
        for i in range(count)
    ]


def clip_tokenizer(directory: Path):
    """A byte-pair tokenizer of CLIP's class that knows a few words."""
    from transformers import CLIPTokenizer

    letters = sorted({letter for word in WORDS for letter in word})
    vocab = {token: at for at, token in enumerate(
        [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    )}  # fmt: skip
    tokenizer = CLIPTokenizer(vocab=vocab, merges=[], model_max_length=24)
    tokenizer.save_pretrained(directory)
    return tokenizer


def bert_tokenizer(directory: Path, kind: str = "BertTokenizer"):
    """A word-piece tokenizer that knows a few words whole, and others by letters."""
    import transformers

    letters = sorted({letter for word in WORDS for letter in word})
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *letters,
             *(f"##{letter}" for letter in letters)]  # fmt: skip
    vocab = {word: at for at, word in enumerate(dict.fromkeys(known))}
    tokenizer = getattr(transformers, kind)(vocab=vocab, model_max_length=24)
    tokenizer.save_pretrained(directory)
    return tokenizer


def clip(directory: Path):
    """CLIP, with its tokenizer and image processor."""
    import torch
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel

    torch.manual_seed(0)
    tokenizer = clip_tokenizer(directory)
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
             "num_attention_heads": 2}  # fmt: skip
    config = CLIPConfig(
        text_config={**tower, "vocab_size": len(tokenizer), "max_position_embeddings": 24,
                     "bos_token_id": tokenizer.bos_token_id,
                     "eos_token_id": tokenizer.eos_token_id},
        vision_config={**tower, "image_size": 32, "patch_size": 8},
        projection_dim=12,
    )  # fmt: skip
    model = CLIPModel(config).eval()
    model.save_pretrained(directory)
    CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    ).save_pretrained(directory)
    return model
