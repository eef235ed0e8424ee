"""`ieat:DIR`: images by category and set of stimuli, as in the release of iEAT."""

from __future__ import annotations

from tiltmeter.datasets.found_images import OPTIONS, find_images, group_counts, list_images
from tiltmeter.datasets.roles import Utility
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.types import Groups


def load(spec: Spec, columns: Columns) -> Utility:
    """Stimuli: iEAT, sets of images (github.com/ryansteed/ieat; images of several sources).

    DIR/age/young/1.jpg is in the set `age/young`. DIR is `data/experiments` of the release, or
    your own directories of the same layout.
    """
    del columns  # no groups
    spec.check_options(*OPTIONS)
    directory = spec.directory()
    names = list_images(directory)
    inside = [name for name in names if name.count("/") >= 2]
    present = find_images(spec, directory, inside, malformed=[n for n in names if n.count("/") < 2])
    sets = ["/".join(name.split("/")[:2]) for name in present.select(inside)]
    classes = Groups.from_labels(sets, attribute="set")
    return Utility(
        ids=present.select(inside),
        classes=classes,
        images=present.images,
        name=directory.resolve().name,
        provenance={"found": {**present.found, "groups": group_counts([classes])}},
    )
