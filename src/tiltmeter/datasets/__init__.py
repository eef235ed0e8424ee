"""Data sets, one file each: all yield items with groups."""

from __future__ import annotations

from collections.abc import Sequence

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


def load_data(spec: str, *, also: Sequence[str] = ()) -> Faces:
    """The data set that `spec` names, such as `embeddings:DIR` or `table:labels.csv`.

    `also` names label columns to read whatever they look like, or crossings of them.
    """
    parsed = Spec.parse(spec)
    columns = dict.fromkeys(part for name in also for part in name.split("*"))
    data: Faces = DATASETS[parsed.scheme](parsed, also=tuple(columns))
    return data
