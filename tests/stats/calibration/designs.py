"""Data sets without any tilt, or with a known one, and the bands that figures must fall in.

Rows of a score matrix are data sets. Some dozens of rows share their labels and whatever a test
draws; then come fresh ones, so that no lucky draw can carry the whole result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from tiltmeter.types import Floats, Groups, Ints

SETS = 4000
ROWS = 40  # data sets that share labels and draws
DRAWS = 999  # 5% of 999 + 1 is a whole number, as 2.5% is: the level can be met exactly
LEVEL = 0.05

Sizes = Sequence[int]
Draw = Callable[[np.random.Generator, Any], Any]  # with a shape

SCORES: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "heavy-tailed": lambda rng, shape: rng.standard_t(3, size=shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape),
    "discrete": lambda rng, shape: 1.0 * rng.binomial(4, 0.3, size=shape),
}


@dataclass(frozen=True)
class Band:
    """What measured figures must lie in, edges included, and how to say it."""

    low: Any
    high: Any
    text: str

    def holds(self, measured: Floats) -> bool:
        return bool(np.all((measured >= self.low) & (measured <= self.high)))


FIRES = Band(0.038, 0.062, ".038 to .062")
AT_MOST = Band(0.0, 0.062, "at most .062")
COVERS = Band(0.935, 0.965, ".935 to .965")


def figures(values: Any) -> str:
    """`.948 .951`: three decimals say all that 4,000 data sets can."""
    return " ".join(f"{x:.3f}".removeprefix("0") for x in np.atleast_1d(values))


def dealt(sizes: Sizes, rng: np.random.Generator) -> Groups:
    """Labels in random order."""
    codes = np.repeat(np.arange(len(sizes)), sizes)
    return Groups(rng.permutation(codes), tuple("abcdefgh"[: len(sizes)]))


def blocks(
    sizes: Sizes,
    rng: np.random.Generator,
    *,
    kind: str = "normal",
    means: Sequence[float] | None = None,
    rows: int = ROWS,
) -> Iterator[tuple[Floats, Groups]]:
    """SETS data sets, `rows` at a time: scores, whose means differ by group if told to; labels."""
    for _ in range(SETS // rows):
        groups = dealt(sizes, rng)
        scores = SCORES[kind](rng, (rows, len(groups)))
        yield (scores if means is None else scores + np.asarray(means)[groups.codes]), groups


def vectors(kind: str, rows: int, rng: np.random.Generator, dimensions: int = 32) -> Floats:
    """Embeddings that, as real ones do, all lean one way."""
    return np.asarray(0.5 + SCORES[kind](rng, (rows, dimensions)))


def fired(p: Floats) -> Floats:
    """Share of data sets whose p-value is at most 5%, for each column."""
    return np.asarray((p <= LEVEL).mean(axis=0))


def covered(truth: Any, low: Floats, high: Floats) -> Floats:
    """Whether each interval holds the truth."""
    return np.asarray((low <= truth) & (truth <= high))


def true_c_asc(sizes: Sizes, means: Sequence[float]) -> Floats:
    """C-ASC of a population of normal groups that differ in their means only."""
    share, mean = np.asarray(sizes) / sum(sizes), np.asarray(means)
    grand = share @ mean
    return np.asarray((mean - grand) / (1 - share) / np.sqrt(1 + share @ (mean - grand) ** 2))


def true_shares(sizes: Sizes, means: Sequence[float], k: int) -> Floats:
    """Share of each such group among the best k / n of the population."""
    share, mean = np.asarray(sizes) / sum(sizes), np.asarray(means)
    wanted = k / sum(sizes)
    edge = brentq(lambda t: share @ norm.sf(t - mean) - wanted, -20, 20)
    return np.asarray(share * norm.sf(edge - mean) / wanted)


def named(sizes: Sizes, *notes: str, means: Sequence[float] | None = None) -> str:
    """A design in words: `500/300/200 images, skewed`."""
    shift = [f"means {' '.join(f'{m:g}' for m in means)}"] if means else []
    return ", ".join(["/".join(map(str, sizes)) + " images", *notes, *shift])


def relabellings(groups: Groups, draws: int, rng: np.random.Generator) -> Ints:
    """The labels dealt out anew: draws x items."""
    return rng.permuted(np.tile(groups.codes, (draws, 1)), axis=1)
