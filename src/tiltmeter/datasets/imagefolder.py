"""`imagefolder:DIR`: images in one directory per class, as in ImageNet."""

from __future__ import annotations

import re
from pathlib import Path

from tiltmeter.datasets.found_images import OPTIONS, find_images, group_counts, list_images
from tiltmeter.datasets.roles import Utility
from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.types import Groups


def load(spec: Spec, columns: Columns) -> Utility:
    """Utility: images by class, such as ImageNet (image-net.org; non-commercial research).

    `?split=val` reads DIR/val. `?names=FILE` has a line per directory: its name, then the name of
    the class, as in `n01440764 tench, Tinca tinca`; the first class name is used.
    """
    del columns  # no groups
    spec.check_options("split", "names", *OPTIONS)
    directory = spec.directory()
    if split := spec.options.get("split", ""):
        if not re.fullmatch(r"[\w-]+", split) or not (directory / split).is_dir():
            raise InputError(
                f"imagefolder: {directory} has no directory {split!r}",
                code="not-found",
                value=split,
            )
        directory = directory / split
    names = list_images(directory)
    inside = [name for name in names if "/" in name]
    if names and not inside:
        raise InputError(
            f"imagefolder: none of the {len(names):,} images under {directory} is in a directory "
            f"named by its class, such as {directory}/cat/1.jpg: sort them into such directories; "
            "for images with group labels use table:FILE?path=COLUMN",
            code="no-images",
            value=spec.rest,
        )
    present = find_images(
        spec, directory, inside, malformed=[name for name in names if "/" not in name]
    )
    class_names = _names(Path(spec.options["names"])) if "names" in spec.options else {}
    folders = [name.partition("/")[0] for name in present.select(inside)]
    if unnamed := sorted(set(folders) - set(class_names)) if class_names else []:
        raise InputError(
            f"{spec.options['names']} has no name for {', '.join(unnamed[:5])}",
            code="bad-file",
            value=unnamed[0],
        )
    labels = [class_names.get(folder, folder) for folder in folders]
    classes = Groups.from_labels(labels, attribute="class")
    return Utility(
        ids=present.select(inside),
        classes=classes,
        images=present.images,
        name="-".join([spec.directory().resolve().name, *([split] if split else [])]),
        provenance={"found": {**present.found, "groups": group_counts([classes])}},
    )


def _names(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise InputError(
            f"imagefolder: names={path} is not a file", code="not-found", value=str(path)
        )
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    pairs = [re.split(r"[\s,]+", line.strip(), maxsplit=1) for line in lines if line.strip()]
    named = {pair[0]: pair[-1].partition(",")[0].strip() for pair in pairs}
    taken: dict[str, str] = {}
    for folder, name in named.items():
        if name in taken:  # ImageNet has two cranes and two maillots
            named[folder] = f"{name} ({folder})"
        taken[name] = folder
    return named
