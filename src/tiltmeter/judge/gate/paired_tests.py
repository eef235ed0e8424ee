"""Paired tests of many metrics, with family-wise p-values."""

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
#: Standard errors to either side: a 95% interval, and a 90% one for tests of equivalence.
ARMS = (-Z, Z, -Z90, Z90)
#: Smaller changes are rounding: values are float32 sums.
ROUNDING = 1e-6

Key = dict[str, Any]


@dataclass(eq=False)
class PairedTests:
    """Many metrics before and after: changes, changes under swaps, intervals."""

    keys: list[Key] = field(default_factory=list)
    before: list[Floats] = field(default_factory=list)
    after: list[Floats] = field(default_factory=list)
    excess: list[Floats] = field(default_factory=list)
    swapped: list[Floats] = field(default_factory=list)  # draws x tests each
    edges: list[Floats] = field(default_factory=list)  # the four of ARMS x tests each

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
        # absolute values and maxima of resamples are biased upwards: use their spread only
        spread = _rounded(defined.std(redrawn.reshape(len(redrawn), -1).astype(float)))
        self.before.append(np.asarray(before, float).ravel())
        self.after.append(np.asarray(after, float).ravel())
        self.excess.append(change)
        self.swapped.append(_rounded(swapped.reshape(len(swapped), -1)).astype(np.float32))
        self.edges.append(np.stack([change + arm * spread for arm in ARMS]))

    def columns(self) -> dict[str, Floats]:
        """Values, changes, intervals and p-values, one per test."""
        excess, swapped = np.concatenate(self.excess), np.concatenate(self.swapped, axis=1)
        low, high, inner_low, inner_high = np.concatenate(self.edges, axis=1)
        at_least = np.abs(swapped) >= np.abs(excess) - 10 * ROUNDING
        p = (1 + at_least.sum(axis=0)) / (1 + len(swapped))
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
    """maxT p-values, each change scaled by its spread under swaps, or its error if that is larger.

    Swaps leave the sum of two associations unchanged. If the sign of an association changed, the
    change is that sum, and only resampled images give its error: hence the larger of the two. A
    metric that most swaps leave unchanged (both models at its maximum, for example) has no scale
    and is excluded: it is no evidence, and would mask the others.
    """
    n_moved = (np.abs(swapped) > 0).sum(axis=0) + (np.abs(excess) > 0)
    testable = ~np.isnan(excess) & (n_moved > len(swapped) / 2)
    p = np.where(np.isnan(excess), np.nan, 1.0)
    if testable.any():
        under_swaps = defined.std(np.concatenate([excess[None, testable], swapped[:, testable]]))
        scale = np.fmax(under_swaps, np.nan_to_num(spread[testable]))
        shrunk = excess[testable] * under_swaps / scale
        p[testable] = family_wise(shrunk, swapped[:, testable], "two")
    return p


def _rounded(values: Floats) -> Floats:
    return np.where(np.abs(values) < ROUNDING, 0.0, values)
