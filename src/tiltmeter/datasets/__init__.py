"""Data sets, one file each: all yield items with what is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tiltmeter.datasets.found_images import describe
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.registry import Registry

__all__ = ["DATASETS", "describe", "load_data"]

DATASETS = Registry(
    "dataset",
    {
        "cfd": "tiltmeter.datasets.cfd:load",
        "cifar100": "tiltmeter.datasets.cifar100:load",
        "coco": "tiltmeter.datasets.coco:load",
        "embeddings": "tiltmeter.datasets.embeddings:load",
        "fairface": "tiltmeter.datasets.fairface:load",
        "flickr30k": "tiltmeter.datasets.flickr30k:load",
        "folder": "tiltmeter.datasets.folder:load",
        "hfds": "tiltmeter.datasets.hfds:load",
        "ieat": "tiltmeter.datasets.ieat:load",
        "imagefolder": "tiltmeter.datasets.imagefolder:load",
        "lexicon": "tiltmeter.datasets.lexicon:load",
        "oasis": "tiltmeter.datasets.oasis:load",
        "pairs": "tiltmeter.datasets.pairs:load",
        "parquet": "tiltmeter.datasets.parquet:load",
        "stereoset": "tiltmeter.datasets.stereoset:load",
        "table": "tiltmeter.datasets.table:load",
        "testbed": "tiltmeter.testbed.data:load",
        "utkface": "tiltmeter.datasets.utkface:load",
        "vlbias": "tiltmeter.datasets.vlbias:load",
        "vlstereo": "tiltmeter.datasets.vlstereo:load",
        "webdataset": "tiltmeter.datasets.webdataset:load",
    },
)


def load_data(
    spec: str,
    *,
    attributes: Sequence[str] | None = None,
    cross: Sequence[str] = (),
    role: str | None = None,
    optional: Sequence[str] = (),
) -> Any:
    """The data set that `spec` names, such as `fairface:DIR` or `table:labels.csv`.

    What comes is of the shape of its role: Faces, or one of those in datasets/roles.py; with `role`
    anything else is refused. `attributes` are the label columns to read (or `?attributes=a,b` in
    the spec), else all that look like labels; those of the crossings in `cross` are read too, and
    those in `optional` where the data have them.
    """
    parsed = Spec.parse(spec)
    if parsed.scheme == "testbed" and not parsed.rest and role not in (None, "faces"):
        parsed = replace(parsed, rest=role)  # one world, and data of it for several roles
    if attributes is None and "attributes" in parsed.options:
        attributes = parsed.options["attributes"].split(",")
    crossed = [part for name in cross for part in name.split("*")]
    names = None if attributes is None else [p for name in attributes for p in name.split("*")]
    # without names all that look like labels are read: what does not is not asked for
    columns = Columns(names, crossed, () if names is None else optional)
    data = DATASETS[parsed.scheme](parsed, columns)
    if role is not None:
        _check(parsed.scheme, data, role)
    return data


def _check(scheme: str, data: Any, role: str) -> None:
    from tiltmeter.datasets.roles import ROLES

    if role not in ROLES:
        raise UnknownNameError("role", role, ROLES)
    if not isinstance(data, ROLES[role]):
        fits = ", ".join(name for name, kind in ROLES.items() if isinstance(data, kind))
        raise InputError(f"{scheme}: gives data for {fits}, not for {role}")
