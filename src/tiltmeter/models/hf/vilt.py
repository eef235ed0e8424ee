"""ViLT: one stream of words and patches.

Its processor keeps the shape of each image, and where shapes differ it pads to one size, with a
mask. `pixels` does the same: n x 3 x height x width, and where there is padding a fourth channel,
the mask, 1 for image and 0 for padding. The mask is rounded when it is read, so neither a gradient
nor noise changes it. A single image has no padding and no fourth channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tiltmeter.models.hf.checkpoint import Checkpoint
from tiltmeter.models.hf.image_network import ImageNetwork
from tiltmeter.models.hf.text import TokenizerMasks, served
from tiltmeter.types import Array


class Vilt(ImageNetwork):
    """What both heads share: images of any shape, and one pass over both."""

    def pixels(self, images: Any) -> Tensor:
        """Pixels from 0 to 1; a fourth channel marks the image, where some of it is padding."""
        processed = self.processor(
            list(images), return_tensors="pt", do_normalize=False, do_pad=True
        )
        pixels, mask = processed["pixel_values"], processed["pixel_mask"]
        return pixels if mask.all() else torch.cat([pixels, mask[:, None]], dim=1)

    def see(self, pixels: Tensor | None, tokens: Any) -> Any:
        """The library's own pass; without an image there are no patches at all."""
        if pixels is None:
            none = torch.zeros(len(tokens["input_ids"]), 0, device=self.device)
            width = self.network.config.hidden_size
            shown = {"pixel_mask": none, "image_embeds": none[..., None].expand(-1, -1, width)}
        else:
            shown = {"pixel_values": self.normal(pixels[:, :3])}
            if pixels.shape[1] == 4:
                shown["pixel_mask"] = pixels[:, 3].round().long()
        with _same_order():
            return self.network(**tokens, **shown)


class ViltWords(TokenizerMasks, Vilt):
    """Masked words with patches, or without: the stream then contains the text alone."""

    def word_logits(self, pixels: Tensor | None, tokens: Any) -> tuple[Tensor, Tensor]:
        return self.see(pixels, tokens).logits, tokens["input_ids"]


class ViltMatch(Vilt):
    """Retrieval: a single logit, high where image and text belong together."""

    def match(self, images: Any, texts: Sequence[str]) -> Array:
        return self.run(lambda pixels, tokens: self.see(pixels, tokens).logits[:, 0], images, texts)


def load(checkpoint: Checkpoint) -> Vilt:
    """ViLT with the head for masked words, or with the one for retrieval."""
    kinds = {"ViltForMaskedLM": ViltWords, "ViltForImageAndTextRetrieval": ViltMatch}
    return served(checkpoint, kinds)  # type: ignore[no-any-return]


@contextmanager
def _same_order() -> Iterator[None]:
    """ViLT shuffles its patches: here always the same way, keeping torch's random state."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield
