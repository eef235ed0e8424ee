"""`webdataset:DIR`: tar shards of images with their labels, as written by img2dataset.

00000.tar contains 000000001.jpg and 000000001.json (and .txt); an optional 00000.parquet next to it
has the same fields by `key`. A worker reads the bytes of an image when it needs them.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.datasets.found_images import OPTIONS, count_rows, group_counts, no_images_error
from tiltmeter.errors import InputError
from tiltmeter.io.filesystems import (
    Place,
    RemoteImages,
    exists,
    list_files,
    map_places,
    open_file,
    path_of,
)
from tiltmeter.io.image_files import SUFFIXES
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import DAMAGE, Columns, groups_if_any
from tiltmeter.results import label_hash
from tiltmeter.types import Faces

END = 1024  # bytes of zeros at the end of an archive
Fields = dict[str, dict[str, Any]]  # by the keys of images


def load(spec: Spec, columns: Columns) -> Faces:
    """Faces: tar shards of images with JSON files (your own files; your own terms).

    DIR, a pattern such as DIR/000*.tar, or a URL (s3://...). Fields of the JSON files, and columns
    of a Parquet file next to a shard, are the label columns. A truncated shard gives its complete
    images; shards that cannot be read are recorded and skipped.
    """
    spec.check_options("attributes", *OPTIONS)
    if not spec.rest:
        raise InputError("expected webdataset:DIR, or a pattern of .tar files", code="bad-option")
    places: list[Place] = []
    records: list[dict[str, Any]] = []
    ids: list[str] = []
    broken: list[str] = []
    shards = list_files(spec.rest, ".tar")
    present = map_places(lambda shard: (_index(shard), *_metadata(shard)), shards)
    for shard, ((images, fields, complete), parquet, known) in zip(shards, present, strict=True):
        broken += [shard] * (not complete) + [parquet] * (known is None)
        for key, place in images.items():
            ids.append(f"{path_of(shard).stem}/{key}")
            places.append(place)
            records.append({**(known or {}).get(key, {}), **fields.get(key, {})})
    if not places:
        raise no_images_error(spec, broken)
    found = count_rows(spec, len(places), malformed=broken)
    names = sorted({name for fields in records for name in fields})
    cells = {name: [_text(fields.get(name)) for fields in records] for name in names}
    table = pa.table({name: pa.array(texts) for name, texts in cells.items()})
    groups = groups_if_any(table, spec.rest, columns) if names else {}
    labels = {name: [g.names[code] for code in g.codes] for name, g in groups.items()}
    return Faces(
        ids=tuple(ids),
        groups=groups,
        images=RemoteImages.at(places),
        name=PurePosixPath(spec.rest).name,
        provenance={
            "labels": label_hash(ids, labels),
            "found": {**found, "images": len(ids), "groups": group_counts(groups.values())},
        },
    )


def _index(shard: str) -> tuple[dict[str, Place], Fields, bool]:
    """The images of a shard, their fields, and whether it could be read to its end."""
    images: dict[str, Place] = {}
    fields: Fields = {}
    try:
        with open_file(shard) as file:
            size = file.size()
            with tarfile.open(fileobj=file, mode="r:") as tar:
                for member in tar:
                    if not member.isfile():
                        continue
                    if member.offset_data + member.size > size:
                        return images, fields, False
                    key, _, ending = member.name.partition(".")
                    if f".{ending.lower()}" in SUFFIXES:
                        images[key] = (shard, member.offset_data, member.size)
                    elif ending == "json":
                        fields[key] = _fields(tar, member)
            # tarfile takes half a header for the end; a complete archive ends with zeros
            end = bytes(file.read_at(END, max(size - END, 0)))
    except (tarfile.TarError, OSError, InputError):
        return images, fields, False
    return images, fields, end == bytes(END)


def _metadata(shard: str) -> tuple[str, Fields | None]:
    """The Parquet file next to a shard, and its fields by key; None if it cannot be read."""
    place = ".parquet".join(shard.rsplit(".tar", 1))
    if not exists(place):
        return place, {}
    try:
        with open_file(place) as file:
            table = pq.read_table(file)
    except (*DAMAGE, InputError):
        return place, None
    if "key" not in table.column_names:
        return place, {}
    return place, {str(row.pop("key")): row for row in table.to_pylist()}


def _fields(tar: tarfile.TarFile, member: tarfile.TarInfo) -> dict[str, Any]:
    inside = tar.extractfile(member)
    try:
        fields = json.loads(inside.read()) if inside else {}
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _text(value: Any) -> str | None:
    return None if value is None or isinstance(value, dict | list) else str(value)
