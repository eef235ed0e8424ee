"""Files here or elsewhere: s3://, gs://, hdfs:// and file:// through pyarrow, others by fsspec."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from tiltmeter.errors import InputError


def filesystem(place: str) -> tuple[Any, str]:
    """The file system that a place is on, and the path there."""
    if "://" not in place:
        return fs.LocalFileSystem(), str(Path(place).absolute())
    try:
        found: tuple[Any, str] = fs.FileSystem.from_uri(place)
        return found
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
    try:
        import fsspec
    except ImportError:
        raise InputError(f"{place} cannot be reached: {reason}") from None
    try:
        other, path = fsspec.core.url_to_fs(place)
    except (ImportError, ValueError, OSError) as error:
        raise InputError(f"{place} cannot be reached: {error}") from None
    return fs.PyFileSystem(fs.FSSpecHandler(other)), path


def find(place: str, ending: str) -> list[str]:
    """Files of an ending in a folder, or that fit a pattern such as shards/00*.tar; in order."""
    system, path = filesystem(place)
    head = place[: len(place) - len(path)] if place.endswith(path) and "://" in place else ""
    pattern = any(sign in path for sign in "*?[")
    folder = path.rpartition("/")[0] if pattern else path
    try:
        info = system.get_file_info(folder)
        if info.type == fs.FileType.File:
            return [head + folder]
        inside = system.get_file_info(fs.FileSelector(folder, allow_not_found=False))
    except OSError as error:
        first = str(error).partition("\n")[0]
        raise InputError(f"{place} cannot be reached: {first}") from error
    names = [one.path for one in inside if one.type == fs.FileType.File]
    fitting = [
        name
        for name in names
        if name.endswith(ending) and (not pattern or fnmatch.fnmatch(name, path))
    ]
    if not fitting:
        raise InputError(f"{place} holds no {ending} file")
    return sorted(head + name for name in fitting)


def opened(place: str) -> Any:
    """A file to read from anywhere in it."""
    system, path = filesystem(place)
    try:
        return system.open_input_file(path)
    except OSError as error:
        first = str(error).partition("\n")[0]
        raise InputError(f"{place} cannot be read: {first}") from error
