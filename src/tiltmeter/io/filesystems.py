"""Local and remote files: s3://, gs://, hdfs:// and file:// by pyarrow, others by fsspec.

A place is a path or a URL. Only its name is sent to a worker, which opens the file itself.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from tiltmeter.errors import InputError
from tiltmeter.io.image_files import (
    GeneratedImages,
    UnreadableImageError,
    decode,
    is_row,
    outside_root,
    rows_of,
)

#: Of an image: the file, the offset of its bytes, and their number; -1: the whole file.
Place = tuple[str, int, int]
READERS = 16  # files read at a time: for remote files the latency is longer than the transfer
RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
T = TypeVar("T")


def no_file(path: str | Path, what: str = "file") -> InputError:
    """The error for a file that does not exist: where it was looked for, and what to check.

    Parameters
    ----------
    path
        The path as it was given.
    what
        What the file should be, with its option if it has one.

    Examples
    --------
    >>> no_file("/data/labels.csv", "table").code
    'not-found'
    """
    relative = f"; {str(path)!r} is relative to the current directory" * (
        not Path(path).is_absolute()
    )
    place = Path(path).absolute()
    return InputError(
        f"no such {what}: {place}{relative}: check the path", code="not-found", value=str(path)
    )


def is_url(place: object) -> bool:
    """Whether a place is a URL.

    Parameters
    ----------
    place
        A path or a URL.

    Examples
    --------
    >>> is_url("s3://bucket/labels.parquet"), is_url("labels.parquet")
    (True, False)
    """
    return "://" in str(place)


def filesystem(place: str) -> tuple[Any, str]:
    """The file system of a place, and the path on it.

    Parameters
    ----------
    place
        A path or a URL; `?region=...` behind a URL configures the client.

    Raises
    ------
    InputError
        If there is no such file system.
    """
    if not is_url(place):
        return fs.LocalFileSystem(), str(Path(place).absolute())
    url, _, settings = _split_url(place)
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}"
    try:
        system, top = _system(root + ("" if parts.netloc else "/"), settings, os.getpid())
        return system, top.rstrip("/") + url.removeprefix(root)
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        reason = _first_line(error)
    try:
        import fsspec
    except ImportError:
        raise _unreachable(place, reason) from None
    try:
        other, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        raise _unreachable(place, str(error)) from None
    return fs.PyFileSystem(fs.FSSpecHandler(other)), path


@lru_cache(maxsize=64)
def _system(root: str, settings: str, process: int) -> tuple[Any, str]:
    """One client per bucket and process: connections do not survive a fork."""
    del process
    system: tuple[Any, str] = fs.FileSystem.from_uri(f"{root}?{settings}" if settings else root)
    return system


def _split_url(place: str) -> tuple[str, str, str]:
    """The URL, `?` and the settings behind it; a `?` without `=` is part of a pattern."""
    url, mark, settings = place.partition("?")
    if "=" not in settings:
        url, mark, settings = place, "", ""
    return url.rstrip("/"), mark, settings


def list_files(place: str, endings: str | tuple[str, ...], *, deep: bool = False) -> list[str]:
    """Files in a directory, or that match a pattern such as `shards/00*.tar`, sorted.

    Parameters
    ----------
    place
        A directory, a pattern, or a file; a path or a URL. A range of names, such as
        `shards/{00000..00099}.tar`, is not looked up: web servers list no directories.
    endings
        What their names must end with, in lower case.
    deep
        Include subdirectories.

    Returns
    -------
    list
        The files, as URLs if the place is one.
    """
    if RANGE.search(place):
        return _names_in_range(place, endings)
    system, path = filesystem(place)
    url, mark, settings = _split_url(place) if is_url(place) else ("", "", "")
    head = url[: len(url) - len(path)] if url.endswith(path) else ""
    pattern = any(sign in path for sign in "*?[")
    folder = path.rpartition("/")[0] if pattern else path
    try:
        info = system.get_file_info(folder)
        if info.type == fs.FileType.File:
            return [head + folder + mark + settings]
        chosen = fs.FileSelector(folder, allow_not_found=False, recursive=deep and not pattern)
        inside = system.get_file_info(chosen)
    except (OSError, pa.ArrowException) as error:
        raise _unreachable(place, _first_line(error)) from error
    matches = [
        file.path
        for file in inside
        if file.type == fs.FileType.File
        and file.path.lower().endswith(endings)
        and (not pattern or fnmatch.fnmatch(file.path, path))
    ]
    if not matches:
        raise _no_file(place, endings)
    return [head + name + mark + settings for name in sorted(matches)]


def _names_in_range(place: str, endings: str | tuple[str, ...]) -> list[str]:
    """The names that a range stands for; numbers have as many digits as its first."""
    found = RANGE.search(place)
    assert found is not None
    first, last = found.groups()
    if not str(path_of(place)).lower().endswith(endings) or int(first) > int(last):
        raise _no_file(place, endings)
    numbers = (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return [place[: found.start()] + number + place[found.end() :] for number in numbers]


def map_places(function: Callable[[str], T], places: Sequence[str]) -> Iterator[T]:
    """Applies a function to each file, several at a time; results are in order."""
    with ThreadPoolExecutor(READERS) as pool:
        yield from pool.map(function, places)


def open_file(place: object) -> Any:
    """Opens a file for random access.

    Parameters
    ----------
    place
        A path or a URL.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    system, path = filesystem(str(place))
    try:
        return system.open_input_file(path)
    except (OSError, pa.ArrowException) as error:
        raise _cannot_read(place, error) from error


