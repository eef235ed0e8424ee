"""The ranking job that a probe gives to an engine, and its summary: the same on every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from tiltmeter.engine.ranking.reranked import RankingOrder
from tiltmeter.engine.vectors import Vectors
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import matrix, unit
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.summary import Moments
from tiltmeter.stats.estimate import MetricEstimate
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Floats, Groups, Ints

#: For the given rows of prompts: the mean score of each group minus the mean of the others, rows x
#: groups; and the same for resampled images, draws x rows x groups.
Gaps: TypeAlias = Callable[[Ints], tuple[Floats, Floats]]
#: An estimate, and the random generator for its rows.
Drawn: TypeAlias = tuple[MetricEstimate, np.random.Generator]


@dataclass(frozen=True, eq=False)
class RankingJob:
    """Rank `images` by each text and compare `groups`."""

    texts: Floats  # prompts x dimensions, unit length: words first, then neutral words
    words: int  # number of words among the prompts
    images: Vectors
    groups: Mapping[str, Groups]  # by attribute
    labels: Mapping[str, Groups]  # all labels, for a convention that balances one of them
    convention: Convention
    resampling: Resampling
    reorder: RankingOrder | None = None  # a re-ranker's order, in place of that by score


@dataclass(eq=False)
class SampleSummary:
    """Summary of the images that some attributes were measured on."""

    rows: Ints | None  # None: all of them
    groups: dict[str, Groups]
    #: Top images of each word, by number, and their scores.
    top: tuple[Ints, Floats] | None = None
    moments: dict[str, Moments] = field(default_factory=dict)  # by attribute; none if re-ranked
    #: By attribute and k, prompts x groups.
    counts: dict[str, dict[int, Floats]] = field(default_factory=dict)
    gaps: dict[str, Gaps] = field(default_factory=dict)


class Ranking(Protocol):
    """A running job: `turns` does the work, and fills in the rest."""

    samples: list[SampleSummary]
    #: Unreadable parts by the number of their first image: reason and number of images.
    failed: dict[int, tuple[str, int]]

    def turns(self) -> Iterator[Iterator[Drawn]]:
        """Yield estimates in batches that are in memory together."""


def scaled(images: Floats, scaling: str, first: int = 0) -> Floats:
    """Image embeddings as the convention says: `raw`, or of unit length."""
    if scaling == "raw":
        return np.asarray(matrix(images, "images", "images", "dimensions", first))
    return np.asarray(unit(images, "images", first))


def matched(texts: Floats, images: Floats) -> Floats:
    """Text embeddings in the precision of the image embeddings; raises if dimensions differ."""
    if texts.shape[1] != images.shape[1]:
        raise InputError(
            f"texts have {texts.shape[1]} dimensions, images {images.shape[1]}: "
            "they must come from one model"
        )
    return np.asarray(texts, dtype=images.dtype)
