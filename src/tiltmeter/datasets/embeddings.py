"""`embeddings:DIR`: images that were embedded elsewhere, with their labels.

Our own layout is `images.npy` beside `images.csv` (or .tsv, .parquet). clip-retrieval's is
`img_emb/img_emb_0.npy`, ... beside `metadata/metadata_0.parquet`, ..., also all in one folder.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa

from tiltmeter.datasets.found_images import counts
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
    """Faces: vectors and labels made elsewhere, clip-retrieval's too (your own files; your terms).

    images.npy beside images.csv, or img_emb_0.npy beside metadata_0.parquet.

    `?attributes=gender,race` names the label columns.
    """
    spec.only("attributes")
    directory = spec.directory()
    vectors, table = _read(directory)
    if len(vectors) != table.num_rows:
        raise InputError(
            f"{directory}: {len(vectors)} image vectors, but {table.num_rows} rows of labels: "
            "they must be the same images in the same order"
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
            "found": {"rows": len(ids), "groups": counts(groups.values())},
        },
    )


def _read(directory: Path) -> tuple[np.ndarray, pa.Table]:
    if (directory / "images.npy").is_file():
        labels = find_table(directory, "images")
        if labels is None:
            raise InputError(
                f"{directory} has images.npy but no labels: expected images.csv (or .tsv, "
                ".parquet) with one row a vector"
            )
        return read_vectors([directory / "images.npy"]), read_table(labels)
    shards = _shards(directory, "img_emb", "npy")
    if not shards:
        raise InputError(
            f"{directory} has no image vectors: expected images.npy, or clip-retrieval's "
            "img_emb_0.npy (here or in img_emb/)"
        )
    tables = _shards(directory, "metadata", "parquet")
    if list(shards) != list(tables):
        raise InputError(
            f"{directory}: img_emb has the parts {list(shards)}, metadata {list(tables)}: "
            "each img_emb_N.npy needs its metadata_N.parquet"
        )
    metadata = [read_table(path) for path in tables.values()]
    try:
        joined = pa.concat_tables(metadata, promote_options="permissive")
    except pa.ArrowInvalid as error:
        raise InputError(f"{directory}: the parts of the metadata do not fit: {error}") from None
    return read_vectors(list(shards.values())), joined


def _shards(directory: Path, stem: str, ending: str) -> dict[int, Path]:
    """Parts by number: `stem_N.ending`, in the directory or in its folder `stem`."""
    for place in (directory, directory / stem):
        found = {
            int(match[1]): path
            for path in place.glob(f"{stem}_*.{ending}")
            if (match := re.fullmatch(rf"{stem}_(\d+)\.{ending}", path.name))
        }
        if found:
            return dict(sorted(found.items()))
    return {}
