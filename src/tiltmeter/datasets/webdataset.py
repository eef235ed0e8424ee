"""`webdataset:DIR`: tar shards of pictures with what is known of them, as img2dataset writes them.

00000.tar holds 000000001.jpg beside 000000001.json (and .txt); 00000.parquet beside it, where there
is one, holds the same fields by `key`. Pictures stay where they are: a worker reads the bytes of
one when its turn comes.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.datasets.found_images import OPTIONS, counts, no_picture, record
from tiltmeter.errors import InputError
from tiltmeter.io.image_files import SUFFIXES
from tiltmeter.io.places import Place, RemoteImages, exists, find, name_of, opened, side_by_side
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns, groups_if_any
from tiltmeter.results import label_hash
from tiltmeter.types import Faces

END = 1024  # bytes
Fields = dict[str, dict[str, Any]]  # of pictures, by their keys


def load(spec: Spec, columns: Columns) -> Faces:
    """Faces: tar shards of pictures with JSON beside them (your own files; your own terms).

    DIR, a pattern such as DIR/000*.tar, or one that lies elsewhere (s3://...). Fields of the JSON
    files, and columns of a Parquet file beside a shard, are the label columns. A shard that is cut
    off gives the pictures before the cut; one that cannot be read is named, and the others count.
    """
    spec.only("attributes", *OPTIONS)
    if not spec.rest:
        raise InputError("webdataset: names no folder or pattern of .tar files")
    places: list[Place] = []
    told: list[dict[str, Any]] = []
    ids: list[str] = []
    broken: list[str] = []
    shards = find(spec.rest, ".tar")
    looked = side_by_side(lambda shard: (_index(shard), *_beside(shard)), shards)
    for shard, ((pictures, fields, whole), beside, known) in zip(shards, looked, strict=True):
        broken += [shard] * (not whole) + [beside] * (known is None)
        for key, place in pictures.items():
            ids.append(f"{name_of(shard).stem}/{key}")
            places.append(place)
            told.append({**(known or {}).get(key, {}), **fields.get(key, {})})
    if not places:
        raise no_picture(spec, broken)
    found = record(spec, len(places), malformed=broken)
    names = sorted({name for one in told for name in one})
    table = pa.table({name: pa.array([_text(one.get(name)) for one in told]) for name in names})
    groups = groups_if_any(table, spec.rest, columns) if names else {}
    labels = {name: [one.names[code] for code in one.codes] for name, one in groups.items()}
    return Faces(
        ids=tuple(ids),
        groups=groups,
        images=RemoteImages.at(places),
        name=PurePosixPath(spec.rest).name,
        provenance={
            "labels": label_hash(ids, labels),
            "found": {**found, "images": len(ids), "groups": counts(groups.values())},
        },
    )


def _index(shard: str) -> tuple[dict[str, Place], Fields, bool]:
    """The pictures of a shard, the fields beside them, and whether it could be read to its end."""
    pictures: dict[str, Place] = {}
    fields: Fields = {}
    try:
        with opened(shard) as file:
            size = file.size()
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
            # tarfile takes half a header for the end; a whole archive ends with blocks of zeros
            end = bytes(file.read_at(END, max(size - END, 0)))
    except (tarfile.TarError, OSError, InputError):
        return pictures, fields, False
    return pictures, fields, end == bytes(END)


def _beside(shard: str) -> tuple[str, Fields | None]:
    """The Parquet file beside a shard, and its fields by key; None where it cannot be read."""
    place = ".parquet".join(shard.rsplit(".tar", 1))
    if not exists(place):
        return place, {}
    try:
        with opened(place) as file:
            table = pq.read_table(file)
    except (pa.ArrowException, OSError, InputError):
        return place, None
    if "key" not in table.column_names:
        return place, {}
    return place, {str(row.pop("key")): row for row in table.to_pylist()}


def _fields(tar: tarfile.TarFile, member: tarfile.TarInfo) -> dict[str, Any]:
    inside = tar.extractfile(member)
    try:
        found = json.loads(inside.read()) if inside else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str | None:
    return None if value is None or isinstance(value, dict | list) else str(value)
