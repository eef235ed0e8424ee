"""`coco:JSON`: captions in the layout of MS-COCO, such as captions_val2017.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tiltmeter.datasets.found_images import OPTIONS, count_rows, find_images
from tiltmeter.datasets.options import file, folder
from tiltmeter.datasets.reading import read_json
from tiltmeter.datasets.roles import Captions
from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.results import file_hash


def load(spec: Spec, columns: Columns) -> Captions:
    """Captions: MS-COCO's (cocodataset.org; captions CC BY 4.0, images under Flickr's terms).

    `?images=DIR` is the directory of the images; without it there are only captions.
    """
    del columns  # no groups
    spec.check_options("images", *OPTIONS)
    path = file(spec)
    content = read_json(path)
    try:
        names = {image["id"]: str(image["file_name"]) for image in content["images"]}
        pairs = [(row["image_id"], str(row["caption"]).strip()) for row in content["annotations"]]
    except (KeyError, TypeError):
        raise InputError(
            f"{path} does not have COCO's layout: images with id and file_name, annotations with "
            "image_id and caption",
            code="bad-file",
            value=str(path),
        ) from None
    good = [(names[image], text) for image, text in pairs if image in names and text]
    bad = [f"{image}: {text!r}" for image, text in pairs if image not in names or not text]
    place = folder(spec, "images")
    return captions(spec, path, good, place, malformed=bad, name=path.stem)


def captions(
    spec: Spec,
    source: Path,
    pairs: Sequence[tuple[str, str]],
    place: Path | None,
    *,
    malformed: Sequence[str] = (),
    name: str,
) -> Captions:
    """Captions from pairs of an image file and a text.

    Parameters
    ----------
    spec
        The spec of the dataset.
    source
        The file with the texts.
    pairs
        Image files and texts.
    place
        The directory of the images: captions of missing ones are dropped. None: texts only.
    malformed
        Lines that could not be parsed.
    name
        The name of the dataset.
    """
    if not pairs:
        raise InputError(
            f"{spec.scheme}: {source} has no captions", code="bad-file", value=str(source)
        )
    files = list(dict.fromkeys(file for file, _ in pairs))
    present = None if place is None else find_images(spec, place, files, malformed=malformed)
    files = files if present is None else list(present.select(files))
    row = {file: at for at, file in enumerate(files)}
    kept = [(row[file], text) for file, text in pairs if file in row]
    found = (
        count_rows(spec, len(kept), malformed=malformed)
        if present is None
        else {**present.found, "texts": len(kept)}
    )
    return Captions(
        ids=tuple(files),
        texts=tuple(text for _, text in kept),
        of=np.array([at for at, _ in kept], dtype=np.int64),
        images=None if present is None else present.images,
        name=name,
        provenance={"captions": file_hash(source), "found": found},
    )
