"""Shares and means over captions, with their nulls and intervals.

Images that share their captions are not independent cases, so whole sets of captions are resampled
and permuted. Intervals resample sets within their category. There are two nulls:

- No bias: the model errs equally often on images that go against the stereotype and on images that
  fit it. Each set's contribution to the difference of the two sides gets a random sign (the wild
  bootstrap with the null imposed), which is valid for sides of any size.
- Random picks: the three captions of a set are exchangeable. Each set's captions are permuted, in
  the same way for all images of the set, and the picks are kept. This is exact; without shared
  captions it is the binomial.

Sets that share words are not independent either: both kinds of draws are widened by what their
words have in common (`shared_words.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Any

import numpy as np

from tiltmeter.probes.stereotype.caption_choice import KINDS, CaptionCases
from tiltmeter.probes.stereotype.shared_words import SharedWords
from tiltmeter.stats.bootstrap import bootstrap_weights_within_groups
from tiltmeter.stats.intervals import Z, wilson, wilson_of_top_k_shares
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Floats, Groups, Ints

#: Columns in the unit of the value.
SCALED = ("value", "null_mean", "null_low", "null_high", "ci_low", "ci_high")
RESAMPLED = "bootstrap over sets of captions"
ORDERS = np.array(list(permutations(range(len(KINDS)))))  # 6 x 3


@dataclass(frozen=True, eq=False)
class CaptionSets:
    """Sets of captions with their bootstrap weights, signs and orders, shared by all metrics."""

    of_case: Ints
    count: int
    weights: Ints | None  # draws x sets: bootstrap counts
    signs: Floats | None  # draws x sets: 1 and -1
    orders: Ints | None  # draws x sets: index into ORDERS
    words: SharedWords

    @classmethod
    def of(
        cls, cases: CaptionCases, bootstraps: int, draws: int, rng: np.random.Generator
    ) -> CaptionSets:
        first = np.unique(cases.sets, return_index=True)[1]
        category = Groups(cases.categories.codes[first], cases.categories.names, "category")
        weights = bootstrap_weights_within_groups(category, bootstraps, rng) if bootstraps else None
        signs = 2.0 * rng.integers(0, 2, (draws, len(first))) - 1 if draws else None
        orders = rng.integers(0, len(ORDERS), (draws, len(first)), np.uint8) if draws else None
        words = SharedWords.of([cases.captions[row] for row in first])
        return cls(cases.sets, len(first), weights, signs, orders, words)

    def sums(self, values: Floats, rows: Ints) -> Floats:
        """Sum over the `rows` (a mask) of each set."""
        return np.bincount(self.of_case, np.where(rows, values, 0.0), self.count)

    def picked_by_chance(self, chosen: Floats, rows: Ints, kind: int) -> Floats | None:
        """Number of the `rows` (a mask) that pick a kind of caption, for each draw of orders."""
        if self.orders is None:
            return None
        picked = np.stack([self.sums(column, rows) for column in chosen.T], axis=1)  # sets x 3
        return np.asarray(picked[np.arange(self.count), ORDERS[self.orders, kind]].sum(axis=1))

    def permuted(self, rng: np.random.Generator, draws: int) -> Ints:
        """Sets in random order, draws x sets."""
        return rng.permuted(np.tile(np.arange(self.count), (draws, 1)), axis=1)


@dataclass(frozen=True, eq=False)
class Ratio:
    """sum of values / sum of weights over the images that go against the stereotype.

    `value` and `weight` are given for all cases. For an image that fits the stereotype they are
    those with its two captions swapped.
    """

    value: Floats  # one per case, already times its weight
    weight: Floats
    against: Ints  # a mask
    rows: Ints  # a mask: the cases to include
    sets: CaptionSets

    @cached_property
    def parts(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Values and weights by set, of images against the stereotype and of the others."""
        sides = (self.rows & self.against, self.rows & ~self.against)
        both = [(self.sets.sums(self.value, side), self.sets.sums(self.weight, side))
                for side in sides]  # fmt: skip
        return both[0][0], both[0][1], both[1][0], both[1][1]

    @property
    def observed(self) -> float:
        value, weight, _, _ = self.parts
        return float(_divided(value.sum(), weight.sum()))

    @property
    def other_side(self) -> float:
        """The ratio over images that fit the stereotype, with captions swapped."""
        _, _, value, weight = self.parts
        return float(_divided(value.sum(), weight.sum()))

    @cached_property
    def resampled(self) -> Floats | None:
        """Both sides for each bootstrap resample of sets: 2 x draws."""
        weights = self.sets.weights
        if weights is None:
            return None
        a, b, c, d = (weights @ part for part in self.parts)
        return np.stack([_divided(a, b), _divided(c, d)])

    @cached_property
    def null(self) -> Floats | None:
        """Null differences of the two sides; None where one side is empty."""
        signs, (a, b, c, d) = self.sets.signs, self.parts
        if signs is None or b.sum() == 0 or d.sum() == 0:
            return None
        residual = (a - self.pooled * b) / b.sum() - (c - self.pooled * d) / d.sum()
        units = max(self.sets.words.count(b + d > 0), 2)
        return np.asarray(signs @ residual * self.widening * np.sqrt(units / (units - 1)))

    @cached_property
    def residuals(self) -> tuple[Floats, Floats]:
        """By set: how much it moves the ratio of each side away from what it is."""
        a, b, c, d = self.parts
        return _residuals(a, b), _residuals(c, d)

    @property
    def widening(self) -> float:
        """How much wider the difference of the two sides spreads than with words of their own."""
        mine, other = self.residuals
        return self.sets.words.widening(mine - other)

    @property
    def pooled(self) -> float:
        """The ratio over both sides: the value of either without bias."""
        a, b, c, d = (part.sum() for part in self.parts)
        return float((a + c) / (b + d))

    def row(self, *, share: bool, times: float = 1.0) -> dict[str, Any]:
        """Value, interval, null and p for a row of results; `share`: a value from 0 to 1."""
        value, resampled = self.observed, None if self.resampled is None else self.resampled[0]
        weight = float(self.parts[1].sum())
        interval = None
        wider = self.sets.words.widening(self.residuals[0])
        if np.isfinite(value) and share:
            interval = share_interval(value, weight, resampled, wider)
        elif resampled is not None and (units := self.sets.words.count(self.parts[1] > 0)) > 1:
            stretch = wider * student_stretch(units)
            interval = Interval(resampled[:, None], stretch=stretch, method=RESAMPLED)
        null = None
        if self.null is not None:  # this side's part of the difference
            other_weight = self.parts[3].sum()
            null = self.pooled + self.null * other_weight / (weight + other_weight)
        n = int((self.rows & self.against & (self.weight > 0)).sum())
        row = row_of(value, times, null=null, interval=interval)
        return {**(_within(row, 0.0, times) if share else row), "n": n}

    def excess_row(self, times: float) -> dict[str, Any]:
        """One side minus the other: errors towards the stereotype minus the opposite errors."""
        value, interval = self.observed - self.other_side, None
        if self.resampled is not None:
            resampled = self.resampled[0] - self.resampled[1]
            units = self.sets.words.count(self.parts[1] + self.parts[3] > 0)
            stretch = self.widening * student_stretch(units)
            interval = Interval(resampled[:, None], stretch=stretch, method=RESAMPLED)
        n = int((self.rows & (self.weight > 0)).sum())
        row = row_of(value, times, null=self.null, interval=interval)
        return {**_within(row, -times, times), "n": n}


