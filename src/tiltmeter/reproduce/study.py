"""The finished runs of a reproduction, as layouts read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from tiltmeter.results import Run, combined

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Study:
    """Runs by measurement and part.

    Attributes
    ----------
    measured
        Measurement -> part -> one run per model, in the order of the models.
    data
        Specs by role.
    attributes
        Names in the data of the paper's attributes, where they differ.
    world
        Whether this is the built-in world.
    show_images
        Whether images may be shown: those of people only on request.
    folder
        The directory of the page.
    """

    measured: Mapping[str, Mapping[str, Sequence[Run]]]
    data: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)
    world: bool = False
    show_images: bool = False
    folder: Path = Path()

    @cached_property
    def _together(self) -> dict[tuple[str, str], Run]:
        return {}

    def name(self, attribute: str) -> str:
        """An attribute or intersection as the data name it."""
        return "*".join(self.attributes.get(part, part) for part in attribute.split("*"))

    def runs(self, measurement: str, part: str = "") -> list[Run]:
        """One run per model; none if it was not made."""
        return list(self.measured.get(measurement, {}).get(part, ()))

    def run(self, measurement: str, part: str = "") -> Run:
        """The rows of all models in one run."""
        key = (measurement, part)
        if key not in self._together:
            self._together[key] = join_runs(self.runs(measurement, part))
        return self._together[key]

    def rows(self, measurement: str, part: str = "", **equal: Any) -> list[Row]:
        """Rows of all models that have these values: see `Run.where`."""
        return self.run(measurement, part).where(**equal)


def join_runs(runs: Sequence[Run]) -> Run:
    """Several runs as one, without rows of its own (unlike a panel).

    >>> from tiltmeter.results import rows
    >>> join_runs([Run(rows(1, metric="ndkl", value=value)) for value in (0.1, 0.2)])
    <run, 2 rows>
    """
    if len(runs) == 1:
        return runs[0]
    instances, vectors = (
        {
            name: pa.concat_tables([tables[name] for tables in listed if name in tables])
            for name in dict.fromkeys(name for tables in listed for name in tables)
        }
        for listed in ([run.instances for run in runs], [_counts(run) for run in runs])
    )
    meta = {**runs[0].meta, "panel": [run.meta for run in runs]} if runs else {}
    return Run(combined(run.table for run in runs), meta, instances, vectors)


def _counts(run: Run) -> dict[str, pa.Table]:
    """Embeddings of several models do not belong in one table; counts do."""
    return {name: table for name, table in run.vectors.items() if name == "counts"}
