"""A zip file that is the same bytes for the same parts, whatever machine wrote it.

Parts are stored as they are (Parquet is compressed already), without times or owners. So the whole
file follows from its parts, and a reader who packs them again finds any byte that was changed.
"""

from __future__ import annotations

import re
import struct
import zipfile
from collections.abc import Mapping
from io import BytesIO
from typing import NamedTuple

from tiltmeter.errors import InputError

MOST_PARTS = 1000
MOST_BYTES = 2**31 - 1  # of a bundle: what the plain zip format can hold, and a machine too
#: Names that a part may have: they stay inside the folder that somebody unpacks them to.
_NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*(/[A-Za-z0-9_+-][A-Za-z0-9._+-]*)*")

_HEADER = 30  # bytes of a part's header, before its name


def check_name(name: str) -> None:
    """Refuses a name that could lead out of a folder, or that no bundle has."""
    if len(name) > 200 or not _NAME.fullmatch(name):
        raise InputError(f"a part is named {name[:80]!r}: a bundle of tiltmeter has no such names")


def packed(parts: Mapping[str, bytes]) -> bytes:
    """Zip parts, in their order.

    >>> packed({"a.txt": b"one"}) == packed({"a.txt": b"one"})
    True
    """
    if sum(map(len, parts.values())) > MOST_BYTES - 2**20 or len(parts) > MOST_PARTS:
        raise InputError("the parts take more than 2 GB: too much for a bundle")
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in parts.items():
            check_name(name)
            info = zipfile.ZipInfo(name)  # dated 1 January 1980, the first day there is
            info.create_system = 3  # a machine that knows permissions, on every machine
            info.external_attr = 0o100644 << 16
            archive.writestr(info, data)
    return file.getvalue()


class ZipContents(NamedTuple):
    """The parts that could be read, and what is wrong with others: (part, what)."""

    parts: dict[str, bytes]
    problems: list[tuple[str, str]]


def unpacked(data: bytes, first: str) -> ZipContents:
    """The parts of a bundle; InputError where these bytes are none, or a hostile one.

    `first` is the name of the part that every bundle begins with.
    """
    ours = data[:4] == b"PK\x03\x04" and data[_HEADER:].startswith(first.encode())
    try:
        archive = zipfile.ZipFile(BytesIO(data))
        listed = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OverflowError, UnicodeDecodeError, struct.error,
            NotImplementedError) as error:  # fmt: skip
        if ours:
            return ZipContents({}, [("the zip's directory", f"cannot be read: {error}")])
        raise InputError("this is no zip file, so no bundle of tiltmeter") from None
    names = [one.orig_filename for one in listed]
    if first not in names and not ours:
        raise InputError(f"this zip file holds no {first}: it is no bundle of tiltmeter")
    if len(listed) > MOST_PARTS:
        raise InputError(f"it holds {len(listed):,} parts: no bundle has so many")
    for name in names:
        check_name(name)
        if names.count(name) > 1:
            raise InputError(f"two parts are both named {name!r}: it is not clear which is meant")
    if sum(one.file_size for one in listed) > len(data):
        raise InputError("its parts claim to be larger than the file: it is made to do harm")
    parts: dict[str, bytes] = {}
    problems = []
    for one in listed:
        if one.compress_type != zipfile.ZIP_STORED or one.file_size != one.compress_size:
            # nothing is unpacked that could grow: a few bytes can claim to be terabytes
            problems.append(
                (one.filename, "is said to be compressed, which no part of a bundle is")
            )
            continue
        try:
            parts[one.filename] = archive.read(one)
        except Exception as error:  # zipfile raises what its parsing stumbles over
            told = str(error).partition(" for file")[0]
            problems.append((one.filename, f"was changed: the zip cannot read it ({told})"))
    return ZipContents(parts, problems)


def changed_record(data: bytes, parts: Mapping[str, bytes]) -> tuple[str, str] | None:
    """Where the zip's own records are not as they were written: (part, what); None if all are."""
    whole = packed(parts)
    if whole == data:
        return None
    pairs = zip(whole, data, strict=False)
    at = next((at for at, (one, other) in enumerate(pairs) if one != other), -1)
    at = min(len(whole), len(data)) if at < 0 else at  # one is the beginning of the other
    told, place = "the zip's directory", 0
    for name, part in parts.items():
        end = place + _HEADER + len(name) + len(part)
        if place <= at < end:
            told = name
        place = end
    return told, f"has another record in the zip than was written, at byte {at:,} of the file"
