"""`parquet:DIR`: Parquet files that contain the images, with their labels.

As written by img2dataset (a column `jpg` of bytes) and stored on the Hugging Face Hub (a column
`image` of bytes and path). A worker reads a row group when it needs its first image.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import PurePosixPath
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.datasets.found_images import OPTIONS, count_rows, group_counts, no_images_error
from tiltmeter.datasets.shards import ShardedFaces, ShardRows
from tiltmeter.errors import InputError, TiltmeterError, UnknownNameError
from tiltmeter.io.filesystems import Place, RemoteImages, list_files, map_places, open_file, path_of
from tiltmeter.io.image_files import UnreadableImageError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import DAMAGE, Columns, groups_if_any, label_groups
from tiltmeter.results import label_hash
from tiltmeter.types import Faces

_lock = Lock()  # threads that need the same row group must not all read it


def load(spec: Spec, columns: Columns) -> Faces:
    """Faces: Parquet files with images in a column of bytes (your own files; your own terms).

    DIR with its subdirectories, a file, a pattern, or a URL (s3://...); `?image=COLUMN` if several
    columns contain bytes. Files that cannot be read are recorded and skipped.
    """
    spec.check_options("attributes", "image", *OPTIONS)
    if not spec.rest:
        raise InputError("expected parquet:DIR, or a pattern of .parquet files", code="bad-option")
    places: list[Place] = []
    ids: list[str] = []
    broken: list[str] = []
    tables: list[pa.Table] = []
    column = spec.options.get("image", "")
    files = list_files(spec.rest, ".parquet", deep=True)
    for file, content in zip(files, map_places(partial(_read, column), files), strict=True):
        if content is None:
            broken.append(file)
            continue
        column, sizes, table = content
        tables.append(table)
        groups = np.repeat(np.arange(len(sizes)), sizes)
        places += [(file, row, int(group)) for row, group in enumerate(groups)]
        ids += [f"{path_of(file).stem}/{row}" for row in range(len(groups))]
    if not places:
        raise no_images_error(spec, broken)
    found = count_rows(spec, len(places), malformed=broken)
    table = pa.concat_tables(tables, promote_options="permissive")
    labels = groups_if_any(table, spec.rest, columns)
    by_name = {name: [g.names[code] for code in g.codes] for name, g in labels.items()}
    return Faces(
        ids=tuple(ids),
        groups=labels,
        images=RemoteImages.at(places, partial(_cell, column), "row"),
        name=PurePosixPath(spec.rest).name,
        provenance={
            "labels": label_hash(ids, by_name),
            "found": {**found, "images": len(ids), "groups": group_counts(labels.values())},
        },
    )


@dataclass(frozen=True)
class ParquetShards:
    """Reads Parquet files with images one by one, a row group at a time."""

    image: str = ""  # the column of images

    def files(self, name: str) -> list[str]:
        """The file itself."""
        return [name]

    def open(self, name: str, columns: Columns) -> ShardRows:
        """Read the labels of a file; images are read when they are needed."""
        content = _read(self.image, name)
        if content is None:
            raise InputError(f"{name} cannot be read", code="bad-file", value=name)
        column, sizes, table = content
        groups = np.repeat(np.arange(len(sizes)), sizes)
        places = [(name, row, int(group)) for row, group in enumerate(groups)]
        stem = path_of(name).stem
        return ShardRows(
            label_groups(table, name, columns) if columns.names else {},
            lambda rows: [f"{stem}/{row}" for row in rows],
            images=RemoteImages.at(places, partial(_cell, column), "row"),
        )


def shards(spec: Spec, columns: Columns) -> ShardedFaces:
    """A collection of Parquet files, unread, except the first for its label columns."""
    spec.check_options("attributes", "image", *OPTIONS)
    if not spec.rest:
        raise InputError("expected parquet:DIR, or a pattern of .parquet files", code="bad-option")
    names = list_files(spec.rest, ".parquet", deep=True)
    image = spec.options.get("image", "")
    read = (_read(image, name) for name in names)
    first = next((content for content in read if content is not None), None)
    if first is None:
        raise no_images_error(spec, names)
    labels = groups_if_any(first[2], spec.rest, columns)
    return ShardedFaces(
        ParquetShards(first[0]), names, Columns(tuple(labels)), PurePosixPath(spec.rest).name,
        in_images=True,
    )  # fmt: skip


def _read(column: str, file: str) -> tuple[str, list[int], pa.Table] | None:
    """The column of images, the size of each row group, and all other columns."""
    try:
        with open_file(file) as source:
            whole = pq.ParquetFile(source)
            column = _image_column(whole.schema_arrow, column, file)
            sizes = [whole.metadata.row_group(at).num_rows for at in range(whole.num_row_groups)]
            return column, sizes, whole.read(_plain(whole.schema_arrow), use_threads=False)
    except TiltmeterError:
        raise
    except DAMAGE:
        return None


def _image_column(schema: pa.Schema, wanted: str, file: str) -> str:
    """The column of bytes, or of bytes and a path; ?image is needed if there are several."""
    candidates: list[str] = [field.name for field in schema if _bytes_of(field.type) is not None]
    if not wanted and len(candidates) == 1:
        return candidates[0]
    if wanted not in candidates:
        raise UnknownNameError(f"column of images in {file} (?image=...)", wanted, candidates)
    return wanted


def _bytes_of(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    return kind if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else None


def _plain(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema
            if not pa.types.is_nested(field.type) and _bytes_of(field.type) is None]  # fmt: skip


def _cell(column: str, place: Place) -> bytes:
    """The bytes in a row of a file."""
    file, row, group = place
    try:
        with _lock:
            first, cells = _row_group(file, column, group)
    except (pa.ArrowException, OSError, InputError) as error:
        raise UnreadableImageError(f"{file}: {str(error).partition(chr(10))[0]}") from None
    cell: Any = cells[row - first].as_py()
    data = cell.get("bytes") if isinstance(cell, dict) else cell
    if not data:
        raise UnreadableImageError(f"{file}, at row {row:,}: an empty cell")
    return bytes(data)


@lru_cache(maxsize=2)
def _row_group(file: str, column: str, group: int) -> tuple[int, Any]:
    with open_file(file) as source:
        whole = pq.ParquetFile(source)
        first = sum(whole.metadata.row_group(at).num_rows for at in range(group))
        read = whole.read_row_group(group, [column], use_threads=False)
        return first, read[column].combine_chunks()
