"""`utkface:DIR`: UTKFace, whose file names hold labels: age_gender_race_date.jpg.chip.jpg.

The labels were estimated by a program and checked by people who looked at the pictures. Some files
of the release lack one: they are counted and named, not guessed.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

from tiltmeter.datasets.found_images import OPTIONS, listed, look
from tiltmeter.datasets.labelled import faces
from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.types import Faces

GENDERS = ("Male", "Female")
RACES = ("White", "Black", "Asian", "Indian", "Other")
#: Where FairFace's bands of age begin.
BANDS = (0, 3, 10, 20, 30, 40, 50, 60, 70)
NAME = re.compile(r"(\d{1,3})_([01])_([0-4])_\d+\.jpg(\.chip\.jpg)?")


def load(spec: Spec, columns: Columns) -> Faces:
    """Faces: UTKFace, perceived labels (susanqq.github.io/UTKFace; non-commercial research).

    `?bands=0,18,65` makes bands of age that begin there; by default they are FairFace's.
    """
    spec.only("attributes", "bands", *OPTIONS)
    starts = _starts(spec)
    directory = spec.directory()
    names, malformed = [], []
    labels: dict[str, list[str]] = {"gender": [], "race": [], "age": []}
    for name in listed(directory):
        parsed = NAME.fullmatch(name.rpartition("/")[2])
        if parsed is None or int(parsed[1]) < starts[0]:
            malformed.append(name)
            continue
        names.append(name)
        labels["gender"].append(GENDERS[int(parsed[2])])
        labels["race"].append(RACES[int(parsed[3])])
        labels["age"].append(band(int(parsed[1]), starts))
    looked = look(spec, directory, names, malformed=malformed)
    return faces(looked, names, labels, columns, name="utkface", provenance={"bands": list(starts)})


def band(age: int, starts: Sequence[int] = BANDS) -> str:
    """The name of the band that an age falls in, FairFace's names by default.

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
            f"utkface: bands must be the ages at which bands begin, upwards, such as 0,18,65; got "
            f"{spec.options['bands']!r}"
        )
    return starts
