"""How near embedding comes to the bare forward pass: `python -m benchmarks.embed [MODEL] ...`.

A vision transformer of CLIP's sizes with random weights; 224 x 224 JPEG files made on the spot.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from tiltmeter.engine.local import Pace, embed
from tiltmeter.images import Pictures
from tiltmeter.models.network import Network

SIZES = {
    "B/32": {"patch_size": 32},
    "L/14": {"patch_size": 14, "hidden_size": 1024, "intermediate_size": 4096,
             "num_hidden_layers": 24, "num_attention_heads": 16, "projection_dim": 768},
}  # fmt: skip


class Tower(Network):
    """CLIP's image tower with random weights."""

    def __init__(self, name: str) -> None:
        from transformers import (
            CLIPImageProcessorPil,
            CLIPVisionConfig,
            CLIPVisionModelWithProjection,
        )

        torch.manual_seed(0)
        super().__init__(CLIPVisionModelWithProjection(CLIPVisionConfig(**SIZES[name])), name, {})
        self.processor = CLIPImageProcessorPil()

    def pixels(self, images: Any) -> Tensor:
        return self.processor(list(images), return_tensors="pt", do_normalize=False)["pixel_values"]

    def encode_images(self, images: Any) -> Any:
        return self.run(lambda x: self.network(pixel_values=x).image_embeds, images, None)


def photographs(root: Path, count: int) -> Pictures:
    """JPEG files of blurred noise, of about the size of a photograph's."""
    rng = np.random.default_rng(0)
    different = []
    for _ in range(64):
        noise = Image.fromarray(rng.integers(0, 256, (224, 224, 3), dtype=np.uint8))
        different.append(noise.filter(ImageFilter.GaussianBlur(1.5)))
    for at in range(count):
        picture = different[at % 64].copy()
        picture.putpixel((0, 0), (at % 256, at // 256 % 256, at // 65536))
        picture.save(root / f"{at:06d}.jpg", quality=92)
    return Pictures(tuple(sorted(root.glob("*.jpg"))), root)


def bare(tower: Tower, count: int, batch: int, device: str) -> float:
    """Pictures a second of the forward pass alone, on tensors that lie on the device."""
    pixels = torch.rand(batch, 3, 224, 224, device=device)
    rounds = max(1, count // batch)
    with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        for turn in range(rounds + 2):
            if turn == 2:  # two to warm up
                _wait(device)
                started = time.perf_counter()
            tower.encode_images(pixels)
        _wait(device)
    return rounds * batch / (time.perf_counter() - started)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["B/32"], help=", ".join(SIZES))
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int)
    given = parser.parse_args(arguments)
    pace = Pace(workers=given.workers)
    batch, workers = pace.batch_on(given.device), pace.workers_on(given.device)
    with tempfile.TemporaryDirectory() as folder:
        pictures = photographs(Path(folder), given.images)
        for name in given.models:
            tower = Tower(name).to(given.device)
            alone = bare(tower, given.images, batch, given.device)
            list(embed(tower, pictures[:64], pace=pace))  # warm
            started = time.perf_counter()
            for _ in embed(tower, pictures, pace=pace):
                pass
            rate = given.images / (time.perf_counter() - started)
            # before and after: machines have moods
            alone = max(alone, bare(tower, given.images, batch, given.device))
            print(
                f"ViT-{name} on {given.device}: bare forward pass {alone:,.1f} images/s; from "
                f"{given.images:,} JPEG files {rate:,.1f} images/s ({rate / alone:.0%}), batch "
                f"{batch}, {workers} workers",
                flush=True,
            )


if __name__ == "__main__":
    main()
