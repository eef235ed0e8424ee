"""Small random checkpoints of the classes that see and read at once, and of those that only read.

Each builder saves one with its tokenizer and image processor, and gives back the library's model
with the library's way of making its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.models import tiny

SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 2}  # fmt: skip
SENTENCES = ["a photo of a nurse", "the nurse is smart", "a man is a doctor", "the woman in it"]
DIMENSIONS, COUNT = 12, 5  # of a region, and regions a picture


@dataclass
class Built:
    """The library's model, and its inputs made of texts and images by the library's own means."""

    library: Any
    inputs: Callable[[list[str], Any], Any]


def regions(count: int = 3, dimensions: int = DIMENSIONS) -> tuple[np.ndarray, np.ndarray]:
    """Features as a detector has them, none below 0, and boxes."""
    rng = np.random.default_rng(0)
    features = rng.exponential(size=(count, COUNT, dimensions)).astype(np.float32)
    corner, size = rng.uniform(0, 0.5, (2, count, COUNT, 2))
    return features, np.concatenate([corner, corner + size], axis=-1).astype(np.float32)


def roberta_tokenizer(directory: Path) -> Any:
    """Byte-level pairs learnt from a few sentences; the mask takes the space before it, as in
    the tokenizer that RoBERTa was released with."""
    from tokenizers import ByteLevelBPETokenizer

    learnt = ByteLevelBPETokenizer()
    learnt.train_from_iterator(
        SENTENCES, vocab_size=320, min_frequency=1, show_progress=False,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    )  # fmt: skip
    learnt.save_model(str(directory))
    mask = transformers.AddedToken("<mask>", lstrip=True, special=True, normalized=False)
    pairs = (directory / "merges.txt").read_text().splitlines()[1:]
    tokenizer = transformers.RobertaTokenizer(
        vocab=learnt.get_vocab(), merges=[tuple(pair.split()) for pair in pairs],
        mask_token=mask, model_max_length=24,
    )  # fmt: skip
    tokenizer.save_pretrained(directory)
    return tokenizer


def saved(model: Any, directory: Path) -> Any:
    """The model with every weight moved: small ones and zeros would hide what is left out."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            width = weight.shape[-1] if weight.ndim else 16
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=width**-0.5)
    model.eval().save_pretrained(directory)
    return model


def pictured(model: Any, directory: Path, processor: Any) -> Built:
    processor.image_processor.save_pretrained(directory)

    def inputs(texts: list[str], images: Any) -> Any:
        shown = {} if images is None else {"images": images}
        made = processor(text=texts, padding=True, return_tensors="pt", **shown)
        if images is None and isinstance(processor, transformers.ViltProcessor):
            made["image_embeds"] = torch.zeros(len(texts), 0, SMALL["hidden_size"])  # no patches
            made["pixel_mask"] = torch.zeros(len(texts), 0)
        return made

    return Built(saved(model, directory), inputs)


def vilt(directory: Path, kind: str = "ViltForMaskedLM") -> Built:
    tokenizer = tiny.bert_tokenizer(directory)
    config = transformers.ViltConfig(
        **SMALL, vocab_size=len(tokenizer), max_position_embeddings=24, image_size=32, patch_size=8
    )
    images = transformers.ViltImageProcessorPil(size={"shortest_edge": 32}, size_divisor=8)
    processor = transformers.ViltProcessor(images, tokenizer)
    return pictured(getattr(transformers, kind)(config), directory, processor)


def flava(directory: Path, kind: str = "FlavaForPreTraining") -> Built:
    tokenizer = tiny.bert_tokenizer(directory)
    text = {**SMALL, "vocab_size": len(tokenizer), "max_position_embeddings": 24}
    image = {**SMALL, "vocab_size": 9, "image_size": 32, "patch_size": 8}
    config = transformers.FlavaConfig(
        text_config=text, image_config=image, multimodal_config=SMALL, hidden_size=16,
        projection_dim=12, init_codebook=False,
    )  # fmt: skip
    size = {"height": 32, "width": 32}
    images = transformers.FlavaImageProcessorPil(size=size, crop_size=size)
    processor = transformers.FlavaProcessor(images, tokenizer)
    return pictured(getattr(transformers, kind)(config), directory, processor)


def bridgetower(directory: Path, kind: str = "BridgeTowerForMaskedLM") -> Built:
    tokenizer = roberta_tokenizer(directory)
    # the heads of the eye are its width over 64, so that it cannot be narrower
    wide = {**SMALL, "hidden_size": 64, "num_hidden_layers": 3}
    config = transformers.BridgeTowerConfig(
        text_config={**wide, "vocab_size": len(tokenizer), "max_position_embeddings": 40},
        vision_config={"hidden_size": 64, "num_hidden_layers": 3, "image_size": 32,
                       "patch_size": 8},
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, contrastive_hidden_size=12,
        logit_scale_init_value=2.6,
    )  # fmt: skip
    images = transformers.BridgeTowerImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"shortest_edge": 32}, size_divisor=8
    )
    processor = transformers.BridgeTowerProcessor(images, tokenizer)
    return pictured(getattr(transformers, kind)(config), directory, processor)


def visual_bert(directory: Path, dimensions: int = DIMENSIONS) -> Built:
    tokenizer = tiny.bert_tokenizer(directory)
    config = transformers.VisualBertConfig(
        **SMALL, vocab_size=len(tokenizer), max_position_embeddings=24,
        visual_embedding_dim=dimensions, pad_token_id=0,
    )  # fmt: skip

    def inputs(texts: list[str], images: Any) -> Any:
        made = tokenizer(texts, padding=True, return_tensors="pt")
        if images is not None:
            made["visual_embeds"] = torch.as_tensor(images.features)
            made["visual_attention_mask"] = torch.ones(made["visual_embeds"].shape[:-1])
            made["visual_token_type_ids"] = torch.ones(images.features.shape[:-1], dtype=torch.long)
        return made

    return Built(saved(transformers.VisualBertForPreTraining(config), directory), inputs)


def lxmert(directory: Path, dimensions: int = DIMENSIONS) -> Built:
    tokenizer = tiny.bert_tokenizer(directory, "LxmertTokenizer")
    config = transformers.LxmertConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_attention_heads=2,
        l_layers=2, x_layers=2, r_layers=1, max_position_embeddings=24, num_qa_labels=3,
        num_object_labels=3, num_attr_labels=3, visual_feat_dim=dimensions,
    )  # fmt: skip

    def inputs(texts: list[str], images: Any) -> Any:
        made = tokenizer(texts, padding=True, return_tensors="pt")
        made["visual_feats"] = torch.as_tensor(images.features)
        made["visual_pos"] = torch.as_tensor(images.boxes)
        return made

    return Built(saved(transformers.LxmertForPreTraining(config), directory), inputs)


def bert(directory: Path, kind: str = "BertForMaskedLM") -> Built:
    tokenizer = tiny.bert_tokenizer(directory)
    config = transformers.BertConfig(**SMALL, vocab_size=len(tokenizer), max_position_embeddings=24)
    model = saved(getattr(transformers, kind)(config), directory)
    return Built(model, lambda texts, _: tokenizer(texts, padding=True, return_tensors="pt"))


def roberta(directory: Path) -> Built:
    tokenizer = roberta_tokenizer(directory)
    config = transformers.RobertaConfig(
        **SMALL, vocab_size=len(tokenizer), max_position_embeddings=40, pad_token_id=1
    )
    model = saved(transformers.RobertaForMaskedLM(config), directory)
    return Built(model, lambda texts, _: tokenizer(texts, padding=True, return_tensors="pt"))
