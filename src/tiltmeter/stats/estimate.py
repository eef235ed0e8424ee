"""One metric of one attribute for every prompt, with what is known about its noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tiltmeter.stats.draws import BootstrapDraws
from tiltmeter.stats.null import NullBand
from tiltmeter.types import Floats, Groups


@dataclass(frozen=True, eq=False)
class MetricEstimate:
    """Values are prompts x columns: one column per group, or one column for all of them."""

    metric: str
    groups: Groups
    values: Floats
    side: str  # of the p-value
    ideal: float
    k: int | None = None
    by_group: bool = True
    null: BootstrapDraws | None = None  # permuted labels, the same for all prompts
    boot: BootstrapDraws | None = None
    #: For single prompts, where there is something better than draws:
    exact_null: NullBand | None = None  # of columns
    exact_p: Floats | None = None  # prompts x columns
    exact_ci: tuple[Floats, Floats] | None = None  # prompts x columns, each
    exact_ci_method: str = ""
    #: Null draws of any one prompt, where those of several cannot be drawn together: a mean over
    #: prompts varies most if all move alike, and is compared with that.
    alike: Floats | None = None
    #: Whether p-values of words are adjusted by Holm where no permutation is shared by all words.
    holm: bool = False
    #: Whether percentiles of bootstrap resamples are an interval. They are not for a maximum or a
    #: divergence, which noise only increases: there the bootstrap gives the standard error.
    regular: bool = True
    stretch: Floats | float = 1.0  # of percentile intervals, by column: groups may be small
    bounds: tuple[float, float] = (-np.inf, np.inf)  # range of the metric
    undefined: str = ""  # reason why a value may be missing
    notes: Sequence[str | None] | None = None  # of prompts

    def computed(self) -> MetricEstimate:
        """The same with draws that are computed once, not each time they are read."""
        null, boot = (draws and draws.computed() for draws in (self.null, self.boot))
        return replace(self, null=null, boot=boot)

    def scaled(self, factor: float) -> MetricEstimate:
        """The same in another unit: values, draws and edges times a factor; p stays.

        >>> groups = Groups.from_labels(["a", "b"])
        >>> one = MetricEstimate("c_asc", groups, np.array([[1.0, -1.0]]), side="two", ideal=0.0)
        >>> one.scaled(2.0).values.tolist()
        [[2.0, -2.0]]
        """
        null, boot = (draws and draws.scaled(factor) for draws in (self.null, self.boot))
        band, edges = self.exact_null, self.exact_ci
        return replace(
            self,
            values=self.values * factor,
            null=null,
            boot=boot,
            exact_null=None if band is None else NullBand(*(edge * factor for edge in band)),
            exact_ci=None if edges is None else (edges[0] * factor, edges[1] * factor),
            alike=None if self.alike is None else self.alike * factor,
        )
