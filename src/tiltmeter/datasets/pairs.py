"""`pairs:DIR`: PAIRS, generated images that differ only in the person.

TOPIC/SCENE/RACE_GENDER.png, such as status/phone/white_man.png; a number after the gender, as in
one file of the release, is not part of the label.
"""

from __future__ import annotations

import re

from tiltmeter.datasets.found_images import OPTIONS, find_images, list_images
from tiltmeter.datasets.labelled import labelled_faces
from tiltmeter.datasets.roles import Scenes
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns

NAME = re.compile(r"(?:.*/)?([^/]+)/([^/]+)/([a-z]+)_([a-z]+)\d*\.[a-z]+", re.IGNORECASE)


def load(spec: Spec, columns: Columns) -> Scenes:
    """Pairs: PAIRS, scenes that differ in the person (github.com/katiefraser/PAIRS; CC BY 4.0).

    The labels are those that the images were generated for.
    """
    spec.check_options("attributes", *OPTIONS)
    directory = spec.directory()
    parsed = {name: NAME.fullmatch(name) for name in list_images(directory)}
    known = {name: match for name, match in parsed.items() if match}
    names = list(known)
    malformed = [name for name, match in parsed.items() if not match]
    present = find_images(spec, directory, names, malformed=malformed)
    labels = {"race": [m[3] for m in known.values()], "gender": [m[4] for m in known.values()]}
    return Scenes(
        **vars(labelled_faces(present, names, labels, columns, name="pairs")),
        scenes=present.select([m[2] for m in known.values()]),
        kinds=present.select([m[1] for m in known.values()]),
    )
