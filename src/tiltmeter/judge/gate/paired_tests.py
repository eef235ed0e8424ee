"""Many figures before and after, and p-values that hold for all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tiltmeter.stats import defined
from tiltmeter.stats.intervals import Z
from tiltmeter.stats.multiplicity import family_wise
from tiltmeter.types import Floats

Z90 = 1.6448536269514722  # 95th percentile of the normal distribution
#: Standard errors to either side: an interval of 95%, and of 90% for the tests of equivalence.
ARMS = (-Z, Z, -Z90, Z90)
#: Changes below this are rounding: values are sums of single precision.
ROUNDING = 1e-6

Key = dict[str, Any]


@dataclass(eq=False)
class PairedTests:
    """Many figures before and after: changes, changes under swaps, intervals."""

    keys: list[Key] = field(default_factory=list)
    before: list[Floats] = field(default_factory=list)
    after: list[Floats] = field(default_factory=list)
    excess: list[Floats] = field(default_factory=list)
    swapped: list[Floats] = field(default_factory=list)  # draws x figures each
    edges: list[Floats] = field(default_factory=list)  # the four of ARMS x figures each

    def add(
        self,
        keys: Sequence[Key],
        before: Floats,
        after: Floats,
        excess: Floats,
        swapped: Floats,
        redrawn: Floats,
    ) -> None:
        self.keys += keys
        change = _rounded(np.asarray(excess, float)).ravel()
        # sizes and maxima of resamples lean upwards, so their spread is taken and not their place
        spread = _rounded(defined.std(redrawn.reshape(len(redrawn), -1).astype(float)))
        self.before.append(np.asarray(before, float).ravel())
        self.after.append(np.asarray(after, float).ravel())
        self.excess.append(change)
        self.swapped.append(_rounded(swapped.reshape(len(swapped), -1)).astype(np.float32))
        self.edges.append(np.stack([change + arm * spread for arm in ARMS]))

    def columns(self) -> dict[str, Floats]:
        """Values, changes, intervals and p-values, one a figure."""
        excess, swapped = np.concatenate(self.excess), np.concatenate(self.swapped, axis=1)
        low, high, inner_low, inner_high = np.concatenate(self.edges, axis=1)
        beaten = np.abs(swapped) >= np.abs(excess) - 10 * ROUNDING
        p = (1 + beaten.sum(axis=0)) / (1 + len(swapped))
        p = np.where(np.isnan(excess), np.nan, p)
        return {
            "before": np.concatenate(self.before),
            "after": np.concatenate(self.after),
            "excess": excess,
            "ci_low": low,
            "ci_high": high,
            "inner_low": inner_low,
            "inner_high": inner_high,
            "p": p,
            "p_fwer": _family_wise(excess, swapped, (high - low) / (2 * Z)),
        }


def _family_wise(excess: Floats, swapped: Floats, spread: Floats) -> Floats:
    """maxT p-values, each change on the scale of its swaps, or of its interval if that is wider.

    Swaps leave the sum of two tilts as it is. That sum is the change where a tilt went over to the
    other side, and only resampled images say how far it may lie from 0: hence the wider of the two.
    A figure that most swaps leave as it is (both models at its largest value, say) has no scale; it
    is no evidence of anything, and left in it would hide the others.
    """
    moves = (np.abs(swapped) > 0).sum(axis=0) + (np.abs(excess) > 0)
    alive = ~np.isnan(excess) & (moves > len(swapped) / 2)
    p = np.where(np.isnan(excess), np.nan, 1.0)
    if alive.any():
        under_swaps = defined.std(np.concatenate([excess[None, alive], swapped[:, alive]]))
        wider = np.fmax(under_swaps, np.nan_to_num(spread[alive]))
        shrunk = excess[alive] * under_swaps / wider
        p[alive] = family_wise(shrunk, swapped[:, alive], "two")
    return p


def _rounded(values: Floats) -> Floats:
    return np.where(np.abs(values) < ROUNDING, 0.0, values)
