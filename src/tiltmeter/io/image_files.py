"""Image files: decoded safely, and identified by a hash of their content.

Every file gives either an upright RGB image or `UnreadableImageError` with the reason. Nothing
outside the root directory is read, and images with an implausible number of pixels are not
decoded.
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

from tiltmeter.errors import Code, InputError, TiltmeterError

#: An image with more pixels is taken for a decompression bomb.
MAX_PIXELS = 150_000_000
#: The largest ratio of the sides: a longer strip, scaled up for a model, would fill the memory.
MAX_ASPECT_RATIO = 50
#: Begins the message about bytes without a file; the embedding loader puts the row's name there.
UNNAMED = "image"
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
#: Formats that Pillow may recognise, whatever the file name says. By default it tries dozens, and
#: passes PostScript to an interpreter.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")


class UnreadableImageError(TiltmeterError):
    """A file that cannot be decoded as an image."""

    code: Code = "unreadable-image"


@dataclass(frozen=True, eq=False)
class ImageFiles(Sequence[Any]):
    """Image files under a root directory, decoded on access: `images[3]` is a PIL image.

    A slice, an array of row numbers or a boolean array selects rows.

    Parameters
    ----------
    paths
        The files, in the order of the rows.
    root
        The directory that they are in.
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
        if is_row(at):
            return decode(self.paths[at])
        return ImageFiles(tuple(self.paths[row] for row in rows_of(at, len(self))), self.root)

    def __iter__(self) -> Iterator[Any]:
        return (decode(path) for path in self.paths)

    def read(self, at: int) -> bytes:
        """The bytes of a file."""
        return self.paths[at].read_bytes()

    def hash(self, at: int) -> str:
        """The SHA-256 of a file: a changed image is another image."""
        return hashlib.sha256(self.read(at)).hexdigest()

    def name(self, at: int) -> str:
        """The path of a file."""
        return str(self.paths[at])


@dataclass(frozen=True, eq=False)
class GeneratedImages(Sequence[Any]):
    """Images that are not files of their own, made on access.

    Parameters
    ----------
    make
        Gives the image of a row.
    rows
        The rows, in order.
    """

    make: Callable[[int], Any]
    rows: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> GeneratedImages: ...
    def __getitem__(self, at: Any) -> Any:
        if is_row(at):
            return self.make(self.rows[at])
        return GeneratedImages(self.make, [self.rows[row] for row in rows_of(at, len(self))])

    def __iter__(self) -> Iterator[Any]:
        return (self.make(row) for row in self.rows)

    def hash(self, at: int) -> str:
        """The SHA-256 of the pixels."""
        image = self[at]
        return hashlib.sha256(f"{image.size}".encode() + image.tobytes()).hexdigest()


def unreadable_rows(images: ImageFiles | GeneratedImages) -> dict[int, str]:
    """Decodes all images and gives the rows that fail, each with the reason.

    Parameters
    ----------
    images
        The images.
    """
    reasons: dict[int, str] = {}
    for row in range(len(images)):
        try:
            images[row]
        except UnreadableImageError as error:
            reasons[row] = str(error)
    return reasons


def is_row(at: Any) -> bool:
    """Whether an index selects one row, not several."""
    return not isinstance(at, slice) and np.ndim(at) == 0


def rows_of(at: Any, count: int) -> list[int]:
    """The rows that a slice, an array of row numbers or a boolean array selects."""
    if isinstance(at, slice):  # without an array of a billion rows
        return list(range(count)[at])
    return [int(row) for row in np.arange(count)[at]]


def resolve_within(root: Path, name: str) -> Path:
    """The file `name` under `root`, which neither `..`, an absolute path nor a link may leave.

    Parameters
    ----------
    root
        The directory.
    name
        A path relative to it, or an absolute one within it.

    Raises
    ------
    InputError
        With the code `unsafe-path`.

    Examples
    --------
    >>> resolve_within(Path("/data"), "../etc/passwd")
    Traceback (most recent call last):
    ...
    tiltmeter.errors.InputError: '../etc/passwd' leads out of /data, ...
    """
    plain, real = PurePath(name), os.path.realpath(root)
    bad = ".." in plain.parts or "\0" in name
    path = real if bad else os.path.realpath(os.path.join(real, name))  # noqa: PTH118
    within = Path(path).is_relative_to(real)
    if bad or (plain.anchor and not within):
        raise outside_root(name, root)
    if not within:
        raise link_out_of_root(name, root)
    return Path(path)