def open_stream(place: object) -> Any:
    """Opens a file for sequential reading; .gz, .bz2 and .zst are decompressed."""
    system, path = filesystem(str(place))
    return system.open_input_stream(path, compression="detect")


def read_bytes(place: object) -> bytes:
    """The content of a file."""
    with open_file(place) as file:
        try:
            return bytes(file.read())
        except (OSError, pa.ArrowException) as error:
            raise _cannot_read(place, error) from error


def open_bytes(place: object) -> Any:
    """Opens a local file, or fetches a remote one as a whole."""
    return io.BytesIO(read_bytes(place)) if is_url(place) else Path(str(place)).open("rb")


def file_size(place: object) -> int:
    """The size of a file in bytes."""
    system, path = filesystem(str(place))
    return int(system.get_file_info(path).size or 0)


def file_state(place: str) -> tuple[str, int, int]:
    """Name, size and time of the last change: another state is another file."""
    system, path = filesystem(place)
    info = system.get_file_info(path)
    return place, int(info.size or 0), int(info.mtime_ns or 0)


def exists(place: str) -> bool:
    """Whether a file exists; False if its file system cannot be reached."""
    system, path = filesystem(place)
    try:
        return bool(system.get_file_info(path).type == fs.FileType.File)
    except (OSError, pa.ArrowException):
        return False


def path_of(place: object) -> PurePath:
    """A place as a path, for its name, stem and suffix."""
    return PurePosixPath(_split_url(str(place))[0]) if is_url(place) else PurePath(str(place))


def image_bytes(place: Place) -> bytes:
    """The bytes of an image; Unreadable if they cannot be fetched."""
    file, offset, count = place
    try:
        if count < 0:
            return read_bytes(file)
        with open_file(file) as source:
            data = bytes(source.read_at(count, offset))
    except (InputError, OSError, pa.ArrowException) as error:
        raise UnreadableImageError(_first_line(error), value=file) from None
    if len(data) < count:
        raise UnreadableImageError(f"{file} is truncated", value=file)
    return data


@dataclass(frozen=True, eq=False)
class RemoteImages(GeneratedImages):
    """Images that are remote, or inside other files: each is fetched when it is needed.

    Parameters
    ----------
    make, rows
        As for `GeneratedImages`.
    fetch
        Gives the bytes of an image.
    within
        What the offset of a place counts.
    """

    fetch: Callable[[Place], bytes] = image_bytes
    within: str = "byte"

    @classmethod
    def at(
        cls,
        places: Sequence[Place],
        fetch: Callable[[Place], bytes] = image_bytes,
        within: str = "byte",
    ) -> RemoteImages:
        """Images by their places.

        Parameters
        ----------
        places
            One per row.
        fetch, within
            As for the class.
        """
        return cls(partial(_image, fetch), places, fetch, within)  # type: ignore[arg-type]

    def __getitem__(self, at: Any) -> Any:
        if is_row(at):
            return decode(self.read(at))
        return replace(self, rows=[self.rows[row] for row in rows_of(at, len(self))])

    def read(self, at: int) -> bytes:
        """The bytes of an image."""
        return self.fetch(self.rows[at])  # type: ignore[arg-type]

    def hash(self, at: int) -> str:
        """The SHA-256 of the bytes, as for the same image in a file of its own."""
        return hashlib.sha256(self.read(at)).hexdigest()

    def name(self, at: int) -> str:
        """The file of an image, and where in it."""
        place: Any = self.rows[at]
        return str(place[0]) + (f", at {self.within} {place[1]:,}" if place[2] >= 0 else "")


def places_under(root: str, names: Sequence[str]) -> list[Place]:
    """Whole files by their names under a URL.

    Parameters
    ----------
    root
        The URL.
    names
        Paths relative to it.

    Raises
    ------
    InputError
        With the code `unsafe-path`, if a name leads out of the root.
    """
    for name in names:
        if name.startswith("/") or ".." in PurePosixPath(name).parts or is_url(name):
            raise outside_root(name, root)
    url, mark, settings = _split_url(root)
    return [(f"{url}/{name}{mark}{settings}", 0, -1) for name in names]


def _no_file(place: str, endings: str | tuple[str, ...]) -> InputError:
    kinds = endings if isinstance(endings, str) else ", ".join(endings)
    return InputError(f"{place} has no {kinds} file", code="not-found", value=place)


def _unreachable(place: str, why: str) -> InputError:
    return InputError(f"{place} cannot be reached: {why}", code="not-found", value=place)


def _cannot_read(place: object, error: BaseException) -> InputError:
    return InputError(
        f"{place} cannot be read: {_first_line(error)}", code="bad-file", value=str(place)
    )


def _image(fetch: Callable[[Place], bytes], place: Place) -> Any:
    return decode(fetch(place))


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
