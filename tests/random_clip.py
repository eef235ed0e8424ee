"""A small CLIP of the real class whose weights are random: it knows every letter, and nothing."""

from __future__ import annotations

import string
from pathlib import Path


def random_clip(place: Path | str, *, seed: int = 0) -> Path:
    """Saves it as its library does; returns the directory."""
    import torch
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

    place = Path(place)
    letters = [*string.ascii_lowercase, "-"]
    tokens = [*letters, *(f"{one}</w>" for one in letters), "<|startoftext|>", "<|endoftext|>"]
    vocab = {one: at for at, one in enumerate(tokens)}
    tokenizer = CLIPTokenizer(vocab=vocab, merges=[], model_max_length=77)
    tokenizer.save_pretrained(place)
    tower = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4,
             "num_attention_heads": 4}  # fmt: skip
    torch.manual_seed(seed)
    config = CLIPConfig(
        text_config={**tower, "vocab_size": len(tokens), "max_position_embeddings": 77,
                     "bos_token_id": tokenizer.bos_token_id,
                     "eos_token_id": tokenizer.eos_token_id},
        vision_config={**tower, "image_size": 64, "patch_size": 16},
        projection_dim=64,
    )  # fmt: skip
    CLIPModel(config).save_pretrained(place)
    CLIPImageProcessorPil(
        size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64}
    ).save_pretrained(place)
    return place
