"""Gaps of harmful classes by random visible splits: what any difference between images gives.

Permuted labels say whether groups differ at all. Images of groups differ in much else, and even a
random network classifies by what it sees: a gap counts as clear only if random splits of the same
images, along directions that no label follows, seldom give one as large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tiltmeter.results import rows
from tiltmeter.stats.multiplicity import holm
from tiltmeter.stats.null import null_band, p_from_null_draws
from tiltmeter.stats.random_visible_splits import random_visible_splits
from tiltmeter.types import Floats, Ints

EXPERIMENT = "random visible splits"
SPLITS = 499
TOGETHER = 50  # splits in memory at one time


class SplitGaps(NamedTuple):
    """The largest gaps of an attribute, and those of random splits into as many groups."""

    attribute: str
    gaps: Floats  # one per category
    by_splits: Floats  # splits x categories
    n: int  # images behind the gaps


def gaps_by_splits(
    embeddings: Floats, cells: Ints, harmful: Floats, groups: int, rng: np.random.Generator
) -> Floats:
    """Largest gap of each category by random splits, splits x categories.

    `harmful` is images x categories: the share of the image in each harmful category.
    """
    drawn = []
    for _ in range(0, SPLITS, TOGETHER):
        for split in random_visible_splits(embeddings, cells, groups, TOGETHER, rng):
            sizes = np.bincount(split, minlength=groups)
            hits = [np.bincount(split, column, minlength=groups) for column in harmful.T]
            rates = np.array(hits) / np.where(sizes > 0, sizes, np.nan)
            drawn.append(np.nanmax(rates, axis=1) - np.nanmin(rates, axis=1))
    return np.array(drawn[:SPLITS])


def split_table(
    found: Sequence[SplitGaps], kinds: Sequence[str], constants: Mapping[str, Any]
) -> pa.Table:
    """Rows of all attributes: the gap, the gaps of splits as its null, p and Holm's p."""
    p = np.concatenate([p_from_null_draws(one.gaps, one.by_splits, "greater") for one in found])
    bands = [null_band(one.by_splits) for one in found]
    return rows(
        len(p),
        **constants,
        metric="gaps",
        experiment=EXPERIMENT,
        attribute=np.repeat([one.attribute for one in found], len(kinds)).tolist(),
        target=list(kinds) * len(found),
        category=list(kinds) * len(found),
        value=np.concatenate([one.gaps for one in found]),
        null_mean=np.concatenate([band.mean for band in bands]),
        null_low=np.concatenate([band.low for band in bands]),
        null_high=np.concatenate([band.high for band in bands]),
        p=p,
        p_side="greater",
        p_fwer=holm(p),
        n=np.repeat([one.n for one in found], len(kinds)).tolist(),
    )
