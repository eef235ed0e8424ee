"""`table:FILE`: any CSV, TSV or Parquet of labels, one row an image."""

from __future__ import annotations

from pathlib import Path

from tiltmeter.inputs import Columns, item_ids, label_groups, read_table
from tiltmeter.results import file_hash
from tiltmeter.specs import Spec
from tiltmeter.types import Faces


def load(spec: Spec, columns: Columns) -> Faces:
    """Labels from a CSV, TSV or Parquet file, one row an image.

    `?attributes=gender,race` names the label columns.
    """
    spec.only("attributes")
    path = Path(spec.rest)
    table = read_table(path)
    return Faces(
        ids=item_ids(table, path),
        groups=label_groups(table, path, columns),
        name=path.stem,
        provenance={"labels": file_hash(path)},
    )
