"""`webdataset:DIR`: tar shards of pictures with what is known of them, as img2dataset writes them.

00000.tar holds 000000001.jpg beside 000000001.json (and .txt). Pictures stay where they are: a
worker reads the bytes of one when its turn comes.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from tiltmeter.datasets.looking import OPTIONS, counts, record
from tiltmeter.errors import InputError
from tiltmeter.images import SUFFIXES, Made, decode, is_one, rows_of
from tiltmeter.inputs import Columns, label_groups
from tiltmeter.results import label_hash
from tiltmeter.sources import find, opened
from tiltmeter.specs import Spec
from tiltmeter.types import Faces

END = 1024  # bytes
#: A picture's shard, where its bytes begin, and how many they are.
Place = tuple[str, int, int]


@dataclass(frozen=True, eq=False)
class Tarred(Made):
    """Pictures inside of tar files."""

    def __getitem__(self, at: Any) -> Any:
        if is_one(at):
            return decode(_bytes(self.rows[at]))
        return Tarred(self.make, [self.rows[row] for row in rows_of(at, len(self))])

    def hash(self, at: int) -> str:
        """A hash of the bytes: that of the same picture in a file of its own."""
        return hashlib.sha256(_bytes(self.rows[at])).hexdigest()


def load(spec: Spec, columns: Columns) -> Faces:
    """Faces: tar shards of pictures with JSON beside them (your own files; your own terms).

    DIR, a pattern such as DIR/000*.tar, or one that lies elsewhere (s3://...). Fields of the JSON
    files are the label columns. A shard that is cut off gives the pictures before the cut.
    """
    spec.only("attributes", *OPTIONS)
    if not spec.rest:
        raise InputError("webdataset: names no folder or pattern of .tar files")
    places: list[Place] = []
    told: list[dict[str, Any]] = []
    ids: list[str] = []
    broken: list[str] = []
    for shard in find(spec.rest, ".tar"):
        pictures, fields, whole = _index(shard)
        if not whole:
            broken.append(shard)
        for key, place in pictures.items():
            ids.append(f"{PurePosixPath(shard).stem}/{key}")
            places.append(place)
            told.append(fields.get(key, {}))
    if not places:
        raise InputError(f"webdataset: found no picture in the shards of {spec.rest}")
    found = record(spec, len(places), malformed=broken)
    names = sorted({name for one in told for name in one})
    table = pa.table({name: pa.array([_text(one.get(name)) for one in told]) for name in names})
    try:
        groups = label_groups(table, spec.rest, columns) if names else {}
    except InputError:
        if columns.names is not None or columns.also:
            raise
        groups = {}  # to be embedded, nothing need be known of a picture
    labels = {name: [one.names[code] for code in one.codes] for name, one in groups.items()}
    return Faces(
        ids=tuple(ids),
        groups=groups,
        images=Tarred(_picture, places),  # type: ignore[arg-type]
        name=PurePosixPath(spec.rest).name,
        provenance={
            "labels": label_hash(ids, labels),
            "found": {**found, "images": len(ids), "groups": counts(groups.values())},
        },
    )


def _index(shard: str) -> tuple[dict[str, Place], dict[str, dict[str, Any]], bool]:
    """The pictures of a shard, the fields beside them, and whether it could be read to its end."""
    pictures: dict[str, Place] = {}
    fields: dict[str, dict[str, Any]] = {}
    with opened(shard) as file:
        size = file.size()
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                for member in tar:
                    if not member.isfile():
                        continue
                    if member.offset_data + member.size > size:
                        return pictures, fields, False
                    key, _, ending = member.name.partition(".")
                    if f".{ending.lower()}" in SUFFIXES:
                        pictures[key] = (shard, member.offset_data, member.size)
                    elif ending == "json":
                        fields[key] = _fields(tar, member)
        except tarfile.TarError:
            return pictures, fields, False
        # tarfile takes half a header for the end; a whole archive ends with two blocks of zeros
        end = bytes(file.read_at(END, max(size - END, 0)))
    return pictures, fields, end == bytes(END)


def _fields(tar: tarfile.TarFile, member: tarfile.TarInfo) -> dict[str, Any]:
    inside = tar.extractfile(member)
    try:
        found = json.loads(inside.read()) if inside else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str | None:
    return None if value is None or isinstance(value, dict | list) else str(value)


def _bytes(place: Any) -> bytes:
    shard, offset, size = place
    with opened(shard) as file:
        data = file.read_at(size, offset)
    if len(data) < size:
        raise OSError(5, "ends too soon", shard)
    return bytes(data)


def _picture(place: Any) -> Any:
    return decode(_bytes(place))
