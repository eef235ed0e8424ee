"""`testbed:dual`, `testbed:fusion`, `testbed:stream`: the trained networks as models.

`?twin=fair` takes the twin that was trained in a world without any tilt. Images are scenes, arrays
of bytes (n x height x width x 3), PIL images, or a tensor of pixels from 0 to 1 (n x 3 x 32 x 32).
What a tensor goes into comes out as a tensor with gradients; all else comes out as NumPy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.results import file_hash
from tiltmeter.specs import Spec
from tiltmeter.testbed.language import SPECIAL, encode, vocabulary
from tiltmeter.testbed.losses import Batch, losses
from tiltmeter.testbed.networks import WEIGHTS, trained
from tiltmeter.testbed.render import SIZE, Scenes, render
from tiltmeter.types import Array

TWINS = ("biased", "fair")
BLOCK = 256  # rows at a time where no gradients are asked for


class Testbed:
    """A trained network: its name, where its weights come from, and pictures made into pixels."""

    __test__ = False  # no test, although its name begins like one
    mask_token = "[MASK]"

    def __init__(self, network: nn.Module, name: str, provenance: dict[str, Any]) -> None:
        self.network: Any = network
        self.name = name
        self.provenance = provenance

    def parameters(self) -> Iterable[Tensor]:
        return self.network.parameters()  # type: ignore[no-any-return]

    def pixels(self, images: Any) -> Tensor:
        """Pictures as the networks take them: n x 3 x 32 x 32, from 0 to 1."""
        if isinstance(images, Tensor):
            return images
        if isinstance(images, Scenes):
            images = render(images)
        elif not isinstance(images, np.ndarray):
            images = np.stack([_shrunk(image) for image in images])
        if images.dtype != np.uint8 or images.shape[1:] != (SIZE, SIZE, 3):
            raise InputError(
                f"pictures for {self.name} are bytes, n x {SIZE} x {SIZE} x 3; got {images.dtype}, "
                f"{' x '.join(str(side) for side in images.shape)}"
            )
        return torch.as_tensor(images).permute(0, 3, 1, 2).float() / 255

    def losses(
        self, images: Any, texts: Sequence[str], generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """The network's own losses on pictures and their captions; one word of each is hidden."""
        tokens = torch.as_tensor(encode(texts))
        chance = torch.rand(tokens.shape, generator=generator) * (tokens >= len(SPECIAL))
        masked = tokens.scatter(1, chance.argmax(dim=1)[:, None], vocabulary()[self.mask_token])
        return losses(self.network, Batch(self.pixels(images), tokens, masked))

    def _do(self, work: Callable[..., Tensor], images: Any, texts: Sequence[str] | None) -> Array:
        """`work` on pixels and tokens, whichever are given: in blocks, or whole with gradients."""
        given = [] if images is None else [self.pixels(images)]
        if texts is not None:
            given.append(torch.as_tensor(encode(texts)))
        if len({len(x) for x in given}) > 1:
            raise InputError(f"{len(given[0])} images beside {len(given[1])} texts: one text each")
        device = next(iter(self.parameters())).device
        if isinstance(images, Tensor):
            return work(*(x.to(device) for x in given))
        with torch.inference_mode():
            blocks = zip(*(torch.split(x, BLOCK) for x in given), strict=True)
            done = [work(*(x.to(device) for x in block)) for block in blocks]
            return torch.cat(done).cpu().numpy()


class DualTestbed(Testbed):
    """Two towers, one space."""

    @property
    def logit_scale(self) -> float:
        return float(self.network.log_scale.exp())

    def encode_images(self, images: Any) -> Array:
        return self._do(lambda x: self.network.image_vector(self.network.see(x)), images, None)

    def encode_texts(self, texts: Sequence[str]) -> Array:
        return self._do(lambda t: self.network.text_vector(self.network.read(t)), None, texts)


class Heads(Testbed):
    """Matching and masked words."""

    def match(self, images: Any, texts: Sequence[str]) -> Array:
        return self._do(self.network.match, images, texts)

    def pieces(self, word: str) -> tuple[int, ...]:
        """The numbers of a word's pieces: here every word is a piece."""
        return tuple(encode([word])[0][1:-1].tolist())

    def mask_logprobs(self, images: Any | None, texts: Sequence[str]) -> Array:
        mask, counts = (
            vocabulary()[self.mask_token],
            {text.count(self.mask_token) for text in texts},
        )
        if len(counts) != 1 or 0 in counts:
            raise InputError(
                f"every text must hold {self.mask_token}, all of them equally often; got texts "
                f"with {', '.join(str(count) for count in sorted(counts))}"
            )

        def work(*given: Tensor) -> Tensor:
            tokens = given[-1]
            logits = self.network.word_logits(given[0] if len(given) == 2 else None, tokens)
            found = logits[tokens == mask].log_softmax(dim=-1)
            return torch.unflatten(found, 0, (len(tokens), -1))

        return self._do(work, images, texts)


class FusionTestbed(DualTestbed, Heads):
    """Two towers, and words that look at the picture."""


MODELS: dict[str, type[Testbed]] = {
    "dual": DualTestbed, "fusion": FusionTestbed, "stream": Heads
}  # fmt: skip


def load(spec: Spec) -> Testbed:
    """Small trained models of the built-in world: dual, fusion, stream; ?twin=fair."""
    spec.only("twin")
    kind, twin = spec.rest or "fusion", spec.options.get("twin", "biased")
    if kind not in MODELS:
        raise UnknownNameError("model of the testbed", kind, MODELS)
    if twin not in TWINS:
        raise UnknownNameError("twin of a testbed model", twin, TWINS)
    name = kind if twin == "biased" else f"{kind}-fair"
    network = trained(name)
    config = json.loads((WEIGHTS / f"{name}.json").read_text())["config"]
    provenance = {
        "weights": file_hash(WEIGHTS / f"{name}.safetensors"),
        "strength": config["strength"],
    }
    return MODELS[kind](network, f"testbed:{name}", provenance)


def _shrunk(image: Any) -> Array:
    """A PIL image, upright, in the size of the world's pictures."""
    from PIL import Image, ImageOps

    upright = ImageOps.exif_transpose(image).convert("RGB")
    return np.asarray(upright.resize((SIZE, SIZE), Image.Resampling.BICUBIC))
