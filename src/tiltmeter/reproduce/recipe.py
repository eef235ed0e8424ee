"""What a recipe is made of: a paper, its measurements and its items."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tiltmeter.pages.model import Plot, Table
from tiltmeter.reproduce.measurements import Measurement
from tiltmeter.reproduce.study import Study

#: What a layout returns, in the order of the page; a text is a note.
Parts = Sequence[Table | Plot | str]


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper.

    Attributes
    ----------
    label
        Its number in the paper, such as `Table 2` or `Figure 3`.
    title
        What the paper shows there, in one line.
    layout
        From the study to tables, plots and notes; None if it cannot be made.
    needs, takes
        Names of measurements that it reads: those without which it is not made, and those that it
        uses if they were made.
    reason
        Why it cannot be made, for an item without a layout.
    shortfall
        What differs from the paper's own table or figure, for the documentation and the page.
    """

    label: str
    title: str
    layout: Callable[[Study], Parts] | None = None
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    reason: str = ""
    shortfall: str = ""

    def __post_init__(self) -> None:
        if (self.layout is None) != bool(self.reason):
            raise ValueError(f"{self.label} needs a layout, or a reason why it cannot be made")

    @property
    def number(self) -> str:
        """Its number as in `papers/published`: `2` for Table 2, `Figure 3` for Figure 3."""
        return self.label.removeprefix("Table ")


@dataclass(frozen=True)
class Paper:
    """The recipe of a paper.

    Attributes
    ----------
    name
        As in `tiltmeter reproduce NAME`.
    title, source
        The paper's title, and its authors, year and venue.
    published
        The file of its values, `papers/published/NAME.yaml`.
    tables, figures
        How many the paper has, numbered from 1: a test checks that each has an item.
    data
        Data roles that its measurements use, each with what the paper used.
    measurements
        What is measured, by name; each is made once per model.
    items
        Its tables and figures, in the order of the paper.
    world_models, world_data
        What the built-in world runs with: models, the biased one first, and data by role.
    world_attributes
        Attributes of the paper, each with the attribute of the built-in world in its place.
    notes
        Other differences from the paper, for the documentation.
    scores
        The paper's own scores, each with its meaning in a line, for the documentation.
    """

    name: str
    title: str
    source: str
    published: str
    tables: int
    figures: int
    data: Mapping[str, str]
    measurements: Mapping[str, Measurement]
    items: tuple[Item, ...]
    world_models: tuple[str, ...] = ("testbed:fusion", "testbed:fusion?twin=fair")
    world_data: Mapping[str, str] = field(default_factory=dict)
    world_attributes: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    scores: Mapping[str, str] = field(default_factory=dict)
