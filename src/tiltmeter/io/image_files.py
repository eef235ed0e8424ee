"""Photographs on disk: found, decoded with care, and told apart by what they hold.

Whatever a file holds, one of two things comes of it: an upright RGB picture, or `Unreadable` with
the reason. Nothing outside the root is read, and no picture is decoded that claims more pixels than
any photograph has.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, overload

import numpy as np

from tiltmeter.errors import InputError, TiltmeterError

#: More pixels than this are taken for a decompression bomb.
MOST_PIXELS = 150_000_000
#: A side more than so many times the other is a strip: scaled up for a model it would fill memory.
LONGEST = 50
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
#: What Pillow may take a file for, whatever its name says. Left to itself it would try dozens of
#: formats, and hand PostScript to an interpreter.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")


class Unreadable(TiltmeterError):
    """A file that gives no picture."""


@dataclass(frozen=True, eq=False)
class ImageFiles(Sequence[Any]):
    """Picture files under a root, decoded when asked for: pictures[3] is a PIL image.

    A slice, or an array of rows or of yes and no, gives the Pictures of those rows.
    """

    paths: tuple[Path, ...]
    root: Path

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> ImageFiles: ...
    def __getitem__(self, at: Any) -> Any:
        if is_one(at):
            return decode(self.paths[at])
        return ImageFiles(tuple(self.paths[row] for row in rows_of(at, len(self))), self.root)

    def __iter__(self) -> Iterator[Any]:
        return (decode(path) for path in self.paths)

    def read(self, at: int) -> bytes:
        """The bytes of a picture's file."""
        return self.paths[at].read_bytes()

    def hash(self, at: int) -> str:
        """A hash of a file's bytes: a changed picture is another picture."""
        return hashlib.sha256(self.read(at)).hexdigest()

    def name(self, at: int) -> str:
        return str(self.paths[at])


@dataclass(frozen=True, eq=False)
class GeneratedImages(Sequence[Any]):
    """Pictures that lie in no files of their own: `make` gives that of a row when asked for."""

    make: Callable[[int], Any]
    rows: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> GeneratedImages: ...
    def __getitem__(self, at: Any) -> Any:
        if is_one(at):
            return self.make(self.rows[at])
        return GeneratedImages(self.make, [self.rows[row] for row in rows_of(at, len(self))])

    def __iter__(self) -> Iterator[Any]:
        return (self.make(row) for row in self.rows)

    def hash(self, at: int) -> str:
        """A hash of the pixels."""
        picture = self[at]
        return hashlib.sha256(f"{picture.size}".encode() + picture.tobytes()).hexdigest()


def unreadable_rows(images: ImageFiles | GeneratedImages) -> dict[int, str]:
    """The rows whose pictures cannot be read, each with the reason; all are read for it."""
    found: dict[int, str] = {}
    for row in range(len(images)):
        try:
            images[row]
        except Unreadable as error:
            found[row] = str(error)
    return found


def is_one(at: Any) -> bool:
    """Whether an index asks for one row, not for several."""
    return not isinstance(at, slice) and np.ndim(at) == 0


def rows_of(at: Any, count: int) -> list[int]:
    """The rows that a slice, or an array of rows or of yes and no, asks for."""
    if isinstance(at, slice):  # of a thousand million, a part
        return list(range(count)[at])
    return [int(row) for row in np.arange(count)[at]]


def within(root: Path, name: str) -> Path:
    """The file `name` under `root`; neither `..`, nor an absolute path, nor a link leads out.

    >>> within(Path("/data"), "../etc/passwd")
    Traceback (most recent call last):
    ...
    tiltmeter.errors.InputError: '../etc/passwd' leads out of /data: ...
    """
    plain = PurePath(name)
    bad = bool(plain.anchor) or ".." in plain.parts or "\0" in name
    real = os.path.realpath(root)
    path = real if bad else os.path.realpath(os.path.join(real, name))  # noqa: PTH118
    if bad or not Path(path).is_relative_to(real):
        raise InputError(
            f"{name!r} leads out of {root}: images must lie under their root, and be named from "
            "there, without `..`"
        )
    return Path(path)


def all_within(root: Path, names: Sequence[str]) -> Iterator[Path]:
    """`within` for many names: quicker, since each folder is resolved once."""
    folders: dict[str, Path] = {}
    for name in names:
        folder, _, last = name.rpartition("/")
        if not folder or last in ("", ".", "..") or "\0" in name:
            yield within(root, name)
            continue
        if folder not in folders:
            folders[folder] = within(root, folder)
        path = folders[folder] / last
        yield within(root, name) if path.is_symlink() else path


def decode(source: Path | bytes) -> Any:
    """The picture of a file, or of its bytes: upright and RGB.

    Of an animation it is the first frame; what is transparent lies on white; deep grey is scaled
    to 8 bits. Half a picture is none.
    """
    from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

    name = "picture" if isinstance(source, bytes) else str(source)
    if isinstance(source, Path) and not source.is_file():  # nor a pipe, on which one would wait
        raise Unreadable(f"{name}: no such file")
    # some libraries turn this on for the whole process, and half a picture would pass for one
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    Image.init()  # Pillow knows only some formats before
    opened = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters is raised or reported by us
            with Image.open(opened, formats=FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise Unreadable(_too_many(name, f"{image.width:,} x {image.height:,}"))
                if max(image.size) > LONGEST * max(min(image.size), 1):
                    raise Unreadable(
                        f"{name}: a strip of {image.width:,} x {image.height:,} pixels"
                    )
                upright: Any = ImageOps.exif_transpose(image)
                return _on_white(_eight_bits(upright)).convert("RGB")
    except Unreadable:
        raise
    except Image.DecompressionBombError:  # Pillow's own limit, which a bomb meets first
        raise Unreadable(_too_many(name, "far too many")) from None
    except UnidentifiedImageError:
        raise Unreadable(f"{name}: not a picture ({', '.join(FORMATS)})") from None
    except Exception as error:  # Pillow's decoders raise whatever they like
        raise Unreadable(f"{name}: {type(error).__name__}: {error}") from error


def _too_many(name: str, size: str) -> str:
    return f"{name}: {size} pixels, more than the {MOST_PIXELS:,} that are read"


def _eight_bits(image: Any) -> Any:
    """Deep grey pictures scaled to 8 bits: Pillow alone would cut off what is brighter."""
    if image.mode not in ("I", "I;16", "I;16B", "I;16L", "F"):
        return image
    from PIL import Image

    deep = np.nan_to_num(np.asarray(image, dtype=np.float32))
    least = 65535.0 if image.mode.startswith("I") else 1.0
    top = max(float(deep.max()), least)
    return Image.fromarray((np.clip(deep / top, 0, 1) * 255).round().astype(np.uint8))


def _on_white(image: Any) -> Any:
    """Without its transparency: the colours that hide behind it are anything, often black."""
    if not image.has_transparency_data:
        return image
    from PIL import Image

    over = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