def link_out_of_root(name: str, root: Path, instead: str = "") -> InputError:
    """The error for a link out of the root directory.

    Parameters
    ----------
    name
        A path relative to the root that leads through the link.
    root
        The root directory.
    instead
        What to type instead, if that is known.
    """
    link = leaving_link(name, root)
    return InputError(
        f"{str(link)!r} in {root} is a link to {os.path.realpath(root / link)}: links out of a "
        "directory are not followed, so that data from elsewhere cannot read your files. Copy the "
        "images (cp -L), or pass the directory that they are in" + (f": {instead}" * bool(instead)),
        code="unsafe-path",
        value=str(link),
    )


def leaving_link(name: str, root: Path) -> PurePath:
    """The first part of a path that is a link out of the root directory; all of it if none is."""
    plain, real = PurePath(name), os.path.realpath(root)
    for link in (*reversed(plain.parents), plain):
        place = root / link
        if place.is_symlink() and not Path(os.path.realpath(place)).is_relative_to(real):
            return link
    return plain


def outside_root(name: str, root: object) -> InputError:
    """The error for a file that is not under its root directory."""
    above = PurePath(name).parent if PurePath(name).anchor else "DIR"
    return InputError(
        f"{name!r} leads out of {root}, the root directory of the images: no path may leave it. "
        f"For a table, name a directory that contains all images: root={above} in its spec",
        code="unsafe-path",
        value=name,
    )


def resolve_all_within(root: Path, names: Sequence[str]) -> Iterator[Path]:
    """`resolve_within` for many names: faster, since each directory is resolved once."""
    folders: dict[str, Path] = {}
    for name in names:
        folder, _, last = name.rpartition("/")
        if not folder or last in ("", ".", "..") or "\0" in name:
            yield resolve_within(root, name)
            continue
        if folder not in folders:
            folders[folder] = resolve_within(root, folder)
        path = folders[folder] / last
        yield resolve_within(root, name) if path.is_symlink() else path


def decode(source: Path | bytes) -> Any:
    """Decodes an image file, or its bytes, to an upright RGB image.

    An animation gives its first frame, transparency becomes white, and grey levels of more than 8
    bits are scaled. A truncated file is an error.

    Parameters
    ----------
    source
        A file, or the content of one.

    Raises
    ------
    Unreadable
        With the reason.
    """
    from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

    name = UNNAMED if isinstance(source, bytes) else str(source)
    if isinstance(source, Path) and not source.is_file():  # a pipe would block
        raise _unreadable(name, "no such file")
    # some libraries turn this on for the whole process, and truncated files would pass
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    Image.init()  # without it Pillow knows only some formats
    opened = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # we raise what matters
            with Image.open(opened, formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise _too_large(name, f"{image.width:,} x {image.height:,}")
                if max(image.size) > MAX_ASPECT_RATIO * max(min(image.size), 1):
                    strip = f"a strip of {image.width:,} x {image.height:,} pixels"
                    raise _unreadable(name, strip)
                upright: Any = ImageOps.exif_transpose(image)
                return _on_white(_eight_bits(upright)).convert("RGB")
    except UnreadableImageError:
        raise
    except Image.DecompressionBombError:  # Pillow's own limit comes first
        raise _too_large(name, "far too many") from None
    except UnidentifiedImageError:
        raise _unreadable(name, f"not an image ({', '.join(FORMATS)})") from None
    except Exception as error:  # Pillow's decoders raise anything
        raise _unreadable(name, f"{type(error).__name__}: {error}") from error


def _unreadable(name: str, why: str) -> UnreadableImageError:
    return UnreadableImageError(f"{name}: {why}", value=name)


def _too_large(name: str, size: str) -> UnreadableImageError:
    return _unreadable(name, f"{size} pixels, more than the limit of {MAX_PIXELS:,}")


def _eight_bits(image: Any) -> Any:
    """Deep grey images scaled to 8 bits: Pillow alone would clip the brighter levels."""
    if image.mode not in ("I", "I;16", "I;16B", "I;16L", "F"):
        return image
    from PIL import Image

    deep = np.nan_to_num(np.asarray(image, dtype=np.float32))
    least = 65535.0 if image.mode.startswith("I") else 1.0
    top = max(float(deep.max()), least)
    return Image.fromarray((np.clip(deep / top, 0, 1) * 255).round().astype(np.uint8))


def _on_white(image: Any) -> Any:
    """Without transparency: the colours hidden behind it are arbitrary, often black."""
    if not image.has_transparency_data:
        return image
    from PIL import Image

    over = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)


def rendered(images: Any) -> Any:
    """Images as they are; scenes of the testbed, which render themselves, as PIL images."""
    return images.to_images() if hasattr(images, "to_images") else images
