"""FLAVA: an image encoder and a text encoder, and a third encoder over both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tiltmeter.models.hf.checkpoint import Checkpoint
from tiltmeter.models.hf.dual import unit
from tiltmeter.models.hf.image_network import ImageNetwork
from tiltmeter.models.hf.text import TokenizerMasks, served
from tiltmeter.types import Array


class Flava(ImageNetwork):
    """The two encoders alone: projected embeddings of their first tokens, scaled to length 1."""

    @property
    def encoders(self) -> Any:
        return self.network

    @property
    def logit_scale(self) -> float:
        return float(self.encoders.logit_scale.detach().exp())

    def encode_images(self, images: Any) -> Array:
        def work(pixels: Tensor) -> Tensor:
            output = self.encoders.get_image_features(pixel_values=self.normal(pixels))
            return unit(output.pooler_output[:, 0])

        return self.run(work, images, None)

    def encode_texts(self, texts: Sequence[str]) -> Array:
        def work(tokens: Any) -> Tensor:
            return unit(self.encoders.get_text_features(**tokens).pooler_output[:, 0])

        return self.run(work, None, texts)


class FlavaHeads(TokenizerMasks, Flava):
    """With the heads of pretraining: matching, and masked words with an image or without."""

    @property
    def encoders(self) -> Any:
        return self.network.flava

    def match(self, images: Any, texts: Sequence[str]) -> Array:
        """The log-odds of "match", which is 1 in FLAVA's head, against "no match"."""

        def work(pixels: Tensor, tokens: Any) -> Tensor:
            logits = self.network.itm_head(self._fused(pixels, tokens))
            return logits[:, 1] - logits[:, 0]  # type: ignore[no-any-return]

        return self.run(work, images, texts)

    def word_logits(self, pixels: Tensor | None, tokens: Any) -> tuple[Tensor, Tensor]:
        ids = tokens["input_ids"]
        if pixels is None:
            return self.network.mlm_head(self.encoders.text_model(**tokens).last_hidden_state), ids
        # the image's tokens come before the text's
        fused = self._fused(pixels, tokens)[:, -ids.shape[1] :]
        return self.network.mmm_text_head(fused), ids

    def _fused(self, pixels: Tensor, tokens: Any) -> Tensor:
        output = self.encoders(pixel_values=self.normal(pixels), **tokens)
        return output.multimodal_embeddings  # type: ignore[no-any-return]


def load(checkpoint: Checkpoint) -> Flava:
    """FLAVA's encoders, with the heads of pretraining where they were saved."""
    kinds = {"FlavaForPreTraining": FlavaHeads, "FlavaModel": Flava}
    return served(checkpoint, kinds)  # type: ignore[no-any-return]
