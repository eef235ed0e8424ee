"""Files here or elsewhere: s3://, gs://, hdfs:// and file:// through pyarrow, others by fsspec.

A place is a path or a URL. Only its name travels to a worker, which opens the file itself.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
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
from tiltmeter.io.image_files import GeneratedImages, Unreadable, decode, is_one, rows_of

#: A picture's file, where its bytes begin there, and how many they are; -1: all of the file.
Place = tuple[str, int, int]
READERS = 16  # files looked at side by side: far away, an answer takes longer than reading it
Found = TypeVar("Found")


def elsewhere(place: object) -> bool:
    """Whether a place is a URL.

    >>> elsewhere("s3://bucket/labels.parquet"), elsewhere("labels.parquet")
    (True, False)
    """
    return "://" in str(place)


def filesystem(place: str) -> tuple[Any, str]:
    """The file system that a place is on, and the path there."""
    if not elsewhere(place):
        return fs.LocalFileSystem(), str(Path(place).absolute())
    url, _, settings = _parted(place)
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
        raise InputError(f"{place} cannot be reached: {reason}") from None
    try:
        other, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        raise InputError(f"{place} cannot be reached: {error}") from None
    return fs.PyFileSystem(fs.FSSpecHandler(other)), path


@lru_cache(maxsize=64)
def _system(root: str, settings: str, process: int) -> tuple[Any, str]:
    """One client for each bucket and process: its connections do not outlive a fork."""
    del process
    found: tuple[Any, str] = fs.FileSystem.from_uri(f"{root}?{settings}" if settings else root)
    return found


def _parted(place: str) -> tuple[str, str, str]:
    """The URL, and the settings behind it (?region=...), if there are any; else `?` is a sign."""
    url, mark, settings = place.partition("?")
    if "=" not in settings:
        url, mark, settings = place, "", ""
    return url.rstrip("/"), mark, settings


def find(place: str, endings: str | tuple[str, ...], *, deep: bool = False) -> list[str]:
    """Files of some endings in a folder, or that fit a pattern such as shards/00*.tar; in order.

    With `deep` those in folders within it too. Each is named as the place was.
    """
    system, path = filesystem(place)
    url, mark, settings = _parted(place) if elsewhere(place) else ("", "", "")
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
        raise InputError(f"{place} cannot be reached: {_first_line(error)}") from error
    fitting = [
        one.path
        for one in inside
        if one.type == fs.FileType.File
        and one.path.lower().endswith(endings)
        and (not pattern or fnmatch.fnmatch(one.path, path))
    ]
    if not fitting:
        kinds = endings if isinstance(endings, str) else ", ".join(endings)
        raise InputError(f"{place} holds no {kinds} file")
    return [head + name + mark + settings for name in sorted(fitting)]


def side_by_side(look: Callable[[str], Found], places: Sequence[str]) -> Iterator[Found]:
    """What comes of looking at each of many files, in order; several are waited for at a time."""
    with ThreadPoolExecutor(READERS) as pool:
        yield from pool.map(look, places)


def opened(place: object) -> Any:
    """A file to read from anywhere in it."""
    system, path = filesystem(str(place))
    try:
        return system.open_input_file(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{place} cannot be read: {_first_line(error)}") from error


def stream(place: object) -> Any:
    """A file to read from its start, unpacked where its name ends in .gz, .bz2 or .zst."""
    system, path = filesystem(str(place))
    return system.open_input_stream(path, compression="detect")


def content(place: object) -> bytes:
    """All that a file holds."""
    with opened(place) as file:
        try:
            return bytes(file.read())
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{place} cannot be read: {_first_line(error)}") from error


def reader(place: object) -> Any:
    """The bytes of a whole file to read: from the disk, or fetched."""
    return io.BytesIO(content(place)) if elsewhere(place) else Path(str(place)).open("rb")


def size(place: object) -> int:
    """Bytes of a file."""
    system, path = filesystem(str(place))
    return int(system.get_file_info(path).size or 0)


def exists(place: str) -> bool:
    """Whether there is such a file; one that cannot be asked for is not there."""
    system, path = filesystem(place)
    try:
        return bool(system.get_file_info(path).type == fs.FileType.File)
    except (OSError, pa.ArrowException):
        return False


def name_of(place: object) -> PurePath:
    """The place as a path, for its name and endings."""
    return PurePosixPath(_parted(str(place))[0]) if elsewhere(place) else PurePath(str(place))


def picture_bytes(place: Place) -> bytes:
    """What is at a place; Unreadable where it cannot be fetched, so that others go on."""
    file, offset, count = place
    try:
        if count < 0:
            return content(file)
        with opened(file) as source:
            data = bytes(source.read_at(count, offset))
    except (InputError, OSError, pa.ArrowException) as error:
        raise Unreadable(_first_line(error)) from None
    if len(data) < count:
        raise Unreadable(f"{file} ends too soon")
    return data


@dataclass(frozen=True, eq=False)
class RemoteImages(GeneratedImages):
    """Pictures that lie elsewhere, or within other files: a worker fetches one in its turn."""

    fetch: Callable[[Place], bytes] = picture_bytes
    within: str = "byte"  # what the second part of a place counts

    @classmethod
    def at(
        cls,
        places: Sequence[Place],
        fetch: Callable[[Place], bytes] = picture_bytes,
        within: str = "byte",
    ) -> RemoteImages:
        return cls(partial(_picture, fetch), places, fetch, within)  # type: ignore[arg-type]

    def __getitem__(self, at: Any) -> Any:
        if is_one(at):
            return decode(self.read(at))
        return replace(self, rows=[self.rows[row] for row in rows_of(at, len(self))])

    def read(self, at: int) -> bytes:
        """The bytes of a picture's file."""
        return self.fetch(self.rows[at])  # type: ignore[arg-type]

    def hash(self, at: int) -> str:
        """A hash of the bytes: that of the same picture in a file of its own."""
        return hashlib.sha256(self.read(at)).hexdigest()

    def name(self, at: int) -> str:
        place: Any = self.rows[at]
        return str(place[0]) + (f", at {self.within} {place[1]:,}" if place[2] >= 0 else "")


def under(root: str, names: Sequence[str]) -> list[Place]:
    """Whole files by their names under a URL; no name leads out of it."""
    for name in names:
        if name.startswith("/") or ".." in PurePosixPath(name).parts or elsewhere(name):
            raise InputError(
                f"{name!r} leads out of {root}: images must lie under their root, and be named "
                "from there, without `..`"
            )
    url, mark, settings = _parted(root)
    return [(f"{url}/{name}{mark}{settings}", 0, -1) for name in names]


def _picture(fetch: Callable[[Place], bytes], place: Place) -> Any:
    return decode(fetch(place))


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
