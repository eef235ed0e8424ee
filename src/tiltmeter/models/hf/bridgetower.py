"""BridgeTower: two encoders, and bridges from their upper layers into a third one.

The contrastive head uses the two encoders before any bridge, so an image embedding does not depend
on a text. Several released checkpoints have more than one head; the first name under
`architectures` in their config.json decides which is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tiltmeter.errors import InputError
from tiltmeter.models.hf.checkpoint import Checkpoint
from tiltmeter.models.hf.dual import unit
from tiltmeter.models.hf.image_network import ImageNetwork
from tiltmeter.models.hf.text import TokenizerMasks, served
from tiltmeter.types import Array


class BridgeTowerWords(TokenizerMasks, ImageNetwork):
    """Masked words, always with an image: the bridges need one."""

    def word_logits(self, pixels: Tensor | None, tokens: Any) -> tuple[Tensor, Tensor]:
        if pixels is None:
            raise InputError(
                f"{self.name} is a BridgeTower, which cannot read without an image: give one "
                "image per text, such as a white one"
            )
        output = self.network(pixel_values=self.normal(pixels), **tokens)
        return output.logits, tokens["input_ids"]


class BridgeTowerMatch(ImageNetwork):
    """Matching: the log-odds of "match", which is 1 in its head, against "no match"."""

    def match(self, images: Any, texts: Sequence[str]) -> Array:
        def work(pixels: Tensor, tokens: Any) -> Tensor:
            logits = self.network(pixel_values=self.normal(pixels), **tokens).logits
            return logits[:, 1] - logits[:, 0]  # type: ignore[no-any-return]

        return self.run(work, images, texts)


class BridgeTowerDual(ImageNetwork):
    """The contrastive embeddings of image and text; the third one, of both, is not used."""

    @property
    def logit_scale(self) -> float:
        return float(self.network.logit_scale.detach().exp())

    def encode_images(self, images: Any) -> Array:
        encoders = self.network.bridgetower
        vision = encoders.vision_model.visual

        def work(pixels: Tensor) -> Tensor:
            state = vision.forward_pre(self.normal(pixels))
            # the library runs both encoders in step: as many layers as the text has
            for layer in vision.transformer.resblocks[: len(encoders.text_model.encoder.layer)]:
                state = layer(state)
            first = encoders.cross_modal_image_transform(vision.forward_post(state))[:, 0]
            kind = encoders.token_type_embeddings.weight[1]
            return unit(self.network.itc_image_head(first + kind))

        return self.run(work, images, None)

    def encode_texts(self, texts: Sequence[str]) -> Array:
        def work(tokens: Any) -> Tensor:
            state = self.network.bridgetower.text_model(**tokens).last_hidden_state
            return unit(self.network.itc_text_head(state[:, 0]))

        return self.run(work, None, texts)


def load(checkpoint: Checkpoint) -> ImageNetwork:
    """BridgeTower with the head for masked words, for matching, or for contrast."""
    kinds = {
        "BridgeTowerForMaskedLM": BridgeTowerWords,
        "BridgeTowerForImageAndTextRetrieval": BridgeTowerMatch,
        "BridgeTowerForContrastiveLearning": BridgeTowerDual,
    }
    return served(checkpoint, kinds)  # type: ignore[no-any-return]
