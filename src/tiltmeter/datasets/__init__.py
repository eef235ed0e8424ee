"""Data sets, one file each: all yield items with groups."""

from __future__ import annotations

from tiltmeter.registry import Registry
from tiltmeter.specs import Spec
from tiltmeter.types import Faces

DATASETS = Registry(
    "dataset",
    {
        "embeddings": "tiltmeter.datasets.embeddings:load",
        "table": "tiltmeter.datasets.table:load",
    },
)


def load_data(spec: str) -> Faces:
    """The data set that `spec` names, such as `embeddings:DIR` or `table:labels.csv`."""
    parsed = Spec.parse(spec)
    data: Faces = DATASETS[parsed.scheme](parsed)
    return data
