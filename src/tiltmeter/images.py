"""Photographs on disk: found, decoded with care, and told apart by what they hold.

Whatever a file holds, one of two things comes of it: an upright RGB picture, or `Unreadable` with
the reason. Nothing outside the root is read, and no picture is decoded that claims more pixels than
any photograph has.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from tiltmeter.errors import InputError, TiltmeterError

#: More pixels than this are taken for a decompression bomb.
MOST_PIXELS = 150_000_000
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


class Unreadable(TiltmeterError):
    """A file that gives no picture."""


@dataclass(frozen=True, eq=False)
class Pictures(Sequence[Any]):
    """Picture files under a root, decoded when asked for: pictures[3] is a PIL image."""

    paths: tuple[Path, ...]
    root: Path

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> Pictures: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return Pictures(self.paths[at], self.root)
        return decode(self.paths[at])

    def __iter__(self) -> Iterator[Any]:
        return (decode(path) for path in self.paths)

    def hash(self, at: int) -> str:
        """A hash of a file's bytes: a changed picture is another picture."""
        return hashlib.sha256(self.paths[at].read_bytes()).hexdigest()


def within(root: Path, name: str) -> Path:
    """The file `name` under `root`; neither `..`, nor an absolute path, nor a link leads out.

    >>> within(Path("/data"), "../etc/passwd")
    Traceback (most recent call last):
    ...
    tiltmeter.errors.InputError: '../etc/passwd' leads out of /data: ...
    """
    path = (root / name).resolve()
    if not path.is_relative_to(root.resolve()):
        raise InputError(f"{name!r} leads out of {root}: images must lie under their root")
    return path


def decode(path: Path) -> Any:
    """The picture of a file, upright and RGB; of an animation, its first frame."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters is raised or reported by us
            with Image.open(path) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise Unreadable(
                        f"{path}: {image.width:,} x {image.height:,} pixels, more than the "
                        f"{MOST_PIXELS:,} that are read"
                    )
                return ImageOps.exif_transpose(_eight_bits(image)).convert("RGB")
    except Unreadable:
        raise
    except FileNotFoundError:
        raise Unreadable(f"{path}: no such file") from None
    except Exception as error:  # Pillow's decoders raise whatever they like
        raise Unreadable(f"{path}: {type(error).__name__}: {error}") from error


def _eight_bits(image: Any) -> Any:
    """Deep grey pictures scaled to 8 bits: Pillow alone would cut off what is brighter."""
    if image.mode not in ("I", "I;16", "I;16B", "I;16L", "F"):
        return image
    import numpy as np
    from PIL import Image

    deep = np.asarray(image, dtype=np.float64)
    top = 65535.0 if image.mode.startswith("I") else max(float(deep.max()), 1.0)
    return Image.fromarray((np.clip(deep / top, 0, 1) * 255).round().astype(np.uint8))
