"""What all checkpoints of transformers with images have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tiltmeter.models.hf.checkpoint import Checkpoint
from tiltmeter.models.network import Network


class ImageNetwork(Network):
    """A network whose pixels come from the checkpoint's own image processor."""

    def __init__(self, checkpoint: Checkpoint, kind: type) -> None:
        network = checkpoint.network(kind)
        super().__init__(network, checkpoint.name, checkpoint.provenance(network))
        self.processor = checkpoint.image_processor
        self.tokenizer = checkpoint.tokenizer
        self.preprocessing = self.processor.to_dict()

    def pixels(self, images: Any) -> Tensor:
        """The processor without its last step, normalisation, which `normal` does."""
        processed = self.processor(list(images), return_tensors="pt", do_normalize=False)
        return processed["pixel_values"]  # type: ignore[no-any-return]

    def normal(self, pixels: Tensor) -> Tensor:
        """Normalise pixels from 0 to 1 as in training."""
        if not self.processor.do_normalize:
            return pixels
        mean, std = (
            torch.tensor(x, device=pixels.device, dtype=pixels.dtype)[:, None, None]
            for x in (self.processor.image_mean, self.processor.image_std)
        )
        return (pixels - mean) / std

    def tokens(self, texts: Sequence[str]) -> Any:
        return self.tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
