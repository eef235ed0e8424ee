"""Faces from images and their labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tiltmeter.datasets.found_images import FoundImages, group_counts
from tiltmeter.errors import InputError
from tiltmeter.io.tables import Columns, label_groups
from tiltmeter.results import label_hash
from tiltmeter.types import Faces


def labelled_faces(
    present: FoundImages,
    ids: Sequence[str],
    labels: Mapping[str, Sequence[Any]],
    columns: Columns,
    *,
    name: str,
    usual: Sequence[str] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Faces:
    """Faces from the images that exist, with their labels.

    Parameters
    ----------
    present
        The images that exist.
    ids, labels
        The ids, and the labels by attribute, of the whole list.
    columns
        The label columns to read.
    name
        The name of the dataset.
    usual
        The attributes if `columns` has no names, without those that all images have in common.
        Defaults to all.
    provenance
        What else to record.
    """
    table = pa.table({column: list(present.select(values)) for column, values in labels.items()})
    wanted = columns.names
    if wanted is None:
        usual = list(labels) if usual is None else usual
        wanted = [column for column in usual if len(table[column].unique()) > 1] or usual
    groups = label_groups(table, name, Columns(wanted, columns.also, columns.optional))
    kept = present.select(ids)
    if len(set(kept)) < len(kept):
        twice = next(image for image, count in Counter(kept).items() if count > 1)
        raise InputError(
            f"{name}: {twice!r} is listed twice; list each image once",
            code="bad-labels",
            value=twice,
        )
    kept_labels = {attribute: [g.names[c] for c in g.codes] for attribute, g in groups.items()}
    found = {**present.found, "groups": group_counts(groups.values())}
    return Faces(
        ids=kept,
        groups=groups,
        images=present.images,
        name=name,
        provenance={"labels": label_hash(kept, kept_labels), **(provenance or {}), "found": found},
    )
