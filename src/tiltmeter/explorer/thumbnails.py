"""Thumbnails of images; re-encoded, so that no metadata of the files is sent."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import numpy as np

from tiltmeter.errors import TiltmeterError

SIDE = 144  # pixels of the longer side
MAX_CACHED = 4096  # thumbnails in memory, a few kilobytes each
JPEG, PNG = "image/jpeg", "image/png"


class Thumbnails:
    """Thumbnails of the images of a dataset, by row."""

    def __init__(self, images: Any) -> None:
        self.images = images
        self.get = lru_cache(MAX_CACHED)(self._get)

    def __len__(self) -> int:
        return len(self.images)

    def _get(self, row: int) -> tuple[bytes, str] | None:
        """Bytes and media type; None if there is no such image, or if it is unreadable."""
        from PIL import Image

        if not 0 <= row < len(self):
            return None
        try:
            image = _load_image(self.images, row)
        except (TiltmeterError, OSError):
            return None
        small = max(image.size) < SIDE  # small generated images are enlarged without smoothing
        if small:
            times = SIDE // max(image.size)
            image = image.resize((image.width * times, image.height * times), 0)
        else:
            image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        clean = Image.new("RGB", image.size)  # pixels only: no EXIF, no colour profile
        clean.paste(image)
        out = io.BytesIO()
        clean.save(out, "PNG" if small else "JPEG", **({} if small else {"quality": 82}))
        return out.getvalue(), PNG if small else JPEG


def _load_image(images: Any, row: int) -> Any:
    """One image of a dataset, from files, testbed scenes or arrays."""
    from PIL import Image

    from tiltmeter.testbed.render import Scenes, render

    if isinstance(images, Scenes):
        return Image.fromarray(np.asarray(render(images[row : row + 1])[0]))
    image = images[row]
    if isinstance(image, np.ndarray):
        return Image.fromarray(image)
    return image.convert("RGB")
