"""`flickr30k:DIR`: Flickr30k (or Flickr8k), in any of the usual layouts of its captions.

results_20130124.token (image#0, tab, text), results.csv (image| number| text), captions.txt
(image,text), Karpathy's dataset_flickr30k.json, which has splits, or the release of Flickr8k:
Flickr8k.token.txt with a list of images per split.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiltmeter.datasets.coco import captions
from tiltmeter.datasets.found_images import OPTIONS
from tiltmeter.datasets.options import choice
from tiltmeter.datasets.reading import read_json
from tiltmeter.datasets.roles import Captions
from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns

FOLDERS = ("flickr30k-images", "flickr30k_images", "images", "Images", "Flicker8k_Dataset")
Parsed = tuple[list[tuple[str, str]], list[str]]  # pairs of file and text, malformed lines


def load(spec: Spec, columns: Columns) -> Captions:
    """Captions: Flickr30k (shannon.cs.illinois.edu/DenotationGraph; non-commercial research).

    The images are in flickr30k-images or images; `?images=no` does not read them. `?split=test`
    (or train, val) needs Karpathy's dataset_flickr30k.json, or the lists of Flickr8k's release.
    """
    del columns  # no groups
    spec.check_options("split", "images", *OPTIONS)
    split = choice(spec, "split", ("all", "train", "val", "test"))
    wanted = choice(spec, "images", ("yes", "no")) == "yes"
    directory = spec.directory()
    known = {name: read for name, read in READERS.items() if (directory / name).is_file()}
    if split != "all":
        known = {name: read for name, read in known.items() if read in (_karpathy, _flickr8k)}
    if not known:
        splits = "dataset_flickr30k.json or Flickr8k.token.txt, for splits"
        needed = splits if split != "all" else ", ".join(READERS)
        raise InputError(
            f"flickr30k: {directory} has no captions: expected {needed}",
            code="not-found",
            value=str(directory),
        )
    name, read = next(iter(known.items()))
    pairs, malformed = read(directory / name, split)
    places = (directory / folder for folder in FOLDERS)
    place = next((folder for folder in places if folder.is_dir()), directory)
    return captions(
        spec,
        directory / name,
        pairs,
        place if wanted else None,
        malformed=malformed,
        name="-".join(
            ["flickr8k" if "8k" in name else "flickr30k"] + ([] if split == "all" else [split])
        ),
    )


def _lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    return [line for line in text.split("\n") if line.strip()]


def _separate(pairs: list[tuple[str, str]], lines: list[str]) -> Parsed:
    """Pairs with both a file and a text, and the lines of the others."""
    good = [pair for pair in pairs if all(pair)]
    return good, [line for pair, line in zip(pairs, lines, strict=True) if not all(pair)]


def _token(path: Path, split: str) -> Parsed:
    del split
    lines = _lines(path)
    parts = [line.partition("\t") for line in lines]
    return _separate([(name.partition("#")[0], text.strip()) for name, _, text in parts], lines)


def _flickr8k(path: Path, split: str) -> Parsed:
    pairs, malformed = _token(path, split)
    if split == "all":
        return pairs, malformed
    listed = path.with_name(f"Flickr_8k.{'dev' if split == 'val' else split}Images.txt")
    if not listed.is_file():
        raise InputError(
            f"flickr30k: split={split} needs {listed}, the list of its images",
            code="not-found",
            value=str(listed),
        )
    files = {line.strip() for line in _lines(listed)}
    return [pair for pair in pairs if pair[0] in files], malformed


def _bars(path: Path, split: str) -> Parsed:
    del split
    lines = _lines(path)[1:]
    parts = [(*line.split("|", 2), "", "")[:3] for line in lines]
    return _separate([(name.strip(), text.strip()) for name, _, text in parts], lines)


def _commas(path: Path, split: str) -> Parsed:
    del split
    lines = _lines(path)[1:]
    rows = [(*row, "", "") for row in csv.reader(lines)]
    return _separate([(row[0].strip(), row[1].strip()) for row in rows], lines)


def _karpathy(path: Path, split: str) -> Parsed:
    try:
        images: list[dict[str, Any]] = read_json(path)["images"]
        return [
            (image["filename"], sentence["raw"].strip())
            for image in images
            if split in ("all", image["split"])
            for sentence in image["sentences"]
        ], []
    except (KeyError, TypeError, AttributeError):
        raise InputError(
            f"{path} does not have Karpathy's layout: images with filename, split, sentences",
            code="bad-file",
            value=str(path),
        ) from None


READERS: dict[str, Callable[[Path, str], Parsed]] = {
    "results_20130124.token": _token,
    "results.csv": _bars,
    "captions.txt": _commas,
    "dataset_flickr30k.json": _karpathy,
    "dataset_flickr8k.json": _karpathy,
    "Flickr8k.token.txt": _flickr8k,
}
