"""JPEG files that a GPU may decode: the plain ones, of a size that the model leaves as it is.

All others, and whatever is odd about a file, are Pillow's: it knows how images are turned, what
half an image is, and how a model's processor scales one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from importlib.util import find_spec
from threading import Lock
from typing import Any

import numpy as np

START, BASELINE, SCAN, END = 0xD8, 0xC0, 0xDA, b"\xff\xd9"
#: Segments that say how to read what follows: turned (Exif) and other colours (Adobe).
ODD = (0xE1, 0xEE)


def plain_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of a baseline JPEG in three colours, whole and upright; else None.

    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (40, 30)).save(file, "JPEG")
    >>> plain_size(file.getvalue()), plain_size(file.getvalue()[:-9])
    ((40, 30), None)
    """
    if data[:2] != bytes((0xFF, START)) or data[-2:] != END:
        return None
    at, size = 2, None
    while at + 4 <= len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        if kind == SCAN:
            return size
        if kind in ODD:
            return None
        length = int.from_bytes(data[at + 2 : at + 4])
        if kind == BASELINE:
            if data[at + 4] != 8 or data[at + 9] != 3:  # bits, colours
                return None
            height, width = (int.from_bytes(data[at + 5 + i : at + 7 + i]) for i in (0, 2))
            size = (width, height)
        at += 2 + length
    return None


class KeepsSize:
    """Whether a model's processor leaves images of some size as they are; tried once a size."""

    def __init__(self, pixels: Callable[[Any], Any]) -> None:
        self.pixels = pixels
        self._try = lru_cache(maxsize=64)(self._look)

    def __call__(self, size: tuple[int, int]) -> bool:
        return max(size) <= 1024 and self._try(size)

    def _look(self, size: tuple[int, int]) -> bool:
        from PIL import Image

        noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        made = np.asarray(self.pixels([Image.fromarray(noise)])[0])
        as_is = noise.transpose(2, 0, 1) / np.float32(255)
        return made.shape == as_is.shape and bool(np.abs(made - as_is).max() < 1e-5)


def can_decode(device: str) -> bool:
    """Whether this is a GPU, with torchvision for it."""
    return device == "cuda" and find_spec("torchvision") is not None


def decode(files: Sequence[bytes], device: str, alone: Lock | None = None) -> list[Any]:
    """The images as tensors of bytes, 3 x height x width, on the device.

    The decoder works on behind the call, in memory of its own that the next call would take: so
    whoever shares it holds the lock `alone` until it is done.
    """
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-not-found]

    raw = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in files]
    with alone or nullcontext():
        found = list(decode_jpeg(raw, mode=ImageReadMode.RGB, device=device))
        torch.cuda.current_stream().synchronize()
    return found
