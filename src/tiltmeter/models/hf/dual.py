"""Two towers, one space: CLIP and the models with the same two methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tiltmeter.models.hf.checkpoint import Checkpoint
from tiltmeter.models.hf.pictured import Pictured
from tiltmeter.types import Array


class Dual(Pictured):
    """CLIP: the projected vectors, made unit."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        from transformers import AutoModel

        super().__init__(checkpoint, AutoModel)

    @property
    def logit_scale(self) -> float:
        return float(self.network.logit_scale.detach().exp())

    def encode_images(self, images: Any) -> Array:
        def work(pixels: Tensor) -> Tensor:
            return unit(self.network.get_image_features(pixel_values=self.normal(pixels)))

        return self.run(work, images, None)

    def encode_texts(self, texts: Sequence[str]) -> Array:
        return self.run(lambda tokens: unit(self.network.get_text_features(**tokens)), None, texts)


def unit(found: Any) -> Tensor:
    """The projected vector, of length one; transformers 5 wraps it in an output object."""
    vector = found if isinstance(found, Tensor) else found.pooler_output
    return torch.nn.functional.normalize(vector, dim=-1)
