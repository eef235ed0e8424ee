"""`table:FILE`: any CSV, TSV, Parquet or JSONL of labels, one row an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from tiltmeter.datasets.found_images import OPTIONS, FoundImages, counts, look, record
from tiltmeter.datasets.options import flag, folder
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.places import RemoteImages, content, elsewhere, name_of, under
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns, item_ids, label_groups, read_table
from tiltmeter.results import file_hash
from tiltmeter.types import Faces


def load(spec: Spec, columns: Columns) -> Faces:
    """Faces: a table of labels, CSV, TSV, Parquet or JSONL (your own files; your own terms).

    `?attributes=gender,race` names the label columns; `?path=COLUMN` the column that names each
    row's picture under `?root=DIR`, by default the table's own folder. Both may be URLs; whether a
    picture is there is then seen when it is embedded.
    """
    spec.only("attributes", "path", "root", *OPTIONS)
    path = spec.rest if elsewhere(spec.rest) else Path(spec.rest)
    table = read_table(path)
    ids = item_ids(table, path)
    labels_hash = file_hash(path) if isinstance(path, Path) else sha256(content(path)).hexdigest()
    data = Faces(ids, {}, name=name_of(path).stem, provenance={"labels": labels_hash})
    if "path" not in spec.options:
        if unused := [name for name in ("root", *OPTIONS) if name in spec.options]:
            raise InputError(f"table: ?{unused[0]} is about pictures: name their column, ?path=...")
        groups = label_groups(table, path, columns)
        found = {"rows": len(ids), "groups": counts(groups.values())}
        return replace(data, groups=groups, provenance={**data.provenance, "found": found})
    column = spec.options["path"]
    if column not in table.column_names:
        raise UnknownNameError(f"path column of {path}:", column, table.column_names)
    names = [str(name or "") for name in table[column].to_pylist()]
    looked = _looked(spec, path, names)
    labels = table.drop_columns([column]) if column not in (columns.names or ()) else table
    wanted = list(label_groups(labels, path, columns))  # whatever pictures are missing
    groups = label_groups(labels.take(looked.rows), path, Columns(wanted))
    found = {**looked.found, "groups": counts(groups.values())}
    return replace(
        data,
        ids=looked.of(ids),
        groups=groups,
        images=looked.pictures,
        provenance={**data.provenance, "found": found},
    )


def _looked(spec: Spec, path: Path | str, names: Sequence[str]) -> FoundImages:
    """The pictures under the root; at a URL nobody looks: to ask for each would take as long."""
    root = spec.options.get("root", "")
    if not elsewhere(root or path):
        return look(spec, folder(spec, "root") or Path(path).parent, names)
    places = under(root or str(path).rpartition("/")[0], names)
    if flag(spec, "check"):
        raise InputError("table: ?check=yes takes pictures on this machine's disks")
    found = {**record(spec, len(names), missing=None, unreadable=None), "images": len(names)}
    return FoundImages(RemoteImages.at(places), list(range(len(names))), found)
