"""The page of a reproduced paper as data: one section per table or figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Plot, Section, Table

LABELS = (
    "Groups are labels that somebody perceived or wrote, not what the people in the images would "
    "say of themselves."
)
WORLD = (
    "Measured in the built-in world, where models learned a planted bias and their fair twins "
    "learned none. Shapes and hues are in the place of gender and race. It shows whether the "
    "paper's measures find a bias that is there, and nothing about any real model or group."
)


@dataclass(frozen=True)
class PaperPage:
    """A reproduced paper.

    Attributes
    ----------
    title, source
        Of the paper.
    sections
        One per item, in the order of the paper.
    made
        Item -> `yes`, or why it was not made or only in part.
    measured
        What was measured: a row per run.
    world
        Whether it was measured in the built-in world.
    """

    title: str
    source: str
    sections: Sequence[Section]
    made: Mapping[str, str]
    measured: Sequence[Mapping[str, Any]]
    world: bool

    @property
    def figures(self) -> list[Plot]:
        return [figure for section in self.sections for figure in section.figures]

    @property
    def tables(self) -> list[Table]:
        return [table for section in self.sections for table in section.tables]

    @property
    def overview(self) -> Table:
        """Every item, and whether it was made."""
        rows = [
            {"item": label, "title": section.title.partition(". ")[2], "made": made}
            for section, (label, made) in zip(self.sections, self.made.items(), strict=True)
        ]
        columns = [Column("item", "item"), Column("what it shows", "title", width=44),
                   Column("made", "made", "long", width=40)]  # fmt: skip
        whole = sum(made == "yes" for made in self.made.values())
        parts = sum(made.startswith("in part") for made in self.made.values())
        caption = f"{whole} of {text.plural(len(self.made), 'item')} made"
        caption += f", {parts} more in part" * bool(parts)
        return Table("items", caption, columns, rows)

    @property
    def record(self) -> Table:
        """What was measured, each once."""
        columns = [
            Column("measurement", "measurement"),
            Column("model", "model"),
            Column("data", "data"),
            Column("n", "n", "count"),
            Column("convention", "convention"),
            Column("seed", "seed", "count"),
            Column("seconds", "seconds", "count"),
            Column("folder", "folder"),
        ]
        return Table("measured", "What was measured", columns, [dict(one) for one in self.measured])
