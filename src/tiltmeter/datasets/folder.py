"""`folder:DIR`: images in one directory per group, such as morphs within groups."""

from __future__ import annotations

from tiltmeter.datasets.found_images import OPTIONS, find_images, list_images
from tiltmeter.datasets.labelled import labelled_faces
from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.types import Faces


def load(spec: Spec, columns: Columns) -> Faces:
    """Faces: images in one directory per group (your own files; your own terms).

    DIR/black_woman/1.jpg is in the group `black_woman`; with `?parts=race_gender`, in race `black`
    and gender `woman`. All parts but the first are one word each, from the end of the name.
    """
    spec.check_options("attributes", "parts", *OPTIONS)
    parts = spec.options.get("parts", "group").split("_")
    if not all(parts) or len(set(parts)) < len(parts):
        raise InputError(
            f"folder: parts must be names joined by _, such as race_gender; got "
            f"{spec.options['parts']!r}",
            code="bad-option",
            value=spec.options["parts"],
        )
    directory = spec.directory()
    names, malformed = [], []
    labels: dict[str, list[str]] = {part: [] for part in parts}
    for name in list_images(directory):
        group, inside, _ = name.partition("/")
        values = group.rsplit("_", len(parts) - 1)
        if not inside or len(values) != len(parts) or not all(values):
            malformed.append(name)
            continue
        names.append(name)
        for part, value in zip(parts, values, strict=True):
            labels[part].append(value)
    if malformed and not names:
        raise InputError(
            f"folder: none of the {len(malformed):,} images under {directory} is in a directory "
            f"named by its {'_'.join(parts)}, such as {directory}/woman/1.jpg: sort them into such "
            "directories, or list them with their labels in a table (table:FILE?path=COLUMN)",
            code="no-images",
            value=spec.rest,
        )
    present = find_images(spec, directory, names, malformed=malformed)
    return labelled_faces(present, names, labels, columns, name=directory.resolve().name)
