"""`vlbias:DIR`: VL-Bias, people at an activity or in an occupation, by perceived gender.

The release is not available (its link is dead), so the layout is our own: one directory per
concept and gender, cooking/female/1.jpg or activities/cooking/female/1.jpg.
"""

from __future__ import annotations

from tiltmeter.datasets.found_images import OPTIONS, find_images, list_images
from tiltmeter.datasets.labelled import labelled_faces
from tiltmeter.datasets.roles import Scenes
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns

GENDERS = {
    "female": "female", "woman": "female", "women": "female", "f": "female",
    "male": "male", "man": "male", "men": "male", "m": "male",
}  # fmt: skip


def load(spec: Spec, columns: Columns) -> Scenes:
    """Pairs: VL-Bias, activities and occupations (github.com/VL-Bias/VL-Bias; no terms stated).

    CONCEPT/GENDER/FILE, or KIND/CONCEPT/GENDER/FILE; the labels of gender are perceived.
    """
    spec.check_options("attributes", *OPTIONS)
    directory = spec.directory()
    names, malformed = [], []
    genders, concepts, kinds = [], [], []
    for name in list_images(directory):
        folders = name.split("/")[:-1]
        if len(folders) not in (2, 3) or folders[-1].lower() not in GENDERS:
            malformed.append(name)
            continue
        names.append(name)
        genders.append(GENDERS[folders[-1].lower()])
        concepts.append(folders[-2])
        kinds.append(folders[0] if len(folders) == 3 else "")
    present = find_images(spec, directory, names, malformed=malformed)
    return Scenes(
        **vars(labelled_faces(present, names, {"gender": genders}, columns, name="vlbias")),
        scenes=present.select(concepts),
        kinds=present.select(kinds),
        parallel=False,
    )
