"""From a value and its draws to the columns of a results table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiltmeter.errors import UnknownNameError
from tiltmeter.stats import bootstrap
from tiltmeter.stats.multiplicity import benjamini_hochberg, holm, standardised_max_t
from tiltmeter.stats.null import NullBand, null_band, p_from_null_draws, p_from_shared_null
from tiltmeter.types import Floats

FAMILIES = ("holm", "maxT", "bh")


@dataclass(frozen=True, eq=False)
class Interval:
    """How the interval of a value is computed.

    Parameters
    ----------
    boot : array of shape (draws, ...), optional
        Bootstrap resamples of the value.
    edges : pair of arrays, optional
        Low and high edge, where there are better ones than those of `boot`.
    method : str or array of str, optional
        Its name, for the column `ci_method`.
    regular : bool
        Whether percentiles of `boot` are an interval. They are not for a maximum or a divergence,
        which noise only increases: there the standard error is used.
    stretch : float or array
        Factor by which the edges are moved away from the value: units may be few.
    bounds : tuple of float
        Range of the metric, which the interval does not leave.

    Examples
    --------
    >>> low, high = Interval(boot=np.arange(1.0, 1000.0)[:, None]).around(np.array([500.0]))
    >>> low.round(6), high.round(6)
    (array([25.]), array([975.]))
    """

    boot: Floats | None = None
    edges: Iterable[Any] | None = None
    method: Any = None
    regular: bool = True
    stretch: Floats | float = 1.0
    bounds: tuple[float, float] = (-np.inf, np.inf)

    def around(self, value: Floats) -> tuple[Floats, Floats] | None:
        """Both edges of the interval of a value, within bounds; None if nothing is known."""
        edges = self.edges
        if edges is None and self.boot is not None and len(self.boot):
            method = bootstrap.interval if self.regular else bootstrap.standard_error_interval
            edges = method(self.boot, value, self.stretch)
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
    """Value, null band, interval, p and adjusted p, as columns for `results.rows`.

    Parameters
    ----------
    value : float or array
        One value or an array of them, of any shape. All of them are one family.
    side : {"two", "greater", "less"}, optional
        What is extreme. Without it nothing is tested, and there is no p.
    null : array or NullBand, optional
        Draws of each value under the null, draws x values; or one sample of draws that serves all
        values; or the band itself where it is known.
    p : array, optional
        P-values, where there are better ones than those from `null`.
    family : {"holm", "maxT", "bh"}, optional
        How p is adjusted: `holm` or `maxT` (of draws x values) for p_fwer, with p_bh
        (Benjamini-Hochberg); `bh` for p_bh alone. Not adjusted by default.
    interval : Interval, optional
        How the interval is computed. No interval by default.

    Returns
    -------
    dict
        Flat arrays by column name. Only columns that are known are included: without draws, for
        example, there is no band. An undefined value (NaN) has no p and no interval.

    Raises
    ------
    UnknownNameError
        `side` or `family` is another string.

    Examples
    --------
    >>> draws = np.random.default_rng(0).normal(size=(999, 2))
    >>> result = columns([3.0, np.nan], side="two", null=draws, family="holm")
    >>> result["null_high"].round(1), result["p"].round(3), result["p_fwer"].round(3)
    (array([1.9, 2. ]), array([0.002,   nan]), array([0.002,   nan]))
    >>> columns([0.5, np.nan], interval=Interval(boot=draws, method="bootstrap"))["ci_method"]
    array(['bootstrap', None], dtype=object)
    """
    value = np.asarray(value, dtype=float)
    defined = ~np.isnan(value)
    result: dict[str, Any] = {"value": value}
    draws = None if null is None or isinstance(null, NullBand) or not len(null) else null
    band = null if isinstance(null, NullBand) else None if draws is None else null_band(draws)
    if band is not None:
        result |= {"null_mean": band.mean, "null_low": band.low, "null_high": band.high}
    if side is not None:
        if p is None and draws is not None:
            p = (p_from_shared_null if draws.ndim == 1 else p_from_null_draws)(value, draws, side)
        result["p"] = np.where(defined, np.nan if p is None else p, np.nan)
        result |= _adjusted(result["p"], value, draws, side, family)
    if interval is not None and (edges := interval.around(value)) is not None:
        result |= {"ci_low": edges[0], "ci_high": edges[1]}
        if interval.method is not None:
            result["ci_method"] = np.where(np.isnan(edges[0]), None, interval.method)
    flat = {name: np.broadcast_to(values, value.shape).ravel() for name, values in result.items()}
    return flat if side is None else {**flat, "p_side": side}


def _adjusted(
    p: Floats, value: Floats, draws: Floats | None, side: str, family: str | None
) -> dict[str, Floats]:
    if family is None:
        return {}
    if family not in FAMILIES:
        raise UnknownNameError("family", family, FAMILIES)
    result = {"p_bh": benjamini_hochberg(p)}
    if family == "holm":
        result["p_fwer"] = holm(p)
    elif family == "maxT" and draws is not None:
        result["p_fwer"] = np.fmax(
            standardised_max_t(value, draws, side), p
        )  # NaN where no draw differs
    return result
