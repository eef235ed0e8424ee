"""A dual encoder of a user's own: a small random BERT, mean pooling, and a projection."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tests.models import tiny_dual

WIDTH, D = 16, 12
WORDS = ("a", "photo", "of", "good", "person", "this", "is", "kind", "lawful", "individual")


class BertTower:
    """Loaded by `python:tests/debiasers/bert_tower.py:BertTower`."""

    logit_scale, max_length = 20.0, 24

    def __init__(self, seed: str = "0") -> None:
        from transformers import BertConfig, BertModel

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(seed))
            self.tokenizer = tiny_dual.bert_tokenizer(words=WORDS)
            sizes = {**tiny_dual.TOWER, "vocab_size": len(self.tokenizer)}
            self.text = BertModel(BertConfig(**sizes, max_position_embeddings=24))
            self.head = torch.nn.Linear(WIDTH, D)
        tiny_dual.shake(self.text)

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        tokens = self.tokenizer(list(texts), padding=True, return_tensors="pt")
        with torch.inference_mode():  # no gradients: input embeddings are the only way in
            words = self.word_embeddings()(tokens["input_ids"])
            return self.encode_embeddings(words, tokens["attention_mask"]).numpy()

    def encode_images(self, images: object) -> np.ndarray:
        return np.asarray(images)

    def word_embeddings(self) -> torch.nn.Embedding:
        return self.text.get_input_embeddings()

    def encode_embeddings(self, embeddings: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.text(inputs_embeds=embeddings, attention_mask=mask).last_hidden_state
        shown = mask[..., None].float()
        vectors = self.head((hidden * shown).sum(1) / shown.sum(1))
        return vectors / vectors.norm(dim=-1, keepdim=True)


class Bare:
    """A model without the two methods."""

    logit_scale, max_length = 20.0, 24

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        return np.ones((len(texts), D))
