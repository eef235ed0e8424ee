"""Scores of one class of words by one protocol, ready to be judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tiltmeter.metrics.group_lift import GroupScores
from tiltmeter.probes.lift.words import Word
from tiltmeter.types import Faces, Floats, Groups, Ints

PROTOCOLS = ("contrastive", "masked", "matching", "answers")
CONTRASTIVE, MASKED, MATCHING, ANSWERS = PROTOCOLS


@dataclass(frozen=True, eq=False)
class ImageSample:
    """Some of the images: what random splits and bootstrap resamples are made of."""

    cells: Ints
    features: Floats  # images x dimensions: random splits are along its directions
    texts: Floats | None = None  # words x dimensions: scores are products; None: features are

    def scores(self, features: Floats) -> Floats:
        """Scores of (means of) features, words x items."""
        return features.T if self.texts is None else np.asarray(self.texts @ features.T)


@dataclass(frozen=True, eq=False)
class ScoredClass:
    """Words of one class and their neutral words, scored by one protocol."""

    protocol: str
    pos: str
    words: Sequence[Word]
    neutral: Sequence[Word]
    scores: GroupScores | None = None  # (words, then neutral words) x cells; None: see note
    sample: ImageSample | None = None
    note: str | None = None
    weights: Floats | None = None  # of neutral words, if in other captions than the words

    @property
    def neutral_count(self) -> int:
        """Neutral words, or as many as weighted ones are worth."""
        return len(self.neutral) if self.weights is None else int(self.weights.sum())

    @property
    def name(self) -> str:
        return f"{self.protocol}: {self.pos}"


def scored_images(scored: ScoredClass, scores: Floats, rows: Ints, cells: Groups) -> ScoredClass:
    """The class with its scores of some images, images x (words, then neutral words)."""
    centred = scores - scores[:, len(scored.words) :].mean(axis=1, keepdims=True)
    summary = GroupScores.of(centred.T, cells[rows])
    return replace(scored, scores=summary, sample=ImageSample(cells.codes[rows], centred))


def rows_per_cell(cells: Groups, count: int) -> Ints:
    """At most `count` images of each cell, evenly spaced, in order.

    >>> rows_per_cell(Groups.from_labels("aabaaab"), 2)
    array([0, 2, 5, 6])
    """
    chosen = []
    for code in range(len(cells.names)):
        rows = np.flatnonzero(cells.codes == code)
        places = np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)
        chosen.append(rows[places])
    return np.sort(np.concatenate(chosen))


def images_of(faces: Faces, rows: Ints) -> Sequence[object]:
    """The images of some rows, decoded once."""
    some = faces.select(rows.tolist()).images
    return some if hasattr(some, "shape") else list(some)
