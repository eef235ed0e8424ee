"""`utkface:DIR`: UTKFace; labels are in file names: age_gender_race_date.jpg.chip.jpg.

The labels were estimated by a program and checked by annotators. Some files of the release lack
one: they are recorded as malformed, not guessed.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

from tiltmeter.datasets.found_images import OPTIONS, find_images, list_images
from tiltmeter.datasets.labelled import labelled_faces
from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.types import Faces

GENDERS = ("Male", "Female")
RACES = ("White", "Black", "Asian", "Indian", "Other")
#: The youngest ages of FairFace's age bands.
BANDS = (0, 3, 10, 20, 30, 40, 50, 60, 70)
#: Two files of the release have a space before the dot, or no dot, and every label.
NAME = re.compile(r"(\d{1,3})_([01])_([0-4])_\d+ ?\.?jpg(\.chip\.jpg)?")


def load(spec: Spec, columns: Columns) -> Faces:
    """Faces: UTKFace, perceived labels (susanqq.github.io/UTKFace; non-commercial research).

    `?bands=0,18,65` are the youngest ages of the age bands; by default FairFace's.
    """
    spec.check_options("attributes", "bands", *OPTIONS)
    starts = _starts(spec)
    directory = spec.directory()
    names, malformed = [], []
    labels: dict[str, list[str]] = {"gender": [], "race": [], "age": []}
    for name in list_images(directory):
        parsed = NAME.fullmatch(name.rpartition("/")[2])
        if parsed is None or int(parsed[1]) < starts[0]:
            malformed.append(name)
            continue
        names.append(name)
        labels["gender"].append(GENDERS[int(parsed[2])])
        labels["race"].append(RACES[int(parsed[3])])
        labels["age"].append(band(int(parsed[1]), starts))
    present = find_images(spec, directory, names, malformed=malformed)
    return labelled_faces(
        present, names, labels, columns, name="utkface", provenance={"bands": list(starts)}
    )


def band(age: int, starts: Sequence[int] = BANDS) -> str:
    """The age band of an age, by default FairFace's.

    Parameters
    ----------
    age
        In years.
    starts
        The youngest age of each band.

    Examples
    --------
    >>> band(2), band(69), band(70), band(20, [0, 18, 65]), band(65, [0, 18, 65])
    ('0-2', '60-69', 'more than 70', '18-64', '65+')
    """
    at = bisect_right(starts, age) - 1
    if at < len(starts) - 1:
        return f"{starts[at]}-{starts[at + 1] - 1}"
    return "more than 70" if tuple(starts) == BANDS else f"{starts[at]}+"  # FairFace's own wording


def _starts(spec: Spec) -> tuple[int, ...]:
    try:
        given = spec.options.get("bands")
        starts = BANDS if given is None else tuple(int(part) for part in given.split(","))
    except ValueError:
        starts = ()
    if not starts or list(starts) != sorted(set(starts)):
        raise InputError(
            f"utkface: bands must be increasing ages, such as 0,18,65; got "
            f"{spec.options['bands']!r}",
            code="bad-option",
            value=spec.options["bands"],
        )
    return starts
