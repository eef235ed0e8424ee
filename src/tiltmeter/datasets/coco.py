"""`coco:JSON`: captions in the layout of MS-COCO, such as captions_val2017.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tiltmeter.datasets.found_images import OPTIONS, look, record
from tiltmeter.datasets.options import file, folder
from tiltmeter.datasets.reading import read_json
from tiltmeter.datasets.roles import Captions
from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.results import file_hash


def load(spec: Spec, columns: Columns) -> Captions:
    """Captions: MS-COCO's (cocodataset.org; captions CC BY 4.0, pictures under Flickr's terms).

    `?images=DIR` is the folder of the pictures; without it there are captions alone.
    """
    del columns  # no groups
    spec.only("images", *OPTIONS)
    path = file(spec)
    content = read_json(path)
    try:
        names = {image["id"]: str(image["file_name"]) for image in content["images"]}
        told = [(one["image_id"], str(one["caption"]).strip()) for one in content["annotations"]]
    except (KeyError, TypeError):
        raise InputError(
            f"{path} has not COCO's layout: images with id and file_name, annotations with "
            "image_id and caption"
        ) from None
    good = [(names[image], text) for image, text in told if image in names and text]
    bad = [f"{image}: {text!r}" for image, text in told if image not in names or not text]
    place = folder(spec, "images")
    return captions(spec, path, good, place, malformed=bad, name=path.stem)


def captions(
    spec: Spec,
    source: Path,
    told: Sequence[tuple[str, str]],
    place: Path | None,
    *,
    malformed: Sequence[str] = (),
    name: str,
) -> Captions:
    """Pairs of a picture's file and a text as Captions, of those pictures that are at `place`."""
    if not told:
        raise InputError(f"{spec.scheme}: {source} has no caption of a picture")
    files = list(dict.fromkeys(file for file, _ in told))
    looked = None if place is None else look(spec, place, files, malformed=malformed)
    files = files if looked is None else list(looked.of(files))
    row = {file: at for at, file in enumerate(files)}
    kept = [(row[file], text) for file, text in told if file in row]
    found = (
        record(spec, len(kept), malformed=malformed)
        if looked is None
        else {**looked.found, "texts": len(kept)}
    )
    return Captions(
        ids=tuple(files),
        texts=tuple(text for _, text in kept),
        of=np.array([at for at, _ in kept], dtype=np.int64),
        images=None if looked is None else looked.pictures,
        name=name,
        provenance={"captions": file_hash(source), "found": found},
    )
