"""`ieat:DIR`: pictures by category and set of stimuli, as iEAT's release has them."""

from __future__ import annotations

from tiltmeter.datasets.found_images import OPTIONS, counts, listed, look
from tiltmeter.datasets.roles import Utility
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.types import Groups


def load(spec: Spec, columns: Columns) -> Utility:
    """Stimuli: iEAT, sets of pictures (github.com/ryansteed/ieat; pictures of several sources).

    DIR/age/young/1.jpg is of the set `age/young`. DIR is `data/experiments` of the release, or
    your own folders laid out alike.
    """
    del columns  # no groups
    spec.only(*OPTIONS)
    directory = spec.directory()
    names = listed(directory)
    inside = [name for name in names if name.count("/") >= 2]
    looked = look(spec, directory, inside, malformed=[n for n in names if n.count("/") < 2])
    sets = ["/".join(name.split("/")[:2]) for name in looked.of(inside)]
    classes = Groups.from_labels(sets, attribute="set")
    return Utility(
        ids=looked.of(inside),
        classes=classes,
        images=looked.pictures,
        name=directory.resolve().name,
        provenance={"found": {**looked.found, "groups": counts([classes])}},
    )
