"""Faces from pictures that were found and the labels that came with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tiltmeter.datasets.found_images import FoundImages, counts
from tiltmeter.errors import InputError
from tiltmeter.io.tables import Columns, label_groups
from tiltmeter.results import label_hash
from tiltmeter.types import Faces


def faces(
    looked: FoundImages,
    ids: Sequence[str],
    labels: Mapping[str, Sequence[Any]],
    columns: Columns,
    *,
    name: str,
    usual: Sequence[str] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Faces:
    """The pictures found, with the labels of their rows.

    `ids` and `labels` are those of the whole list. Without a wish in `columns` the attributes are
    those `usual`, all by default, in which the pictures differ.
    """
    table = pa.table({attribute: list(looked.of(values)) for attribute, values in labels.items()})
    wanted = columns.names
    if wanted is None:  # what all have in common divides nobody
        usual = list(labels) if usual is None else usual
        wanted = [one for one in usual if len(table[one].unique()) > 1] or usual
    groups = label_groups(table, name, Columns(wanted, columns.also, columns.optional))
    kept = looked.of(ids)
    if len(set(kept)) < len(kept):
        twice = next(one for one, count in Counter(kept).items() if count > 1)
        raise InputError(f"{name}: {twice!r} is listed twice; each image must stand there once")
    given = {attribute: [g.names[c] for c in g.codes] for attribute, g in groups.items()}
    found = {**looked.found, "groups": counts(groups.values())}
    return Faces(
        ids=kept,
        groups=groups,
        images=looked.pictures,
        name=name,
        provenance={"labels": label_hash(kept, given), **(provenance or {}), "found": found},
    )
