"""`folder:DIR`: pictures in one folder for each group, such as morphs made within groups."""

from __future__ import annotations

from tiltmeter.datasets.found_images import OPTIONS, listed, look
from tiltmeter.datasets.labelled import faces
from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.types import Faces


def load(spec: Spec, columns: Columns) -> Faces:
    """Faces: pictures in one folder for each group (your own files; your own terms).

    DIR/black_woman/1.jpg is of the group `black_woman`; with `?parts=race_gender` of race `black`
    and gender `woman`, where all but the first part are the last words of the name.
    """
    spec.only("attributes", "parts", *OPTIONS)
    parts = spec.options.get("parts", "group").split("_")
    if not all(parts) or len(set(parts)) < len(parts):
        raise InputError(
            f"folder: parts must be names with _ between, such as race_gender; got "
            f"{spec.options['parts']!r}"
        )
    directory = spec.directory()
    names, malformed = [], []
    labels: dict[str, list[str]] = {part: [] for part in parts}
    for name in listed(directory):
        group, inside, _ = name.partition("/")
        values = group.rsplit("_", len(parts) - 1)
        if not inside or len(values) != len(parts) or not all(values):
            malformed.append(name)
            continue
        names.append(name)
        for part, value in zip(parts, values, strict=True):
            labels[part].append(value)
    looked = look(spec, directory, names, malformed=malformed)
    return faces(looked, names, labels, columns, name=directory.resolve().name)
