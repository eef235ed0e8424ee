"""`imagefolder:DIR`: pictures in one folder for each class, as ImageNet's are."""

from __future__ import annotations

import re
from pathlib import Path

from tiltmeter.datasets.found_images import OPTIONS, counts, listed, look
from tiltmeter.datasets.roles import Utility
from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.types import Groups


def load(spec: Spec, columns: Columns) -> Utility:
    """Utility: pictures by class, such as ImageNet (image-net.org; non-commercial research).

    `?split=val` takes DIR/val. `?names=FILE` has a line for each folder: its name, then what to
    call the class, as in `n01440764 tench, Tinca tinca`, of which the first name is taken.
    """
    del columns  # no groups
    spec.only("split", "names", *OPTIONS)
    directory = spec.directory()
    if split := spec.options.get("split", ""):
        if not re.fullmatch(r"[\w-]+", split) or not (directory / split).is_dir():
            raise InputError(f"imagefolder: {directory} has no folder {split!r}")
        directory = directory / split
    names = listed(directory)
    inside = [name for name in names if "/" in name]
    looked = look(spec, directory, inside, malformed=[name for name in names if "/" not in name])
    called = _names(Path(spec.options["names"])) if "names" in spec.options else {}
    folders = [name.partition("/")[0] for name in looked.of(inside)]
    if unnamed := sorted(set(folders) - set(called)) if called else []:
        raise InputError(f"{spec.options['names']} has no name for {', '.join(unnamed[:5])}")
    classes = Groups.from_labels([called.get(one, one) for one in folders], attribute="class")
    return Utility(
        ids=looked.of(inside),
        classes=classes,
        images=looked.pictures,
        name=directory.resolve().name,
        provenance={"found": {**looked.found, "groups": counts([classes])}},
    )


def _names(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise InputError(f"imagefolder: names={path} is not a file")
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    pairs = [re.split(r"[\s,]+", line.strip(), maxsplit=1) for line in lines if line.strip()]
    named = {pair[0]: pair[-1].partition(",")[0].strip() for pair in pairs}
    taken: dict[str, str] = {}
    for folder, name in named.items():
        if name in taken:  # ImageNet has two cranes and two maillots
            named[folder] = f"{name} ({folder})"
        taken[name] = folder
    return named
