"""`oasis:DIR`: OASIS, 900 images with their valence as rated by people, from 1 to 7."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from tiltmeter.datasets.found_images import OPTIONS, find_images, list_images
from tiltmeter.datasets.roles import ValenceImages, rescale_to_unit_interval
from tiltmeter.errors import InputError
from tiltmeter.io.filesystems import no_file
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.results import file_hash

LOW, HIGH = 1, 7


def load(spec: Spec, columns: Columns) -> ValenceImages:
    """Valence: OASIS, images rated from 1 to 7 (osf.io/6pnd7; free for research).

    DIR contains OASIS.csv and the images, named by their theme, there or in a subdirectory.
    """
    del columns  # no groups
    spec.check_options(*OPTIONS)
    directory = spec.directory()
    rows, malformed = _ratings(directory / "OASIS.csv")
    on_disk = {_key(Path(name).stem): name for name in list_images(directory)}
    names = [on_disk.get(_key(row["Theme"]), f"{row['Theme']}.jpg") for row in rows]
    present = find_images(spec, directory, names, malformed=malformed)
    ratings = np.array(present.select([float(row["Valence_mean"]) for row in rows]))
    return ValenceImages(
        ids=present.select([row["Theme"] for row in rows]),
        valence=rescale_to_unit_interval(ratings, LOW, HIGH),
        images=present.images,
        categories=present.select([row["Category"] for row in rows]),
        name="oasis",
        provenance={
            "ratings": file_hash(directory / "OASIS.csv"),
            "scale": [LOW, HIGH],
            "found": present.found,
        },
    )


def _key(theme: str) -> str:
    """Themes and file names differ in case and trailing blanks."""
    return theme.strip().casefold()


def _ratings(path: Path) -> tuple[list[dict[str, str]], list[str]]:
    """The rows, and the names of those without a rating. Lines of the release end with CR."""
    if not path.is_file():
        raise no_file(path, "file of oasis")
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = csv.DictReader(file)
        if lacking := {"Theme", "Category", "Valence_mean"} - set(reader.fieldnames or ()):
            raise InputError(
                f"{path} lacks the columns {', '.join(sorted(lacking))}",
                code="bad-file",
                value=str(path),
            )
        good, bad = [], []
        for row in reader:
            try:
                rated = LOW <= float(row["Valence_mean"] or "nan") <= HIGH
            except ValueError:
                rated = False
            if rated and row["Theme"]:
                good.append(
                    row | {"Theme": row["Theme"].strip(), "Category": row["Category"] or ""}
                )
            else:
                bad.append(str(row["Theme"]))
    return good, bad
