"""Datasets, one file each.

Each file has a function `load(spec, columns)`: it reads the dataset that a `Spec` names, with the
label columns in a `Columns`, and returns Faces or the type of another role (datasets/roles.py).
The first line of its docstring is what `tiltmeter list datasets` shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tiltmeter.datasets.found_images import describe
from tiltmeter.datasets.shards import ShardedFaces
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.registry import Registry

__all__ = ["DATASETS", "IN_SHARDS", "describe", "list_shards", "load_data"]

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

#: Datasets that workers can open shard by shard, so that no process has all rows.
IN_SHARDS = Registry(
    "dataset in shards",
    {
        "embeddings": "tiltmeter.datasets.embeddings:shards",
        "parquet": "tiltmeter.datasets.parquet:shards",
        "webdataset": "tiltmeter.datasets.webdataset:shards",
    },
)


def list_shards(
    spec: str,
    *,
    attributes: Sequence[str] | None = None,
    cross: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> ShardedFaces | None:
    """List the shards of a collection without reading them, except the first for its columns.

    Parameters
    ----------
    spec, attributes, cross, optional
        As for `load_data`.

    Returns
    -------
    ShardedFaces or None
        None for a dataset that is not in shards.
    """
    parsed = Spec.parse(spec, kind="dataset", known=DATASETS)
    if parsed.scheme not in IN_SHARDS:
        return None
    shards: ShardedFaces | None = IN_SHARDS[parsed.scheme](
        parsed, _columns(parsed, attributes, cross, optional)
    )
    return shards


def load_data(
    spec: str,
    *,
    attributes: Sequence[str] | None = None,
    cross: Sequence[str] = (),
    role: str | None = None,
    optional: Sequence[str] = (),
) -> Any:
    """Load a dataset.

    Parameters
    ----------
    spec
        Its name, such as `fairface:DIR` or `table:labels.csv` (`tiltmeter list datasets`).
    attributes
        Label columns to read. Defaults to `?attributes=a,b` in the spec, otherwise to all columns
        that look like labels.
    cross
        Intersections, such as `race*gender`; their columns are read too.
    role
        The role that the data must have, such as `faces` or `captions`. Defaults to any.
    optional
        Columns to read in addition if the dataset has them.

    Returns
    -------
    Faces, or the type of the role in `tiltmeter.datasets.roles`.

    Raises
    ------
    UnknownNameError
        If there is no such dataset, option or column.
    InputError
        If the files or labels cannot be used, or the data have another role.

    Examples
    --------
    >>> faces = load_data("testbed:?images=28")
    >>> len(faces), faces.groups["shape"].names
    (28, ('round', 'square'))
    """
    parsed = Spec.parse(spec, kind="dataset", known=DATASETS)
    if parsed.scheme == "testbed" and not parsed.rest and role not in (None, "faces"):
        parsed = replace(parsed, rest=role)  # one world has data for several roles
    data = DATASETS[parsed.scheme](parsed, _columns(parsed, attributes, cross, optional))
    if role is not None:
        _check_role(parsed.scheme, data, role)
    return data


def _columns(
    spec: Spec, attributes: Sequence[str] | None, cross: Sequence[str], optional: Sequence[str]
) -> Columns:
    """The label columns to read."""
    if attributes is None and "attributes" in spec.options:
        attributes = spec.options["attributes"].split(",")
    crossed = [part for name in cross for part in name.split("*")]
    names = None if attributes is None else [p for name in attributes for p in name.split("*")]
    # without names all that look like labels are read, and others are not needed
    return Columns(names, crossed, () if names is None else optional)


def _check_role(scheme: str, data: Any, role: str) -> None:
    from tiltmeter.datasets.roles import ROLES

    if role not in ROLES:
        raise UnknownNameError("role", role, ROLES)
    if not isinstance(data, ROLES[role]):
        fits = ", ".join(name for name, kind in ROLES.items() if isinstance(data, kind))
        raise InputError(f"{scheme}: has data for {fits}, not for {role}", value=scheme)
