"""Small copies of images, made again: neither the file is sent nor what may be hidden in it."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import numpy as np

from tiltmeter.errors import TiltmeterError

SIDE = 144  # pixels of the longer side
KEPT = 4096  # thumbnails in memory, of some kilobytes each
JPEG, PNG = "image/jpeg", "image/png"


class Thumbnails:
    """Small copies of the images of a dataset, by row."""

    def __init__(self, images: Any) -> None:
        self.images = images
        self.get = lru_cache(KEPT)(self._get)

    def __len__(self) -> int:
        return len(self.images)

    def _get(self, row: int) -> tuple[bytes, str] | None:
        """Bytes and their kind; None where there is no such image, or none that can be read."""
        from PIL import Image

        if not 0 <= row < len(self):
            return None
        try:
            picture = _picture(self.images, row)
        except (TiltmeterError, OSError):
            return None
        small = max(picture.size) < SIDE  # drawn pixels stay pixels
        if small:
            times = SIDE // max(picture.size)
            picture = picture.resize((picture.width * times, picture.height * times), 0)
        else:
            picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        clean = Image.new("RGB", picture.size)  # pixels alone: no EXIF, no colour profile
        clean.paste(picture)
        out = io.BytesIO()
        clean.save(out, "PNG" if small else "JPEG", **({} if small else {"quality": 82}))
        return out.getvalue(), PNG if small else JPEG


def _picture(images: Any, row: int) -> Any:
    """One image of whatever a dataset has: files, figures of the testbed, arrays of bytes."""
    from PIL import Image

    from tiltmeter.testbed.render import Scenes, render

    if isinstance(images, Scenes):
        return Image.fromarray(np.asarray(render(images[row : row + 1])[0]))
    one = images[row]
    if isinstance(one, np.ndarray):
        return Image.fromarray(one)
    return one.convert("RGB")
