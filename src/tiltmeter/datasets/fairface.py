"""`fairface:DIR`: FairFace, with race, gender and age as perceived by annotators.

DIR contains fairface_label_val.csv and fairface_label_train.csv as released, and the images as
val/1.jpg, ..., also in a directory named by the padding, such as
fairface-img-margin025-trainval/val/1.jpg.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from tiltmeter.datasets.found_images import OPTIONS, find_images
from tiltmeter.datasets.labelled import labelled_faces
from tiltmeter.datasets.options import choice
from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns, read_table
from tiltmeter.types import Faces

PADDINGS = ("025", "125")
USUAL = ("gender", "race", "age")


def load(spec: Spec, columns: Columns) -> Faces:
    """Faces: FairFace, perceived labels (github.com/joojs/fairface; CC BY 4.0).

    `?split=val` (or train), `?padding=025` (or 125) if there are images of both.
    """
    spec.check_options("attributes", "split", "padding", *OPTIONS)
    split = choice(spec, "split", ("val", "train"))
    directory = spec.directory()
    table = read_table(_label_file(directory, split))
    if "file" not in table.column_names:
        raise InputError(
            f"{directory}: the label table has no column `file`",
            code="bad-file",
            value=str(directory),
        )
    files = [_in_split(str(name), split) for name in table["file"].to_pylist()]
    present = find_images(spec, _image_root(spec, directory, split), files)
    labels = {name: table[name].to_pylist() for name in table.column_names if name != "file"}
    return labelled_faces(present, files, labels, columns, name=f"fairface-{split}", usual=USUAL)


def _label_file(directory: Path, split: str) -> Path:
    name = f"fairface_label_{split}.csv"
    if not (directory / name).is_file():
        near = sorted(place.parent for place in directory.glob(f"*/{name}"))
        near += [directory.parent] * (directory.parent / name).is_file()
        instead = f"did you mean fairface:{near[0]}?" if near else "it is part of the release"
        raise InputError(
            f"fairface: {directory} has no {name}; {instead}",
            code="not-found",
            value=str(directory),
        )
    return directory / name


def _in_split(name: str, split: str) -> str:
    """The image's path on disk: released tables have different prefixes."""
    parts = PurePosixPath(name).parts
    if "/" in parts or ".." in parts or parts[-2:-1] not in ((), (split,)):
        return name  # not an image of the split: reported as missing
    return f"{split}/{parts[-1]}"


def _image_root(spec: Spec, directory: Path, split: str) -> Path:
    """The directory that has the split's directory."""
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
                f"fairface: {directory} has no directory for padding {padding}, such as "
                f"fairface-img-margin{padding}-trainval/{split}; without ?padding, "
                f"{directory / split} is read",
                code="not-found",
                value=padding,
            )
        return by_padding[padding]
    if (directory / split).is_dir() or not by_padding:
        return directory
    if len(by_padding) > 1:
        raise InputError(
            f"fairface: {directory} has both paddings: choose ?padding=025 or 125",
            code="bad-option",
            value=str(directory),
        )
    return next(iter(by_padding.values()))
