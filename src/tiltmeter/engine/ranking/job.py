"""What a probe asks of an engine, and the summary that it gets: the same on every engine."""

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

#: Of prompts at some places: the mean score of each group minus that of all others, places x
#: groups; and the same for resampled images, draws x places x groups.
Gaps: TypeAlias = Callable[[Ints], tuple[Floats, Floats]]
#: An estimate, and the generator that its rows draw from.
Drawn: TypeAlias = tuple[MetricEstimate, np.random.Generator]


@dataclass(frozen=True, eq=False)
class RankingJob:
    """Rank `images` by each text and compare `groups`."""

    texts: Floats  # prompts x dimensions, unit length: words first, then neutral words
    words: int  # how many of the prompts are words
    images: Vectors
    groups: Mapping[str, Groups]  # by attribute
    labels: Mapping[str, Groups]  # all that images have, for a convention that balances one
    convention: Convention
    resampling: Resampling
    reorder: RankingOrder | None = None  # a re-ranker's order, instead of that of the scores


@dataclass(eq=False)
class SampleSummary:
    """What is left of the images that some attributes were measured on."""

    rows: Ints | None  # None: all of them
    groups: dict[str, Groups]
    #: Of each word, the images that come first, by number, and their scores.
    top: tuple[Ints, Floats] | None = None
    moments: dict[str, Moments] = field(default_factory=dict)  # by attribute; none if re-ranked
    #: By attribute and k, prompts x groups.
    counts: dict[str, dict[int, Floats]] = field(default_factory=dict)
    gaps: dict[str, Gaps] = field(default_factory=dict)


class Ranking(Protocol):
    """A job under way: `turns` does the work, and then the rest is there."""

    samples: list[SampleSummary]
    #: Parts that could not be read, by their first image: why, and how many images they had.
    failed: dict[int, tuple[str, int]]

    def turns(self) -> Iterator[Iterator[Drawn]]:
        """Estimates, some at a time: those of one turn are in memory together."""


def scaled(images: Floats, how: str, first: int = 0) -> Floats:
    """Image embeddings as the convention takes them: `raw`, or of unit length."""
    if how == "raw":
        return np.asarray(matrix(images, "images", "images", "dimensions", first))
    return np.asarray(unit(images, "images", first))


def matched(texts: Floats, images: Floats) -> Floats:
    """Text embeddings in the precision of the images' ones, which must be as long."""
    if texts.shape[1] != images.shape[1]:
        raise InputError(
            f"texts have {texts.shape[1]} dimensions, images {images.shape[1]}: "
            "they must come from one model"
        )
    return np.asarray(texts, dtype=images.dtype)
