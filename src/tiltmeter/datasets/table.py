"""`table:FILE`: a CSV, TSV, Parquet or JSONL file of labels, one row per image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from tiltmeter.datasets.found_images import (
    OPTIONS,
    FoundImages,
    count_rows,
    find_images,
    group_counts,
)
from tiltmeter.datasets.options import flag, folder
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.filesystems import RemoteImages, is_url, path_of, places_under, read_bytes
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns, item_ids, label_groups, read_table
from tiltmeter.results import file_hash
from tiltmeter.types import Faces


def load(spec: Spec, columns: Columns) -> Faces:
    """Faces: a table of labels, CSV, TSV, Parquet or JSONL (your own files; your own terms).

    `?attributes=gender,race` are the label columns. `?path=COLUMN` is the column of image files,
    relative to `?root=DIR`, by default the directory of the table. Table and root may be URLs:
    missing images are then noticed when they are embedded.
    """
    spec.check_options("attributes", "path", "root", *OPTIONS)
    path = spec.rest if is_url(spec.rest) else Path(spec.rest)
    table = read_table(path)
    ids = item_ids(table, path)
    labels_hash = (
        file_hash(path) if isinstance(path, Path) else sha256(read_bytes(path)).hexdigest()
    )
    data = Faces(ids, {}, name=path_of(path).stem, provenance={"labels": labels_hash})
    if "path" not in spec.options:
        if unused := [name for name in ("root", *OPTIONS) if name in spec.options]:
            raise InputError(
                f"table: ?{unused[0]} needs the column of image files, ?path=COLUMN",
                code="bad-option",
                value=unused[0],
            )
        groups = label_groups(table, path, columns)
        found = {"rows": len(ids), "groups": group_counts(groups.values())}
        return replace(data, groups=groups, provenance={**data.provenance, "found": found})
    column = spec.options["path"]
    if column not in table.column_names:
        raise UnknownNameError(f"path column of {path}:", column, table.column_names)
    names = [str(name or "") for name in table[column].to_pylist()]
    present = _find(spec, path, names)
    # the same columns whichever images are missing
    wanted = list(label_groups(table, path, replace(columns, skip=(column,))))
    groups = label_groups(table.take(present.rows), path, Columns(wanted))
    found = {**present.found, "groups": group_counts(groups.values())}
    return replace(
        data,
        ids=present.select(ids),
        groups=groups,
        images=present.images,
        provenance={**data.provenance, "found": found},
    )


def _find(spec: Spec, path: Path | str, names: Sequence[str]) -> FoundImages:
    """The images under the root; at a URL they are not checked, which would take too long."""
    root = spec.options.get("root", "")
    if not is_url(root or path):
        return find_images(spec, folder(spec, "root") or Path(path).parent, names)
    places = places_under(root or str(path).rpartition("/")[0], names)
    if flag(spec, "check"):
        raise InputError("table: ?check=yes works for local images only", code="bad-option")
    found = {**count_rows(spec, len(names), missing=None, unreadable=None), "images": len(names)}
    return FoundImages(RemoteImages.at(places), list(range(len(names))), found)