def _within(row: dict[str, Any], low: float, high: float) -> dict[str, Any]:
    """A row whose interval and band do not leave the range of the value."""
    edges = [name for name in ("null_low", "null_high", "ci_low", "ci_high") if name in row]
    return {**row, **{name: float(np.clip(row[name], low, high)) for name in edges}}


def share_interval(
    share: float, n: float, resampled: Floats | None, widening: float = 1.0
) -> Interval:
    """Wilson's interval, with the number of trials that matches the bootstrap variance."""
    if resampled is None or not np.isfinite(resampled).any():
        return Interval(edges=wilson(np.array([share * n]), np.array([n])), method="Wilson")
    usable = widened(resampled[np.isfinite(resampled)], widening)
    trials = max(round(n), 1)
    edges = wilson_of_top_k_shares(np.array([share * trials]), usable[:, None], trials)
    return Interval(edges=edges, method=f"Wilson, trials by {RESAMPLED}")


def widened(draws: Floats, factor: float) -> Floats:
    """Draws that spread more around their mean.

    >>> widened(np.array([1.0, 3.0]), 2.0)
    array([0., 4.])
    """
    return np.asarray(draws.mean() + factor * (draws - draws.mean()))


def row_of(
    value: float,
    times: float = 1.0,
    *,
    null: Floats | None = None,
    interval: Interval | None = None,
) -> dict[str, Any]:
    """`significance.columns` of one value, scaled by `times`."""
    if null is not None and not (np.isfinite(value) and np.isfinite(null).any()):
        null = None
    side = None if null is None else "two"
    draws = None if null is None else null[:, None]
    cells = columns([value], side=side, null=draws, interval=interval)
    row = {name: cell if isinstance(cell, str) else cell[0] for name, cell in cells.items()}
    return {name: times * float(cell) if name in SCALED else cell for name, cell in row.items()}


def student_stretch(units: int) -> float:
    """Factor that widens a percentile interval from `units` resampled units."""
    from scipy.special import stdtrit

    if units < 2:
        return 1.0
    return float(stdtrit(units - 1, 0.975) / Z * np.sqrt(units / (units - 1)))


def _residuals(value: Floats, weight: Floats) -> Floats:
    """By set: value minus the ratio's share of it, over the sum of weights; 0 without weights."""
    total = weight.sum()
    return (value - value.sum() / total * weight) / total if total > 0 else np.zeros(len(value))


def _divided(a: Floats | float, b: Floats | float) -> Floats:
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    none = np.full(np.broadcast(a, b).shape, np.nan)
    return np.asarray(np.divide(a, b, out=none, where=b > 0))
