"""JPEG files that a GPU may decode: plain ones, of a size that the model does not change.

All other files are decoded by Pillow, which handles rotation, truncated files and resizing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from importlib.util import find_spec
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

START, BASELINE, SCAN, END = 0xD8, 0xC0, 0xDA, b"\xff\xd9"
#: Segments that change how an image is read: rotation (Exif) and colour space (Adobe).
ODD = (0xE1, 0xEE)


class JpegFile(NamedTuple):
    """A plain JPEG file, as bytes, with its width and height."""

    data: bytes
    size: tuple[int, int]


def plain_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of a complete, upright baseline JPEG with three channels; otherwise None.

    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (40, 30)).save(file, "JPEG")
    >>> plain_size(file.getvalue()), plain_size(file.getvalue()[:-9])
    ((40, 30), None)
    """
    if data[:2] != bytes((0xFF, START)) or data[-2:] != END:
        return None
    position, size = 2, None
    while position + 4 <= len(data) and data[position] == 0xFF:
        kind = data[position + 1]
        if kind == SCAN:
            return size
        if kind in ODD:
            return None
        length = int.from_bytes(data[position + 2 : position + 4])
        if kind == BASELINE:
            # bits, channels; and one size only, since a decoder writes as many pixels as it reads
            if data[position + 4] != 8 or data[position + 9] != 3 or size is not None:
                return None
            height, width = (
                int.from_bytes(data[position + 5 + i : position + 7 + i]) for i in (0, 2)
            )
            size = (width, height)
        position += 2 + length
    return None


class KeepsSize:
    """Whether a model's processor leaves images of a size unchanged; tested once per size."""

    def __init__(self, pixels: Callable[[Any], Any]) -> None:
        self.pixels = pixels
        self._try = lru_cache(maxsize=64)(self._keeps)

    def __call__(self, size: tuple[int, int]) -> bool:
        return max(size) <= 1024 and self._try(size)

    def _keeps(self, size: tuple[int, int]) -> bool:
        from PIL import Image

        noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        processed = np.asarray(self.pixels([Image.fromarray(noise)])[0])
        as_is = noise.transpose(2, 0, 1) / np.float32(255)
        return processed.shape == as_is.shape and bool(np.abs(processed - as_is).max() < 1e-5)


def can_decode(device: str) -> bool:
    """Whether the device is a GPU and torchvision is installed."""
    return device == "cuda" and find_spec("torchvision") is not None


def decode(files: Sequence[bytes], device: str, alone: Lock | None = None) -> list[Any]:
    """Images as uint8 tensors, 3 x height x width, on the device.

    The decoder is asynchronous and reuses its own memory: threads that share it hold the lock
    `alone` until it is done.
    """
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-not-found]

    raw = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in files]
    with alone or nullcontext():
        images = list(decode_jpeg(raw, mode=ImageReadMode.RGB, device=device))
        torch.cuda.current_stream().synchronize()
    return images
