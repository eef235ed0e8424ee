"""Data sets, one file each: all yield items with groups."""

from __future__ import annotations

from collections.abc import Sequence

from tiltmeter.inputs import Columns
from tiltmeter.registry import Registry
from tiltmeter.specs import Spec
from tiltmeter.types import Faces

DATASETS = Registry(
    "dataset",
    {
        "embeddings": "tiltmeter.datasets.embeddings:load",
        "table": "tiltmeter.datasets.table:load",
        "testbed": "tiltmeter.testbed.data:load",
    },
)


def load_data(
    spec: str, *, attributes: Sequence[str] | None = None, cross: Sequence[str] = ()
) -> Faces:
    """The data set that `spec` names, such as `embeddings:DIR` or `table:labels.csv`.

    `attributes` are the label columns to read (or `?attributes=a,b` in the spec), else all that
    look like labels; those of the crossings in `cross` are read too.
    """
    parsed = Spec.parse(spec)
    if attributes is None and "attributes" in parsed.options:
        attributes = parsed.options["attributes"].split(",")
    crossed = [part for name in cross for part in name.split("*")]
    names = None if attributes is None else [p for name in attributes for p in name.split("*")]
    data: Faces = DATASETS[parsed.scheme](parsed, Columns(names, crossed))
    return data
