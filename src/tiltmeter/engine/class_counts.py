"""Zero-shot classes of images, counted by group in one pass, on any engine.

Images that tie between the same classes share a pattern; counts of patterns are integers, so they
add up to the same on every engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

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
from tiltmeter.types import Floats, Ints, Progress

TIE = 5e-7  # cosines closer than this are tied: embeddings are in single precision


class PatternCounts(NamedTuple):
    """Images of each cell by the classes that score highest."""

    patterns: Ints  # patterns x classes: whether the class has the highest score
    counts: Ints  # patterns x cells
    failed: dict[int, str]  # unreadable images by the first of them, with reasons


def nearest(classes: Floats, images: Floats) -> tuple[Ints, Floats]:
    """Whether each class has the highest score, images x classes, and that score.

    Classes whose scores differ by rounding alone are tied: a correction that makes them equal
    leaves them equal to the precision of embeddings.
    """
    matched(classes, images)  # raises if dimensions differ
    scores = images @ classes.T  # in double precision, as classes are
    best = scores.max(axis=1)
    return scores >= best[:, None] - TIE, best


@dataclass(frozen=True, eq=False)
class ClassTask:
    """Sent to workers: classes as unit vectors, the number of cells, and the scaling of images."""

    reader: PartReader
    classes: Floats
    cells: int
    images: str

    def __call__(self) -> Callable[[VectorPart | range], PatternCounts]:
        return self.work

    def work(self, part: VectorPart | range) -> PatternCounts:
        """Count the patterns of one part."""

        def count(failed: frozenset[int]) -> dict[bytes, Ints]:
            found: dict[bytes, Ints] = {}
            for begin, _, leaf in self.reader.leaves(part):
                if begin in failed:
                    continue
                for _, images, codes in self.reader.blocks(leaf, scaling=self.images):
                    tied, _ = nearest(self.classes, images)
                    patterns, which = np.unique(tied, axis=0, return_inverse=True)
                    table = np.zeros((len(patterns), self.cells), np.int64)
                    np.add.at(table, (which.reshape(-1), codes), 1)
                    for pattern, row in zip(patterns, table, strict=True):
                        key = pattern.tobytes()
                        found[key] = found[key] + row if key in found else row
            return found

        return self._listed(*retry_without_failed(count))

    def _listed(self, found: dict[bytes, Ints], failed: dict[int, str]) -> PatternCounts:
        keys = sorted(found)  # bytes of booleans sort as np.unique sorts rows
        patterns = np.frombuffer(b"".join(keys), bool).reshape(-1, len(self.classes))
        counts = np.array([found[key] for key in keys], np.int64).reshape(-1, self.cells)
        return PatternCounts(patterns, counts, failed)


def count_classes(
    classes: Floats,
    cells: int,
    scaling: str,
    images: ImageParts,
    engine: Engine,
    progress: Progress,
) -> PatternCounts:
    """Count the nearest classes of all images by cell.

    Parameters
    ----------
    classes : array of shape (classes, dimensions)
        Unit vectors.
    cells : int
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
    PatternCounts

    Raises
    ------
    InputError
        No image could be read.
    """
    task = ClassTask(images.reader, classes, cells, scaling)
    total: dict[bytes, Ints] = {}
    failed: dict[int, str] = {}
    parts = images.parts(engine)
    found = run_parts(engine, task, parts, progress, "choosing classes")
    for part, result in zip(parts, found, strict=True):
        if isinstance(result, FailedPart):  # of the engine itself
            failed |= {first: result.reason for first, _, _ in task.reader.leaves(part)}
            continue
        failed |= result.failed
        for pattern, row in zip(result.patterns, result.counts, strict=True):
            key = pattern.tobytes()
            total[key] = total[key] + row if key in total else row
    if not total:
        raise InputError(f"no embeddings could be read: {next(iter(failed.values()))}")
    return task._listed(total, failed)
