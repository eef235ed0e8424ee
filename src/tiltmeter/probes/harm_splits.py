"""Gaps of harmful classes by random visible splits: what any difference between images gives.

Permuted labels say whether groups differ at all. Images of groups differ in much else, and even a
random network classifies by what it sees: a gap counts as clear only if random splits of the same
images, along directions that no label follows, seldom give one as large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.results import rows
from tiltmeter.stats.multiplicity import holm
from tiltmeter.stats.null import null_band, p_from_null_draws
from tiltmeter.stats.random_visible_splits import random_visible_splits
from tiltmeter.types import Floats, Ints

EXPERIMENT = "random visible splits"
SPLITS = 499
MOST_IMAGES = 4000  # of which splits are made: more cost time, and fewer only add noise to splits
TOGETHER = 50  # splits in memory at one time


@dataclass
class SplitControl:
    """Collects the largest gaps of all attributes; they are one family."""

    embeddings: Floats  # images x dimensions
    cells: Ints  # annotated cell of each image
    harmful: Floats  # images x categories: share of the image in each harmful category
    rng: np.random.Generator
    values: list[tuple[str | None, Floats, Floats]] = field(default_factory=list)

    @classmethod
    def of(
        cls, embeddings: Floats, cells: Ints, harmful: Floats, rng: np.random.Generator
    ) -> SplitControl:
        """Of at most MOST_IMAGES images, drawn at random."""
        kept = np.sort(rng.permutation(len(embeddings))[:MOST_IMAGES])
        return cls(embeddings[kept], cells[kept], harmful[kept], rng)

    def add(self, attribute: str | None, gaps: Floats, groups: int) -> None:
        """Compare the gaps of an attribute (one per category) with those of its splits."""
        drawn = [self._gaps(groups, TOGETHER) for _ in range(0, SPLITS, TOGETHER)]
        self.values.append((attribute, gaps, np.concatenate(drawn)[:SPLITS]))

    def _gaps(self, groups: int, splits: int) -> Floats:
        codes = random_visible_splits(self.embeddings, self.cells, groups, splits, self.rng)
        found = np.full((splits, self.harmful.shape[1]), np.nan)
        for at, split in enumerate(codes):
            sizes = np.bincount(split, minlength=groups)
            hits = [np.bincount(split, column, minlength=groups) for column in self.harmful.T]
            rates = np.array(hits) / np.where(sizes > 0, sizes, np.nan)
            found[at] = np.nanmax(rates, axis=1) - np.nanmin(rates, axis=1)
        return found

    def table(self, kinds: Sequence[str], n: int, constants: Mapping[str, Any]) -> pa.Table:
        """Rows of all attributes: the gap, the gaps of splits as its null, p and Holm's p."""
        p = np.concatenate(
            [p_from_null_draws(gaps, drawn, "greater") for _, gaps, drawn in self.values]
        )
        bands = [null_band(drawn) for _, _, drawn in self.values]
        return rows(
            len(p),
            **constants,
            metric="gaps",
            experiment=EXPERIMENT,
            attribute=np.repeat([a for a, _, _ in self.values], len(kinds)).tolist(),
            target=list(kinds) * len(self.values),
            category=list(kinds) * len(self.values),
            value=np.concatenate([gaps for _, gaps, _ in self.values]),
            null_mean=np.concatenate([band.mean for band in bands]),
            null_low=np.concatenate([band.low for band in bands]),
            null_high=np.concatenate([band.high for band in bands]),
            p=p,
            p_side="greater",
            p_fwer=holm(p),
            n=n,
        )
