"""The size of the bias by random visible splits of the images, for comparison."""

from __future__ import annotations

import numpy as np

from tiltmeter.metrics.group_lift import lift_of_group_scores
from tiltmeter.probes.lift.scored import ImageSample, ScoredClass
from tiltmeter.stats.lift_verdict import bias_size
from tiltmeter.stats.random_visible_splits import random_visible_splits
from tiltmeter.types import Floats, Ints


def split_sizes(scored: ScoredClass, means: Floats) -> Floats:
    """Size of the bias by each split, from the `mean_features` of its groups."""
    assert scored.sample is not None
    splits, groups, dimensions = means.shape
    scores = scored.sample.scores(means.reshape(splits * groups, dimensions))
    by_split = scores.reshape(len(scores), splits, groups).transpose(1, 0, 2)
    count, sizes = len(scored.words), []
    for own in by_split:
        value = np.asarray(lift_of_group_scores(own[:count], own[count:]))
        neutral = np.asarray(lift_of_group_scores(own[count:], own[count:]))
        sizes.append(bias_size(value, neutral))
    return np.array(sizes)


def mean_features(
    sample: ImageSample, cells: Ints, groups: int, splits: int, rng: np.random.Generator
) -> Floats:
    """Mean features of the groups of each split, splits x groups x dimensions."""
    found = np.empty((splits, groups, sample.features.shape[1]))
    all_codes = random_visible_splits(sample.features, cells[sample.rows], groups, splits, rng)
    for split, codes in enumerate(all_codes):
        members = np.eye(groups, dtype=sample.features.dtype)[codes]
        found[split] = members.T @ sample.features / members.sum(axis=0)[:, None]
    return found
