"""Scores summarised by group, in one pass over the images, on any engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tiltmeter.engine.engines import Engine, FailedPart
from tiltmeter.engine.parts import (
    ImageParts,
    PartReader,
    VectorPart,
    retry_without_failed,
    run_parts,
)
from tiltmeter.engine.ranking.job import matched
from tiltmeter.errors import InputError
from tiltmeter.metrics.group_lift import GroupScores
from tiltmeter.types import Floats, Groups, Progress


class PartScores(NamedTuple):
    """What a worker returns of a part: the summary of each leaf, and leaves that failed."""

    leaves: list[GroupScores]
    failed: dict[int, str]


@dataclass(frozen=True, eq=False)
class MomentsTask:
    """What is sent to a worker: the texts, the number of groups, and how embeddings are scaled."""

    reader: PartReader
    texts: Floats  # scores are their products with image embeddings
    groups: int
    images: str  # the convention's choice

    def __call__(self) -> Callable[[VectorPart | range], PartScores]:
        return self.work

    def work(self, part: VectorPart | range) -> PartScores:
        """Summarise the scores of one part."""

        def summarise(failed: frozenset[int]) -> list[GroupScores]:
            return [self._leaf(leaf) for first, _, leaf in self.reader.leaves(part)
                    if first not in failed]  # fmt: skip

        return PartScores(*retry_without_failed(summarise))

    def _leaf(self, leaf: VectorPart | range) -> GroupScores:
        names = tuple(map(str, range(self.groups)))
        total: GroupScores | None = None
        for _, images, codes in self.reader.blocks(leaf, scaling=self.images):
            scores = matched(self.texts, images) @ images.T
            block = GroupScores.of(scores, Groups(codes, names, "cell"))
            total = block if total is None else total.merge(block)
        assert total is not None
        return total


def score_moments(
    texts: Floats, groups: int, scaling: str, images: ImageParts, engine: Engine, progress: Progress
) -> tuple[GroupScores, dict[int, str]]:
    """Summarise all scores by text and group.

    Parameters
    ----------
    texts : array
        Texts whose products with image embeddings are scores.
    groups : int
        Number of cells.
    scaling : str
        How image embeddings are scaled.
    images : ImageParts
        Image embeddings and their cells, wherever they are.
    engine : Engine
        Where the work is done.
    progress : callable
        Told what is done, and the share of it.

    Returns
    -------
    scores : GroupScores
        Texts x groups.
    failed : dict
        First image of each unreadable leaf, and the reason.

    Raises
    ------
    InputError
        No image could be read.
    """
    task = MomentsTask(images.reader, texts, groups, scaling)
    scores: GroupScores | None = None
    failed: dict[int, str] = {}
    parts = images.parts(engine)
    found = run_parts(engine, task, parts, progress, "scoring images")
    for part, result in zip(parts, found, strict=True):
        if isinstance(result, FailedPart):  # of the engine itself
            result = PartScores([], {first: result.reason
                                     for first, _, _ in task.reader.leaves(part)})  # fmt: skip
        failed |= result.failed
        for leaf in result.leaves:
            scores = leaf if scores is None else scores.merge(leaf)
    if scores is None:
        raise InputError(f"no embeddings could be read: {next(iter(failed.values()))}")
    return scores, failed
