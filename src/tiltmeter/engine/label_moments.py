"""Moments of embeddings by group, in one pass on any engine: what LEACE is fitted on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tiltmeter.engine.engines import Engine, FailedPart
from tiltmeter.engine.parts import ImageParts, PartReader, VectorPart, run_parts
from tiltmeter.errors import InputError
from tiltmeter.metrics.label_moments import LabelMoments
from tiltmeter.types import Progress


@dataclass(frozen=True, eq=False)
class LabelMomentsTask:
    """Sent to workers: how images are read, and the number of groups."""

    reader: PartReader
    groups: int

    def __call__(self) -> Callable[[VectorPart | range], list[LabelMoments]]:
        return self.work

    def work(self, part: VectorPart | range) -> list[LabelMoments]:
        """The moments of each leaf of a part."""
        return [self._leaf(leaf) for _, _, leaf in self.reader.leaves(part)]

    def _leaf(self, leaf: VectorPart | range) -> LabelMoments:
        total: LabelMoments | None = None
        for _, vectors, codes in self.reader.blocks(leaf):
            block = LabelMoments.of(vectors, codes, self.groups)
            total = block if total is None else total.merge(block)
        assert total is not None
        return total


def label_moments(
    images: ImageParts, groups: int, engine: Engine, progress: Progress
) -> LabelMoments:
    """The moments of all images by group.

    Parameters
    ----------
    images : ImageParts
        Image embeddings and their groups, wherever they are.
    groups : int
        Number of groups.
    engine : Engine
        Where the work is done.
    progress : callable
        Told what is done, and the share of it.

    Returns
    -------
    LabelMoments

    Raises
    ------
    InputError
        Some images cannot be read: a correction is fitted on all of them or not at all.
    """
    task = LabelMomentsTask(images.reader, groups)
    total: LabelMoments | None = None
    for found in run_parts(engine, task, images.parts(engine), progress, "summarising images"):
        if isinstance(found, FailedPart):
            raise InputError(found.reason)
        for leaf in found:
            total = leaf if total is None else total.merge(leaf)
    assert total is not None
    return total
