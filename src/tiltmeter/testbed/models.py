"""`testbed:dual`, `testbed:fusion`, `testbed:stream`: the trained networks as models.

`testbed:writer` is in `tiltmeter.testbed.writer`, since it needs the transformers library.
`?twin=fair` loads the twin that was trained in a world without bias. Images are scenes, arrays of
bytes (n x 32 x 32 x 3), PIL images, or a tensor of pixels from 0 to 1 (n x 3 x 32 x 32).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.models.network import Masked, Matching, Network
from tiltmeter.models.weights import weights_hash
from tiltmeter.results import content_hash
from tiltmeter.testbed.language import SPECIAL, encode, vocabulary
from tiltmeter.testbed.losses import Batch, losses
from tiltmeter.testbed.render import SIZE, Scenes, render
from tiltmeter.testbed.world import World
from tiltmeter.types import Array

TWINS = ("biased", "fair")
#: Embeddings of the last scenes, by weights and scenes: audits of one process share them.
_embedded: dict[tuple[str, ...], Array] = {}
MOST_EMBEDDED = 16


class Testbed(Network):
    """A trained network of the testbed."""

    __test__ = False  # not a test, although its name begins like one
    block = 256
    preprocessing = {"size": SIZE}  # noqa: RUF012

    @cached_property
    def world(self) -> World | None:
        """The world that it was trained on; None where its strength is not recorded."""
        strength = self._provenance.get("strength")
        return None if strength is None else World.plant(strength)

    def pixels(self, images: Any) -> Tensor:
        """Images as the networks take them: n x 3 x 32 x 32, from 0 to 1."""
        if isinstance(images, Scenes):
            images = render(images)
        elif not isinstance(images, np.ndarray):
            images = np.stack([_resize(image) for image in images])
        if images.dtype != np.uint8 or images.shape[1:] != (SIZE, SIZE, 3):
            raise InputError(
                f"images for {self.name} must be bytes, n x {SIZE} x {SIZE} x 3; got "
                f"{images.dtype}, {' x '.join(str(side) for side in images.shape)}"
            )
        return torch.as_tensor(images).permute(0, 3, 1, 2).float() / 255

    def tokens(self, texts: Sequence[str]) -> Tensor:
        return torch.as_tensor(encode(texts))

    def losses(
        self, images: Any, texts: Sequence[str], generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """The network's own losses on images and their captions; one word of each is masked."""
        if len(texts) < 2:
            raise InputError("losses need at least two captions: matching needs a wrong one")
        tokens = self.tokens(texts)
        chance = torch.rand(tokens.shape, generator=generator) * (tokens >= len(SPECIAL))
        masked = tokens.scatter(1, chance.argmax(dim=1)[:, None], vocabulary()["[MASK]"])
        pixels = images if isinstance(images, Tensor) else self.pixels(images)
        batch = Batch(*(x.to(self.device) for x in (pixels, tokens, masked)))
        return losses(self.network, batch, generator=generator)


class DualTestbed(Testbed):
    """A dual encoder."""

    @property
    def logit_scale(self) -> float:
        return float(self.network.log_scale.detach().exp())

    def encode_images(self, images: Any) -> Array:
        if not isinstance(images, Scenes):
            return self._embed(images)
        arrays = (to_numpy(value) for value in vars(images).values())
        key = (weights_hash(self.network), str(self.device), *map(content_hash, arrays))
        if key not in _embedded:
            _embedded[key] = self._embed(images)
            while len(_embedded) > MOST_EMBEDDED:
                _embedded.pop(next(iter(_embedded)))
        return _embedded[key].copy()

    def _embed(self, images: Any) -> Array:
        return self.run(lambda x: self.network.image_vector(self.network.see(x)), images, None)

    def encode_texts(self, texts: Sequence[str]) -> Array:
        return self.run(lambda t: self.network.text_vector(self.network.read(t)), None, texts)


class Heads(Testbed, Masked, Matching):
    """Matching and masked words."""

    mask_token, mask_id = "[MASK]", vocabulary()["[MASK]"]

    def see(self, pixels: Tensor) -> Tensor:
        return self.network.see(pixels)  # type: ignore[no-any-return]

    def match_seen(self, seen: Tensor, tokens: Tensor) -> Tensor:
        return self.network.match_seen(seen, tokens)  # type: ignore[no-any-return]

    def pieces(self, word: str) -> tuple[int, ...]:
        """Token numbers of a word's pieces: here every word is one piece."""
        return tuple(encode([word])[0][1:-1].tolist())

    def word_logits(self, pixels: Tensor | None, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.network.word_logits(pixels, tokens), tokens


class FusionTestbed(DualTestbed, Heads):
    """A dual encoder with matching and masked words."""


MODELS: dict[str, type[Testbed]] = {
    "dual": DualTestbed, "fusion": FusionTestbed, "stream": Heads
}  # fmt: skip
WRITER = "writer"


def _resize(image: Any) -> Array:
    """A PIL image, upright, in the size of the world's images."""
    from PIL import Image, ImageOps

    upright = ImageOps.exif_transpose(image).convert("RGB")
    return np.asarray(upright.resize((SIZE, SIZE), Image.Resampling.BICUBIC))
