"""`embeddings:DIR`: image embeddings computed elsewhere, with labels.

Our layout is `images.npy` next to `images.csv` (or .tsv, .parquet). clip-retrieval's is
`img_emb/img_emb_0.npy`, ... next to `metadata/metadata_0.parquet`, ..., or all in one directory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.datasets.found_images import group_counts
from tiltmeter.datasets.shards import ShardedFaces, ShardRows
from tiltmeter.errors import InputError
from tiltmeter.io.filesystems import is_url, list_files, open_file, path_of
from tiltmeter.io.npy import NpyRows, open_npy
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import (
    ID_COLUMNS,
    Columns,
    find_table,
    item_ids,
    label_groups,
    read_table,
    read_vectors,
)
from tiltmeter.results import content_hash, label_hash
from tiltmeter.types import Faces, Ints


def load(spec: Spec, columns: Columns) -> Faces:
    """Faces: image embeddings and labels, also clip-retrieval's (your own files; your terms).

    images.npy next to images.csv, or img_emb_0.npy next to metadata_0.parquet.

    `?attributes=gender,race` names the label columns.
    """
    spec.check_options("attributes")
    directory = spec.directory()
    vectors, table = _read(directory)
    if len(vectors) != table.num_rows:
        raise InputError(
            f"{directory}: {len(vectors)} image embeddings, but {table.num_rows} rows of labels: "
            "they must be the same images in the same order",
            code="bad-labels",
            value=str(directory),
        )
    groups = label_groups(table, directory, columns)
    ids = item_ids(table, directory)
    labels = {name: [g.names[code] for code in g.codes] for name, g in groups.items()}
    return Faces(
        ids=ids,
        groups=groups,
        vectors=vectors,
        name=directory.resolve().name,
        provenance={
            "vectors": content_hash(vectors),
            "labels": label_hash(ids, labels),
            "found": {"rows": len(ids), "groups": group_counts(groups.values())},
        },
    )


def _read(directory: Path) -> tuple[np.ndarray, pa.Table]:
    if (directory / "images.npy").is_file():
        labels = find_table(directory, "images")
        if labels is None:
            raise _bad_layout(
                directory,
                "has images.npy but no labels: expected images.csv (or .tsv, .parquet) with one "
                "row per embedding",
            )
        return read_vectors([directory / "images.npy"]), read_table(labels)
    shards = _shards(directory, "img_emb", "npy")
    if not shards:
        raise _bad_layout(
            directory,
            "has no image embeddings: expected images.npy, or clip-retrieval's img_emb_0.npy "
            "(there or in img_emb/)",
        )
    tables = _shards(directory, "metadata", "parquet")
    if list(shards) != list(tables):
        raise _bad_layout(
            directory,
            f"has the parts {list(shards)} of img_emb, but {list(tables)} of metadata: each "
            "img_emb_N.npy needs its metadata_N.parquet",
        )
    metadata = [read_table(path) for path in tables.values()]
    try:
        joined = pa.concat_tables(metadata, promote_options="permissive")
    except pa.ArrowInvalid as error:
        raise _bad_layout(directory, f"has metadata of different columns: {error}") from None
    return read_vectors(list(shards.values())), joined


@dataclass(frozen=True)
class EmbeddingShards:
    """Reads img_emb_N.npy and metadata_N.parquet: rows of a memory map, or ranges of a URL."""

    def files(self, name: str) -> list[str]:
        """Both files."""
        return [name, metadata_of(name)]

    def open(self, name: str, columns: Columns) -> ShardRows:
        """Open one pair of files by the name of its embeddings; ids are read where needed."""
        place = metadata_of(name)
        with open_file(place) as file:
            whole = pq.ParquetFile(file)
            listed = whole.schema_arrow.names
            wanted = [column for column in columns.names or () if column in listed]
            # of no columns: an empty table, which has no rows
            table = whole.read(wanted, use_threads=False)
            rows = whole.metadata.num_rows
        vectors = NpyRows(name) if is_url(name) else open_npy(Path(name))
        if len(vectors) != rows:
            raise InputError(
                f"{name}: {len(vectors)} image embeddings, but {rows} rows of labels: they must "
                "be the same images in the same order",
                code="bad-labels",
                value=name,
            )
        groups = label_groups(table, place, columns) if columns.names else {}
        return ShardRows(groups, partial(_shard_ids, name), vectors)


def shards(spec: Spec, columns: Columns) -> ShardedFaces | None:
    """Collections in clip-retrieval's layout, unread; None for images.npy, which is one file.

    Label columns that are not named are those of the first shard that look like labels.
    """
    spec.check_options("attributes")
    place = spec.rest
    if not is_url(place):
        directory = spec.directory()
        if (directory / "images.npy").is_file():
            return None
        place = str(directory)
    found = _numbered(place, "img_emb", "npy")
    if not found:
        return None  # the loader says what was expected
    missing = set(found) ^ set(_numbered(place, "metadata", "parquet"))
    if missing:
        raise InputError(
            f"{place} has part {min(missing)} of img_emb or of metadata, but not of both: each "
            "img_emb_N.npy needs its metadata_N.parquet",
            code="bad-file",
            value=place,
        )
    names = [found[number] for number in sorted(found)]
    with open_file(metadata_of(names[0])) as file:
        first = pq.ParquetFile(file)
        plain = [field.name for field in first.schema_arrow if not pa.types.is_nested(field.type)]
        table = first.read_row_group(0, plain, use_threads=False)
    labels = label_groups(table, metadata_of(names[0]), columns)
    return ShardedFaces(EmbeddingShards(), names, Columns(tuple(labels)), path_of(place).name)


def metadata_of(name: str) -> str:
    """The table next to a file of embeddings."""
    folder, _, file = name.rpartition("/")
    if folder.endswith("/img_emb"):
        folder = f"{folder.removesuffix('img_emb')}metadata"
    return f"{folder}/{file}".replace("img_emb_", "metadata_").replace(".npy", ".parquet")


def _numbered(place: str, stem: str, ending: str) -> dict[int, str]:
    """`stem_N.ending` by number, in a directory or in its subdirectory `stem`."""
    base, mark, settings = place.partition("?")
    for folder in (base, f"{base}/{stem}"):
        try:
            files = list_files(folder + mark + settings, f".{ending}")
        except InputError:
            continue
        numbers = {
            int(match[1]): file
            for file in files
            if (match := re.fullmatch(rf"{stem}_(\d+)\.{ending}", path_of(file).name))
        }
        if numbers:
            return numbers
    return {}


def _shard_ids(name: str, rows: Ints) -> list[str]:
    """Ids of some rows: of the first of `ID_COLUMNS`, or the shard's name with the row."""
    with open_file(metadata_of(name)) as file:
        whole = pq.ParquetFile(file)
        column = next((one for one in ID_COLUMNS if one in whole.schema_arrow.names), None)
        if column is None:
            return [f"{path_of(name).stem}/{row}" for row in rows]
        ids = whole.read([column], use_threads=False)[column]
        return [str(value) for value in ids.take(rows).to_pylist()]


def _bad_layout(directory: Path, problem: str) -> InputError:
    return InputError(f"{directory} {problem}", code="bad-file", value=str(directory))


def _shards(directory: Path, stem: str, ending: str) -> dict[int, Path]:
    """Parts by number: `stem_N.ending`, in the directory or in its subdirectory `stem`."""
    for place in (directory, directory / stem):
        shards = {
            int(match[1]): path
            for path in place.glob(f"{stem}_*.{ending}")
            if (match := re.fullmatch(rf"{stem}_(\d+)\.{ending}", path.name))
        }
        if shards:
            return dict(sorted(shards.items()))
    return {}
