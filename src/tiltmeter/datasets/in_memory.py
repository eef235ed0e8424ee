"""Faces from what a program has at hand: arrays of embeddings, image files, tables of labels."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.filesystems import no_file
from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.io.tables import Columns, label_groups
from tiltmeter.metrics.arrays import is_torch, matrix, to_numpy
from tiltmeter.results import label_hash
from tiltmeter.types import Faces, Floats, Groups


def faces(
    images: Any,
    labels: Any,
    *,
    attributes: Sequence[str] | None = None,
    ids: Sequence[str] | None = None,
    name: str = "faces",
) -> Faces:
    """Images with group labels, from arrays, paths, DataFrames and dictionaries.

    Parameters
    ----------
    images : array of shape (images, dimensions), sequence of paths, or sequence of PIL images
        Embeddings that the audited model made, or the images. A DataFrame of numbers is an array.
    labels : mapping, DataFrame or sequence
        Labels by attribute, such as `{"gender": [...], "race": [...]}`; a DataFrame or Arrow table,
        of which text columns with few distinct values are labels; or the labels of one attribute,
        which is then named `group`. Labels are perceived labels, given by annotators.
    attributes : sequence of str, optional
        Which columns of a DataFrame are labels, or which keys of a mapping to use.
    ids : sequence of str, optional
        One identifier per image. By default the paths, or row numbers.
    name : str
        Name of the data, in tables and reports.

    Returns
    -------
    Faces
        For `audit(model, faces)`.

    Raises
    ------
    InputError
        Images and labels do not fit together, labels are missing, or a file does not exist.
    UnknownNameError
        There is no such attribute.

    Examples
    --------
    >>> made = faces(np.eye(4), {"gender": ["woman", "man", "man", "woman"]})
    >>> len(made), made.groups["gender"].names
    (4, ('man', 'woman'))
    """
    groups = _groups(labels, attributes)
    vectors, content = _content(images)
    count = len(content if vectors is None else vectors)
    for attribute, one in groups.items():
        if len(one) != count:
            raise InputError(
                f"{count:,} images, but {len(one):,} labels of {attribute!r}: one for each image, "
                "in the same order",
                code="bad-labels",
                value=attribute,
            )
    if ids is None:
        paths = [str(path) for path in content.paths] if isinstance(content, ImageFiles) else []
        ids = paths or [str(row) for row in range(count)]
    listed = tuple(map(str, ids))
    if len(listed) != count or len(set(listed)) < count:
        raise InputError(
            f"ids must be {count:,} different names; got {len(listed):,}, "
            f"{len(set(listed)):,} of them different",
            code="bad-labels",
        )
    given = {
        attribute: [one.names[code] for code in one.codes] for attribute, one in groups.items()
    }
    provenance = {"labels": label_hash(listed, given)}
    return Faces(listed, groups, vectors, content, name=name, provenance=provenance)


def _groups(labels: Any, attributes: Sequence[str] | None) -> dict[str, Groups]:
    if isinstance(labels, Groups):
        return {labels.attribute: labels}
    if isinstance(labels, Mapping):
        for name in attributes or ():
            if name not in labels:
                raise UnknownNameError("attribute", name, labels)
        return {
            name: values
            if isinstance(values, Groups)
            else Groups.from_labels(_listed(values), attribute=name)
            for name, values in labels.items()
            if attributes is None or name in attributes
        }
    if hasattr(labels, "columns") or isinstance(labels, pa.Table):
        return label_groups(_arrow(labels), "the table of labels", Columns(attributes))
    if isinstance(labels, str):
        raise InputError(
            f"labels must be given by attribute, such as {{'gender': [...]}}; got {labels!r}",
            code="bad-labels",
            value=labels,
        )
    if attributes is not None and len(attributes) != 1:
        raise InputError("labels of one attribute have one name", code="bad-labels")
    name = "group" if attributes is None else attributes[0]
    return {name: Groups.from_labels(_listed(labels), attribute=name)}


def _listed(values: Any) -> list[Any]:
    """Labels as a list; NumPy's and pandas' missing values become None."""
    values = values.to_list() if hasattr(values, "to_list") else values
    return [None if one is None or one != one else one for one in list(values)]


def _arrow(frame: Any) -> pa.Table:
    if isinstance(frame, pa.Table):
        return frame
    if hasattr(frame, "to_arrow"):  # polars
        return frame.to_arrow()
    return pa.Table.from_pandas(frame, preserve_index=False)


def _content(images: Any) -> tuple[Floats | None, Any]:
    """Embeddings, or images as files or as objects."""
    if is_torch(images) or (isinstance(images, np.ndarray) and images.dtype.kind in "fiu"):
        return _embeddings(to_numpy(images))
    if hasattr(images, "columns"):  # a DataFrame of numbers
        return _embeddings(np.asarray(images))
    listed = list(images.to_list() if hasattr(images, "to_list") else images)
    if not listed:
        raise InputError("there are no images", code="no-images")
    if all(isinstance(one, str | os.PathLike) for one in listed):
        paths = tuple(Path(one).absolute() for one in listed)
        for path in paths:
            if not path.is_file():
                raise no_file(path, "image")
        return None, ImageFiles(paths, Path(os.path.commonpath([path.parent for path in paths])))
    if all(hasattr(one, "convert") for one in listed):  # PIL images
        pictures = [one.convert("RGB") for one in listed]
        return None, GeneratedImages(pictures.__getitem__, range(len(pictures)))
    if hasattr(listed[0], "__len__") or hasattr(listed[0], "__array__"):
        return _embeddings(np.asarray(listed))
    raise InputError(
        "images must be embeddings (images x dimensions), paths, or PIL images; got "
        f"{type(listed[0]).__name__}",
        value=type(listed[0]).__name__,
    )


def _embeddings(vectors: Any) -> tuple[Floats, None]:
    return np.asarray(matrix(vectors, "embeddings", "images", "dimensions")), None
