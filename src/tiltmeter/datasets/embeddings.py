"""`embeddings:DIR`: image embeddings computed elsewhere, with labels.

Our layout is `images.npy` next to `images.csv` (or .tsv, .parquet). clip-retrieval's is
`img_emb/img_emb_0.npy`, ... next to `metadata/metadata_0.parquet`, ..., or all in one directory.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa

from tiltmeter.datasets.found_images import group_counts
from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import (
    Columns,
    find_table,
    item_ids,
    label_groups,
    read_table,
    read_vectors,
)
from tiltmeter.results import content_hash, label_hash
from tiltmeter.types import Faces


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
