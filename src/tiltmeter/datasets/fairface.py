"""`fairface:DIR`: FairFace, with labels of race, gender and age that annotators perceived.

DIR holds fairface_label_val.csv and fairface_label_train.csv as they were released, and the
pictures as val/1.jpg, ..., or in a folder named by its padding, such as
fairface-img-margin025-trainval/val/1.jpg.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from tiltmeter.datasets.found_images import OPTIONS, look
from tiltmeter.datasets.labelled import faces
from tiltmeter.datasets.options import choice
from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns, read_table
from tiltmeter.types import Faces

PADDINGS = ("025", "125")
USUAL = ("gender", "race", "age")


def load(spec: Spec, columns: Columns) -> Faces:
    """Faces: FairFace, perceived labels (github.com/joojs/fairface; CC BY 4.0).

    `?split=val` (or train), `?padding=025` (or 125) where pictures of both lie side by side.
    """
    spec.only("attributes", "split", "padding", *OPTIONS)
    split = choice(spec, "split", ("val", "train"))
    directory = spec.directory()
    table = read_table(directory / f"fairface_label_{split}.csv")
    if "file" not in table.column_names:
        raise InputError(f"{directory}: the label table has no column `file`")
    files = [_in_split(str(name), split) for name in table["file"].to_pylist()]
    looked = look(spec, _pictures(spec, directory, split), files)
    labels = {name: table[name].to_pylist() for name in table.column_names if name != "file"}
    return faces(looked, files, labels, columns, name=f"fairface-{split}", usual=USUAL)


def _in_split(name: str, split: str) -> str:
    """The picture's name as it lies on disk: released tables differ in what they put before it."""
    parts = PurePosixPath(name).parts
    if "/" in parts or ".." in parts or parts[-2:-1] not in ((), (split,)):
        return name  # as it stands: not where pictures of the split are
    return f"{split}/{parts[-1]}"


def _pictures(spec: Spec, directory: Path, split: str) -> Path:
    """The folder in which the split's folder lies."""
    by_padding = {
        padding: place
        for padding in PADDINGS
        for place in (directory, *sorted(directory.iterdir()))
        if padding in place.name and (place / split).is_dir()
    }
    if "padding" in spec.options:
        padding = choice(spec, "padding", PADDINGS)
        if padding not in by_padding:
            raise InputError(
                f"fairface: {directory} has no folder of padding {padding}, such as "
                f"fairface-img-margin{padding}-trainval/{split}; leave ?padding out to read "
                f"{directory / split}"
            )
        return by_padding[padding]
    if (directory / split).is_dir() or not by_padding:
        return directory
    if len(by_padding) > 1:
        raise InputError(f"fairface: {directory} has both paddings: choose ?padding=025 or 125")
    return next(iter(by_padding.values()))
