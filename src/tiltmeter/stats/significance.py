"""From a value and its draws to what stands beside it in a table of results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiltmeter.errors import UnknownNameError
from tiltmeter.stats import bootstrap
from tiltmeter.stats.multiplicity import benjamini_hochberg, family_wise, holm
from tiltmeter.stats.null import NullBand, band_of, p_of_draws, p_of_sample
from tiltmeter.types import Floats

FAMILIES = ("holm", "maxT", "bh")


@dataclass(frozen=True, eq=False)
class Interval:
    """What the interval of a value is made of."""

    boot: Floats | None = None  # bootstrap draws x values
    edges: Iterable[Any] | None = None  # both, where there are better ones than those of `boot`
    method: Any = None  # what it is called, where there is one
    #: Whether the percentiles of `boot` can be taken for an interval. They cannot for a maximum or
    #: a divergence, which noise only pushes up: there its standard error is.
    regular: bool = True
    stretch: Floats | float = 1.0  # away from the value: units may be few
    bounds: tuple[float, float] = (-np.inf, np.inf)  # what neither value nor interval leaves

    def around(self, value: Floats) -> tuple[Floats, Floats] | None:
        """Both edges, within bounds; None where nothing is known of them."""
        edges = self.edges
        if edges is None and self.boot is not None and len(self.boot):
            of = bootstrap.interval if self.regular else bootstrap.standard_error_interval
            edges = of(self.boot, value, self.stretch)
        if edges is None:
            return None
        known = ~np.isnan(value)
        low, high = (np.where(known, np.clip(edge, *self.bounds), np.nan) for edge in edges)
        return low, high


def columns(
    value: Any,
    *,
    side: str | None = None,
    null: Floats | NullBand | None = None,
    p: Any = None,
    family: str | None = None,
    interval: Interval | None = None,
) -> dict[str, Any]:
    """Value, null band, interval, p and adjusted p: columns for `results.rows`, flat.

    Only columns that something is known of are there: without draws, say, no band. An undefined
    value (NaN) has no p and no interval.

    Parameters
    ----------
    value
        One value or an array of them, of any shape. All of them are one family.
    side
        Of the p-value: two, greater or less. None: nothing is tested, there is no p.
    null
        Draws x values without bias; or one sample of draws that serves all values; or the band
        itself where it is known.
    p
        The p-values, where there are better ones than those of the null's draws.
    family
        How p is adjusted: `holm` or `maxT` (of draws x values) for p_fwer, with
        Benjamini-Hochberg's p_bh beside it; `bh` for p_bh alone. None: not at all.
    interval
        What the interval is made of. None: there is none.

    >>> draws = np.random.default_rng(0).normal(size=(999, 2))
    >>> found = columns([3.0, np.nan], side="two", null=draws, family="holm")
    >>> found["null_hi"].round(1), found["p"].round(3), found["p_fwer"].round(3)
    (array([1.9, 2. ]), array([0.002,   nan]), array([0.002,   nan]))
    >>> columns([0.5, np.nan], interval=Interval(boot=draws, method="bootstrap"))["ci_method"]
    array(['bootstrap', None], dtype=object)
    """
    value = np.asarray(value, dtype=float)
    defined = ~np.isnan(value)
    found: dict[str, Any] = {"value": value}
    draws = None if null is None or isinstance(null, NullBand) or not len(null) else null
    band = null if isinstance(null, NullBand) else None if draws is None else band_of(draws)
    if band is not None:
        found |= {"null_mean": band.mean, "null_lo": band.lo, "null_hi": band.hi}
    if side is not None:
        if p is None and draws is not None:
            p = (p_of_sample if draws.ndim == 1 else p_of_draws)(value, draws, side)
        found["p"] = np.where(defined, np.nan if p is None else p, np.nan)
        found |= _adjusted(found["p"], value, draws, side, family)
    if interval is not None and (edges := interval.around(value)) is not None:
        found |= {"ci_low": edges[0], "ci_high": edges[1]}
        if interval.method is not None:
            found["ci_method"] = np.where(np.isnan(edges[0]), None, interval.method)
    flat = {name: np.broadcast_to(one, value.shape).ravel() for name, one in found.items()}
    return flat if side is None else {**flat, "p_side": side}


def _adjusted(
    p: Floats, value: Floats, draws: Floats | None, side: str, family: str | None
) -> dict[str, Floats]:
    if family is None:
        return {}
    if family not in FAMILIES:
        raise UnknownNameError("family", family, FAMILIES)
    found = {"p_bh": benjamini_hochberg(p)}
    if family == "holm":
        found["p_fwer"] = holm(p)
    elif family == "maxT" and draws is not None:
        found["p_fwer"] = np.fmax(family_wise(value, draws, side), p)  # NaN where no draw differs
    return found
