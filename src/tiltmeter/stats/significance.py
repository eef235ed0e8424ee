"""From a value and its draws to what stands beside it in a table of results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tiltmeter.errors import UnknownNameError
from tiltmeter.stats.bootstrap import interval, standard_error_interval
from tiltmeter.stats.multiplicity import benjamini_hochberg, family_wise, holm
from tiltmeter.stats.null import Band, band_of, p_of_draws, p_of_sample
from tiltmeter.types import Floats

FAMILIES = ("holm", "maxT", "bh")


def columns(
    value: Any,
    *,
    side: str | None = None,
    null: Floats | Band | None = None,
    p: Any = None,
    family: str | None = None,
    boot: Floats | None = None,
    ci: Iterable[Any] | None = None,
    ci_method: Any = None,
    regular: bool = True,
    stretch: Floats | float = 1.0,
    bounds: tuple[float, float] = (-np.inf, np.inf),
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
    boot
        Bootstrap draws x values.
    ci
        The two edges of the interval, where there are better ones than those of `boot`.
    ci_method
        What the interval is called, where there is one.
    regular
        Whether the percentiles of `boot` can be taken for an interval. They cannot for a maximum
        or a divergence, which noise only pushes up: there its standard error is.
    stretch
        Of the interval made from `boot`, away from the value: its units may be few.
    bounds
        What no value leaves, nor the interval.

    >>> draws = np.random.default_rng(0).normal(size=(999, 2))
    >>> found = columns([3.0, np.nan], side="two", null=draws, family="holm")
    >>> found["null_hi"].round(1), found["p"].round(3), found["p_fwer"].round(3)
    (array([1.9, 2. ]), array([0.002,   nan]), array([0.002,   nan]))
    >>> columns([0.5, np.nan], boot=draws, ci_method="bootstrap")["ci_method"]
    array(['bootstrap', None], dtype=object)
    """
    value = np.asarray(value, dtype=float)
    defined = ~np.isnan(value)
    found: dict[str, Any] = {"value": value}
    draws = None if null is None or isinstance(null, Band) or not len(null) else null
    band = null if isinstance(null, Band) else None if draws is None else band_of(draws)
    if band is not None:
        found |= {"null_mean": band.mean, "null_lo": band.lo, "null_hi": band.hi}
    if side is not None:
        if p is None and draws is not None:
            p = (p_of_sample if draws.ndim == 1 else p_of_draws)(value, draws, side)
        found["p"] = np.where(defined, np.nan if p is None else p, np.nan)
        found |= _adjusted(found["p"], value, draws, side, family)
    if ci is None and boot is not None and len(boot):
        ci = (interval if regular else standard_error_interval)(boot, value, stretch)
    if ci is not None:
        low, high = (np.where(defined, np.clip(edge, *bounds), np.nan) for edge in ci)
        found |= {"ci_low": low, "ci_high": high}
        if ci_method is not None:
            found["ci_method"] = np.where(np.isnan(low), None, ci_method)
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
