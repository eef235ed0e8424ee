"""Dual encoders: CLIP and the models with the same two methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tiltmeter.errors import InputError
from tiltmeter.models.hf.checkpoint import Checkpoint
from tiltmeter.models.hf.image_network import ImageNetwork
from tiltmeter.types import Array


class Dual(ImageNetwork):
    """CLIP, MetaCLIP 2, AltCLIP, Chinese-CLIP: the projected embeddings, scaled to length 1."""

    padding: bool | str = True  # to the longest text of a block

    def __init__(self, checkpoint: Checkpoint) -> None:
        from transformers import AutoModel

        super().__init__(checkpoint, AutoModel)

    @property
    def logit_scale(self) -> float:
        return float(self.network.logit_scale.detach().exp())

    @property
    def max_length(self) -> int:
        """Most tokens of a text: some tokenizers have no limit, but networks do."""
        places: int = self.network.config.text_config.max_position_embeddings
        return min(places, int(self.tokenizer.model_max_length))

    def tokens(self, texts: Sequence[str]) -> Any:
        return self.tokenizer(
            list(texts),
            padding=self.padding,
            truncation=True,
            max_length=self.max_length,
            return_tensors="pt",
        )

    def image_inputs(self, pixels: Tensor) -> dict[str, Tensor]:
        """Pixels from 0 to 1 as the network takes them."""
        return {"pixel_values": self.normal(pixels)}

    def encode_images(self, images: Any) -> Array:
        def work(pixels: Tensor) -> Tensor:
            return unit(self.network.get_image_features(**self.image_inputs(pixels)))

        return self.run(work, images, None)

    def encode_texts(self, texts: Sequence[str]) -> Array:
        return self.run(lambda tokens: unit(self.network.get_text_features(**tokens)), None, texts)


class Align(Dual):
    """ALIGN: similarities are divided by a temperature, and pixels range from -1 to 1."""

    padding = "max_length"

    @property
    def logit_scale(self) -> float:
        return 1 / float(self.network.temperature.detach())

    @property
    def max_length(self) -> int:
        return min(64, super().max_length)  # 64: as in its own processor

    def pixels(self, images: Any) -> Tensor:
        processed = self.processor(
            list(images), return_tensors="pt", do_normalize=False, include_top=False,
            rescale_factor=1 / 255, rescale_offset=False,
        )  # fmt: skip
        return processed["pixel_values"]  # type: ignore[no-any-return]

    def normal(self, pixels: Tensor) -> Tensor:
        """The steps of EfficientNet's processor: scale, shift, and normalise up to twice."""
        pixels = pixels * (255 * self.processor.rescale_factor)
        pixels = super().normal(pixels - 1 if self.processor.rescale_offset else pixels)
        if not self.processor.include_top:
            return pixels
        return pixels / pixels.new_tensor(self.processor.image_std)[:, None, None]


class Siglip(Dual):
    """SigLIP, and SigLIP 2 of a fixed size: texts are lower-cased, and padded to full length."""

    padding = "max_length"  # the embedding is read at the last position

    @property
    def logit_bias(self) -> float:
        return float(self.network.logit_bias.detach())

    def tokens(self, texts: Sequence[str]) -> Any:
        # SigLIP 2 was trained on lower case; its tokenizer, Gemma's, keeps capitals
        lower = getattr(self.tokenizer, "do_lower_case", True)
        return super().tokens([text.lower() for text in texts] if lower else texts)


class Naflex(Siglip):
    """SigLIP 2 for images of any shape, which are cut into patches.

    Images of different shapes fit into one tensor of `pixels`: a row is the patches of an image,
    each with two marks after its values: 1 where there is a patch, and 1 where a line begins.
    Tensors of plain pixels, n x 3 x height x width, are accepted as well.
    """

    def pixels(self, images: Any) -> Tensor:
        processed = self.processor(list(images), return_tensors="pt", do_normalize=False)
        return marked(processed["pixel_values"], processed["spatial_shapes"])

    def image_inputs(self, pixels: Tensor) -> dict[str, Tensor]:
        if pixels.ndim == 4:
            pixels = cut(pixels, self.network.config.vision_config.patch_size)
        patches, here, begins = pixels[..., :-2], pixels[..., -2], pixels[..., -1]
        high = begins.sum(dim=1)
        shapes = torch.stack([high, here.sum(dim=1) / high], dim=1).round().long()
        colours = torch.unflatten(patches, -1, (-1, 3)).mT[..., None]  # as `normal` takes them
        normal = self.normal(colours)[..., 0].mT.flatten(-2)
        return {
            "pixel_values": normal * here[..., None],
            "pixel_attention_mask": here.round().long(),
            "spatial_shapes": shapes,
        }


def cut(pixels: Tensor, side: int) -> Tensor:
    """Plain pixels as rows of marked patches."""
    count, colours, height, width = pixels.shape
    if height % side or width % side:
        raise InputError(
            f"pixels of {height} x {width} cannot be cut into patches of {side} x {side}: "
            f"both sides must be multiples of {side}"
        )
    high, wide = height // side, width // side
    blocks = pixels.reshape(count, colours, high, side, wide, side)
    patches = blocks.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
    return marked(patches, torch.tensor([[high, wide]] * count))


def marked(patches: Tensor, shapes: Tensor) -> Tensor:
    """Patches with their two marks, from the number of lines and of patches per line."""
    shapes = shapes.to(patches.device)
    place = torch.arange(patches.shape[1], device=patches.device)
    here = place < shapes.prod(dim=1, keepdim=True)
    begins = here & (place % shapes[:, 1:] == 0)
    return torch.cat([patches, here[..., None], begins[..., None]], dim=-1)


def unit(output: Any) -> Tensor:
    """The projected embedding, scaled to length 1; transformers 5 wraps it in an output object."""
    vector = output if isinstance(output, Tensor) else output.pooler_output
    return torch.nn.functional.normalize(vector, dim=-1)
