"""`hfds:NAME_OR_DIR`: what the library `datasets` can read, if it is installed.

A directory is one that `save_to_disk` wrote, or one that `load_dataset` understands: directories
of images, Parquet files. A name is a dataset of the Hub: with `?download=yes` the library reads it
from its cache or downloads it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from tiltmeter.datasets.found_images import OPTIONS, count_rows, group_counts, readable
from tiltmeter.datasets.options import flag
from tiltmeter.errors import InputError, MissingError, UnknownNameError
from tiltmeter.io.image_files import GeneratedImages, decode, outside_root
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns, item_ids, label_groups
from tiltmeter.results import label_hash
from tiltmeter.types import Faces


def load(spec: Spec, columns: Columns) -> Faces:
    """Faces: a Hugging Face dataset, from the Hub or local (huggingface.co/datasets; see its card).

    `?split=test`, `?image=COLUMN`, `?groups=gender,race`, `?config=NAME`, `?download=yes`.
    """
    spec.check_options("attributes", "split", "image", "groups", "config", "download", *OPTIONS)
    if columns.names is None and "groups" in spec.options:
        columns = Columns(spec.options["groups"].split(","), columns.also)
    data = _split(spec, _open(spec))
    image = _image_column(spec, data)
    library = _library()
    stored = data.select_columns([image]).cast_column(image, library.Image(decode=False))
    table = _labels(data, image)

    stored_image = partial(_stored, stored, image, Path(spec.rest))
    check = flag(spec, "check")
    bad = [row for row in range(len(data)) if check and not readable(stored_image(row))]
    rows = sorted(set(range(len(data))) - set(bad))
    found = count_rows(spec, len(rows), unreadable=[f"row {row}" for row in bad] if check else None)
    if not rows:
        raise InputError(
            f"hfds: {spec.rest} has no readable image", code="no-images", value=spec.rest
        )
    groups = label_groups(table.take(rows), spec.rest, columns)
    ids = item_ids(table, spec.rest)
    kept = tuple(ids[row] for row in rows)
    labels = {name: [g.names[code] for code in g.codes] for name, g in groups.items()}
    return Faces(
        ids=kept,
        groups=groups,
        images=GeneratedImages(partial(_decoded, stored_image), rows),
        name=Path(spec.rest).name,
        provenance={
            "fingerprint": data._fingerprint,
            "labels": label_hash(kept, labels),
            "found": {**found, "images": len(rows), "groups": group_counts(groups.values())},
        },
    )


def _library() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError:
        raise MissingError("hfds:", "datasets") from None


def _open(spec: Spec) -> Any:
    place = Path(spec.rest)
    local = bool(spec.rest) and place.is_dir()
    if not local and not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", spec.rest):
        raise InputError(
            f"hfds:{spec.rest} is neither a directory nor the name of a dataset",
            code="bad-option",
            value=spec.rest,
        )
    if not local and not flag(spec, "download"):
        raise InputError(
            f"hfds:{spec.rest} is not a directory; if it is a dataset of the Hub, add "
            "?download=yes to read it from the cache or download it",
            code="not-found",
            value=spec.rest,
        )
    library = _library()
    try:
        if (place / "state.json").is_file() or (place / "dataset_dict.json").is_file():
            return library.load_from_disk(str(place))
        return library.load_dataset(spec.rest, spec.options.get("config"))
    except Exception as error:  # the library raises its own and others' errors
        raise InputError(
            f"hfds: {spec.rest} cannot be loaded: {error}", code="bad-file", value=spec.rest
        ) from error


def _split(spec: Spec, data: Any) -> Any:
    """One of the splits; ?split is needed if there are several."""
    if not hasattr(data, "keys"):
        if "split" in spec.options:
            raise InputError(
                f"hfds: {spec.rest} has no splits; remove ?split",
                code="bad-option",
                value=spec.options["split"],
            )
        return data
    name = spec.options.get("split", next(iter(data)) if len(data) == 1 else "")
    if name not in data:
        raise UnknownNameError(f"split of {spec.rest} (?split=...)", name, list(data))
    return data[name]


def _image_column(spec: Spec, data: Any) -> str:
    kind = _library().Image
    columns = [name for name, feature in data.features.items() if isinstance(feature, kind)]
    wanted = spec.options.get("image", columns[0] if len(columns) == 1 else "")
    if wanted not in columns:
        raise UnknownNameError(f"image column of {spec.rest} (?image=...)", wanted, columns)
    return wanted


def _labels(data: Any, image: str) -> pa.Table:
    """The other columns, with class names instead of numbers."""
    columns: dict[str, Sequence[Any]] = {}
    for name, feature in data.features.items():
        if name == image or type(feature).__name__ not in ("Value", "ClassLabel"):
            continue
        values = data[name][:]
        names = getattr(feature, "names", None)
        columns[name] = values if names is None else [_class(names, value) for value in values]
    if not columns:
        raise InputError("hfds: no columns except the images, so no groups", code="bad-labels")
    return pa.table(columns)


def _class(names: Sequence[str], value: int | None) -> str | None:
    return None if value is None or value < 0 else names[value]  # -1: not labelled


def _decoded(stored_image: Callable[[int], bytes | Path], row: int) -> Any:
    return decode(stored_image(row))


def _stored(stored: Any, image: str, root: Path, row: int) -> bytes | Path:
    """The bytes or the file of an image; no bytes for an empty cell, which is unreadable."""
    cell = stored[row][image] or {}
    if cell.get("bytes") or not cell.get("path"):
        return cell.get("bytes") or b""
    path = Path(cell["path"])
    if root.is_dir() and not path.resolve().is_relative_to(root.resolve()):
        raise outside_root(str(path), root)
    return path
