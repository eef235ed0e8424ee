"""Random visible splits and resamples of the images, and the size of the bias by splits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiltmeter.metrics.group_lift import lift_of_group_scores
from tiltmeter.probes.lift.scored import ImageSample, ScoredClass
from tiltmeter.stats.lift_verdict import bias_size
from tiltmeter.stats.random_visible_splits import random_visible_splits
from tiltmeter.types import Floats, Ints

BLOCK = 1 << 23  # memberships of images in groups that are held at once


@dataclass(frozen=True, eq=False)
class ImageDraws:
    """Splits and resamples by one attribute; the same for all classes of words."""

    split_means: Floats  # mean features, splits x groups x dimensions
    #: By group: changes of the mean features when images are resampled, draws x dimensions, and
    #: the number of images; None if a group is too rare for the sample.
    resampled: list[tuple[Floats, int]] | None
    rng: np.random.Generator  # for further draws

    @classmethod
    def of(
        cls, sample: ImageSample, codes: Ints, groups: int, splits: int, draws: int, seed: int
    ) -> ImageDraws:
        """Draw `splits` splits and `draws` resamples; `codes` are the groups of the sample."""
        rng = np.random.default_rng(seed)
        split_means = mean_features(sample, groups, splits, rng)
        resampled = []
        for group in range(groups):
            features = sample.features[codes == group]
            n = len(features)
            if not n:
                return cls(split_means, None, rng)
            weights = rng.multinomial(n, np.full(n, 1 / n), draws).astype(features.dtype)
            resampled.append((weights @ (features - features.mean(axis=0)) / n, n))
        return cls(split_means, resampled, rng)


def split_sizes(scored: ScoredClass, means: Floats) -> Floats:
    """Size of the bias by each split, from the `mean_features` of its groups."""
    assert scored.sample is not None
    splits, groups, dimensions = means.shape
    scores = scored.sample.scores(means.reshape(splits * groups, dimensions))
    by_split = scores.reshape(len(scores), splits, groups)
    lifts = np.asarray(lift_of_group_scores(by_split, by_split[len(scored.words) :]))
    return bias_size(*np.split(lifts.transpose(1, 0, 2), [len(scored.words)], axis=1))


def mean_features(
    sample: ImageSample, groups: int, splits: int, rng: np.random.Generator
) -> Floats:
    """Mean features of the groups of each split, splits x groups x dimensions."""
    codes = random_visible_splits(sample.features, sample.cells, groups, splits, rng)
    together = max(1, BLOCK // (groups * max(1, codes.shape[1])))
    found = np.empty((splits, groups, sample.features.shape[1]))
    for start in range(0, splits, together):
        block = codes[start : start + together]
        members = (block[:, None] == np.arange(groups)[:, None]).astype(sample.features.dtype)
        totals = members.reshape(-1, codes.shape[1]) @ sample.features
        found[start : start + together] = totals.reshape(len(block), groups, -1)
        found[start : start + together] /= members.sum(axis=2)[..., None]
    return found
