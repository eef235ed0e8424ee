"""BLIP and BLIP-2: contrastive embeddings, and a head for matching images and texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from tiltmeter.errors import UnknownNameError
from tiltmeter.models.hf.checkpoint import Checkpoint
from tiltmeter.models.hf.image_network import ImageNetwork
from tiltmeter.models.network import Matching
from tiltmeter.types import Array

#: Heads that score a pair of image and text.
HEADS = ("itm", "itc")


class BlipBase(ImageNetwork, Matching):
    """What both have in common: the library scores their contrast by the plain cosine.

    There is no `logit_scale`: the published checkpoints do not contain the trained temperature.
    """

    def see(self, pixels: Tensor) -> Tensor:
        """The vision encoder's states of images, one per patch."""
        output = self.network.vision_model(pixel_values=self.normal(pixels))
        return output.last_hidden_state  # type: ignore[no-any-return]


class Blip(BlipBase):
    """BLIP: unit embeddings from its two projections, and its matching head."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        from transformers import BlipForImageTextRetrieval

        super().__init__(checkpoint, BlipForImageTextRetrieval)

    def read(self, tokens: Any, seen: Tensor | None = None) -> Tensor:
        """Each text's first state, read alone or attending to what is seen."""
        output = self.network.text_encoder(
            input_ids=tokens["input_ids"],
            attention_mask=tokens["attention_mask"],
            encoder_hidden_states=seen,
        )
        return output.last_hidden_state[:, 0]  # type: ignore[no-any-return]

    def encode_images(self, images: Any) -> Array:
        def work(pixels: Tensor) -> Tensor:
            return normalize(self.network.vision_proj(self.see(pixels)[:, 0]), dim=-1)

        return self.run(work, images, None)

    def encode_texts(self, texts: Sequence[str]) -> Array:
        def work(tokens: Any) -> Tensor:
            return normalize(self.network.text_proj(self.read(tokens)), dim=-1)

        return self.run(work, None, texts)

    def match_seen(self, seen: Tensor, tokens: Any) -> Tensor:
        """The logit of a match minus the logit of no match."""
        return odds(self.network.itm_head(self.read(tokens, seen)))


class Blip2(BlipBase):
    """BLIP-2: a matcher, by its matching head or by its contrast.

    It is no dual encoder: an image has one unit vector per query token (32 in the published
    checkpoints), and a text is compared with the closest one. No single vector of an image has
    those similarities, so there is no `encode_images`, but `image_vectors`.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        from transformers import Blip2ForImageTextRetrieval

        super().__init__(checkpoint, Blip2ForImageTextRetrieval)

    def match(self, images: Any, texts: Sequence[str], head: str = "itm") -> Array:
        """`itm`: the logit of a match minus that of no match; `itc`: the largest cosine."""
        if head not in HEADS:
            raise UnknownNameError("head of BLIP-2", head, HEADS)
        if head == "itc":
            return self.run(self.contrasted, images, texts)
        return super().match(images, texts)

    def match_seen(self, seen: Tensor, tokens: Any) -> Tensor:
        """Queries and text attend to the image together; the head's logits are averaged."""
        queries = self.queries(len(seen))
        states = self.network.qformer(
            query_embeds=self.network.embeddings(tokens["input_ids"], query_embeds=queries),
            query_length=queries.shape[1],
            attention_mask=pad(tokens["attention_mask"], (queries.shape[1], 0), value=1),
            encoder_hidden_states=seen,
        ).last_hidden_state
        return odds(self.network.itm_head(states[:, : queries.shape[1]]).mean(dim=1))

    def contrasted(self, pixels: Tensor, tokens: Any) -> Tensor:
        """The cosine of the text and the closest query of the image."""
        images, texts = self.projected_queries(pixels), self.projected_text(tokens)
        return torch.einsum("nqd,nd->nq", images, texts).amax(dim=1)

    def image_vectors(self, images: Any) -> Array:
        """One unit vector per query token: images x queries x dimensions."""
        return self.run(self.projected_queries, images, None)

    def text_vectors(self, texts: Sequence[str]) -> Array:
        """Unit vectors of texts, to compare with the closest of `image_vectors`."""
        return self.run(self.projected_text, None, texts)

    def projected_queries(self, pixels: Tensor) -> Tensor:
        """Queries attend to the image; no text is there."""
        seen = self.network.qformer(
            query_embeds=self.queries(len(pixels)), encoder_hidden_states=self.see(pixels)
        ).last_hidden_state
        return normalize(self.network.vision_projection(seen), dim=-1)

    def projected_text(self, tokens: Any) -> Tensor:
        """The text is read alone."""
        read = self.network.qformer(
            query_embeds=self.network.embeddings(tokens["input_ids"]),
            query_length=0,
            attention_mask=tokens["attention_mask"],
        ).last_hidden_state[:, 0]
        return normalize(self.network.text_projection(read), dim=-1)

    def queries(self, count: int) -> Tensor:
        return self.network.query_tokens.expand(count, -1, -1)  # type: ignore[no-any-return]


def load_blip2(checkpoint: Checkpoint) -> Any:
    """BLIP-2 as it was saved: with the heads for retrieval, or with a language model."""
    if checkpoint.architecture == "Blip2ForConditionalGeneration":
        from tiltmeter.models.hf.generative import Blip2Writer

        return Blip2Writer(checkpoint)
    return Blip2(checkpoint)


def odds(logits: Tensor) -> Tensor:
    """Two logits, no match and match, as the log-odds of a match."""
    return logits[..., 1] - logits[..., 0]
