"""Scores summarised by group, in one pass over the images, on any engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tiltmeter.engine.engines import Engine, FailedPart
from tiltmeter.engine.ranking.job import matched, scaled
from tiltmeter.engine.vectors import VectorPart, Vectors, parts_of
from tiltmeter.errors import InputError
from tiltmeter.metrics.group_lift import GroupScores
from tiltmeter.types import Floats, Groups, Ints, Progress

#: Images of a part where the engine does not say: their scores fit into memory.
PART = 1 << 14


@dataclass(frozen=True, eq=False)
class MomentsTask:
    """What is sent to a worker: the texts, the number of groups, and how embeddings are scaled."""

    texts: Floats  # scores are their products with image embeddings
    groups: int
    images: str  # the convention's choice

    def __call__(self) -> Callable[[VectorPart], GroupScores]:
        return self.work

    def work(self, part: VectorPart) -> GroupScores:
        """Summarise the scores of one part."""
        images = scaled(part.vectors.read(), self.images, part.first)
        names = tuple(map(str, range(self.groups)))
        groups = Groups(part.codes, names, "cell")
        return GroupScores.of(matched(self.texts, images) @ images.T, groups)


def score_moments(
    task: MomentsTask, images: Vectors, codes: Ints, engine: Engine, progress: Progress
) -> tuple[GroupScores, dict[int, str]]:
    """Summarise all scores by text and group.

    Parameters
    ----------
    task : MomentsTask
        Texts and groups.
    images : Vectors
        Image embeddings, wherever they are.
    codes : array of int
        The group of each image.
    engine : Engine
        Where the work is done.
    progress : callable
        Told what is done, and the share of it.

    Returns
    -------
    scores : GroupScores
        Texts x groups.
    failed : dict
        First image of each unreadable part, and the reason.

    Raises
    ------
    InputError
        No part could be read.
    """
    parts = parts_of(images, codes, engine.size or PART)
    scores: GroupScores | None = None
    failed: dict[int, str] = {}
    for index, done in enumerate(engine.run(task, parts)):
        if isinstance(done, FailedPart):
            failed[parts[index].first] = done.reason
        else:
            scores = done if scores is None else scores.merge(done)
        progress("scoring images", (index + 1) / len(parts))
    if scores is None:
        raise InputError(f"no embeddings could be read: {next(iter(failed.values()))}")
    return scores, failed
