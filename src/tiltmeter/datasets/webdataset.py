"""`webdataset:DIR`: tar shards of images with their labels, as written by img2dataset.

00000.tar contains 000000001.jpg and 000000001.json (and .txt); an optional 00000.parquet next to it
has the same fields by `key`. A worker reads the bytes of an image when it needs them.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.datasets.found_images import OPTIONS, count_rows, group_counts, no_images_error
from tiltmeter.datasets.shards import ShardedFaces, ShardRows
from tiltmeter.errors import InputError
from tiltmeter.io.filesystems import (
    Place,
    RemoteImages,
    exists,
    image_bytes,
    is_url,
    list_files,
    map_places,
    open_file,
    path_of,
    read_bytes,
)
from tiltmeter.io.image_files import SUFFIXES, UnreadableImageError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import DAMAGE, Columns, groups_if_any, label_groups
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
    table = _table(records)
    groups = groups_if_any(table, spec.rest, columns) if table.column_names else {}
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


@dataclass(frozen=True)
class TarShards:
    """Reads tar files one by one; a remote one is fetched as a whole, in one request."""

    def files(self, name: str) -> list[str]:
        """The tar file, and the table next to it if there is one."""
        beside = _beside(name)
        return [name, *([beside] if exists(beside) else [])]

    def open(self, name: str, columns: Columns) -> ShardRows:
        """List a tar file and read the fields of its images."""
        fetch = _open_whole if is_url(name) else open_file
        images, fields, complete = _index(name, fetch)
        parquet, known = _metadata(name)
        if known is None:
            raise InputError(f"{parquet} cannot be read", code="bad-file", value=parquet)
        if not images:
            raise InputError(f"{name} has no images", code="no-images", value=name)
        records = [{**known.get(key, {}), **fields.get(key, {})} for key in images]
        table = _table(records)
        groups = label_groups(table, name, columns) if columns.names else {}
        ids = [f"{path_of(name).stem}/{key}" for key in images]
        places = list(images.values())
        remote = RemoteImages.at(
            places, partial(_from_whole, name) if is_url(name) else image_bytes
        )
        return ShardRows(
            groups, lambda rows: [ids[row] for row in rows], images=remote, incomplete=not complete
        )


def shards(spec: Spec, columns: Columns) -> ShardedFaces:
    """A collection of tar files, unread, except the first with images for its label columns."""
    spec.check_options("attributes", *OPTIONS)
    if not spec.rest:
        raise InputError("expected webdataset:DIR, or a pattern of .tar files", code="bad-option")
    names = list_files(spec.rest, ".tar")
    listed = ((name, *_index(name)) for name in names)
    first = next((found for found in listed if found[1]), None)
    if first is None:
        raise no_images_error(spec, names)
    name, images, fields, _ = first
    known = _metadata(name)[1] or {}
    table = _table([{**known.get(key, {}), **fields.get(key, {})} for key in images])
    labels = groups_if_any(table, name, columns) if table.column_names else {}
    return ShardedFaces(
        TarShards(), names, Columns(tuple(labels)), PurePosixPath(spec.rest).name, in_images=True
    )


def _table(records: list[dict[str, Any]]) -> pa.Table:
    names = sorted({name for fields in records for name in fields})
    cells = {name: [_text(fields.get(name)) for fields in records] for name in names}
    return pa.table({name: pa.array(texts) for name, texts in cells.items()})


@lru_cache(maxsize=1)
def _whole(name: str) -> bytes:
    return read_bytes(name)


def _open_whole(name: str) -> Any:
    return pa.BufferReader(_whole(name))


def _from_whole(name: str, place: Place) -> bytes:
    """The bytes of an image, of the tar file that was fetched last."""
    _, offset, count = place
    try:
        data = _whole(name)[offset : offset + count]
    except (InputError, OSError) as error:
        raise UnreadableImageError(str(error), value=name) from None
    if len(data) < count:
        raise UnreadableImageError(f"{name} is truncated", value=name)
    return data


def _index(
    shard: str, open_shard: Callable[[str], Any] = open_file
) -> tuple[dict[str, Place], Fields, bool]:
    """The images of a shard, their fields, and whether it could be read to its end."""
    images: dict[str, Place] = {}
    fields: Fields = {}
    complete = False
    try:
        with open_shard(shard) as file:
            whole = _list_members(shard, file, images, fields)
            # tarfile takes half a header for the end; a complete archive ends with zeros
            end = bytes(file.read_at(END, max(file.size() - END, 0)))
            complete = whole and end == bytes(END)
    except (tarfile.TarError, OSError, InputError):
        pass
    if not complete and fields and (last := next(reversed(images), None)) not in fields:
        images.pop(str(last), None)  # its labels were to follow
    return images, fields, complete


def _list_members(shard: str, file: Any, images: dict[str, Place], fields: Fields) -> bool:
    """Add the members of a tar file to its images and fields; whether all are complete."""
    with tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            if not member.isfile():
                continue
            if member.offset_data + member.size > file.size():
                return False
            key, _, ending = member.name.partition(".")
            if f".{ending.lower()}" in SUFFIXES:
                images[key] = (shard, member.offset_data, member.size)
            elif ending == "json":
                fields[key] = _fields(tar, member)
    return True


def _metadata(shard: str) -> tuple[str, Fields | None]:
    """The Parquet file next to a shard, and its fields by key; None if it cannot be read."""
    place = _beside(shard)
    if not exists(place):
        return place, {}
    try:
        with open_file(place) as file:
            table = pq.ParquetFile(file).read(use_threads=False)
    except (*DAMAGE, InputError):
        return place, None
    if "key" not in table.column_names:
        return place, {}
    return place, {str(row.pop("key")): row for row in table.to_pylist()}


def _beside(shard: str) -> str:
    return ".parquet".join(shard.rsplit(".tar", 1))


def _fields(tar: tarfile.TarFile, member: tarfile.TarInfo) -> dict[str, Any]:
    inside = tar.extractfile(member)
    try:
        fields = json.loads(inside.read()) if inside else {}
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _text(value: Any) -> str | None:
    return None if value is None or isinstance(value, dict | list) else str(value)
