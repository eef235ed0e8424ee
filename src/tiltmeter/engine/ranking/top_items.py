"""Draws for top-k metrics if only the top images of each prompt are kept.

A draw needs k images under permuted labels, and a few more than k if images are resampled. Labels
and weights are drawn for these images only, from the sizes of the groups, with the distribution
that they have among all images. So nulls and intervals for 10^8 images are those of the whole score
matrix, not those of a subsample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tiltmeter.engine.ranking.estimates import PromptBlocks
from tiltmeter.metrics.numpy_kernels import ndkl_of_labels
from tiltmeter.metrics.summary import TopItems
from tiltmeter.stats import kernels
from tiltmeter.stats.null import draw_top_counts, slices_of_draws
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Floats, Groups, Ints

SPREAD, SPARE = 8, 32  # standard deviations, and further images, beyond k for resampling


def top_size(k: int, images: int) -> int:
    """Number of top images to keep, so that resamples have k of them.

    The weights of m images add up to about m, plus or minus its root.

    >>> top_size(100, 10**6), top_size(100, 120)
    (212, 120)
    """
    return min(k + math.ceil(SPREAD * math.sqrt(k)) + SPARE, images)


@dataclass(frozen=True, eq=False)
class TopImages:
    """The distinct top images of all prompts."""

    order: Ints  # prompts x kept: indices into the images
    codes: Ints  # the group of each image

    @classmethod
    def of(cls, top: TopItems, most: int) -> TopImages:
        """The first `most` images of each prompt."""
        ids, order = np.unique(top.ids[:, :most], return_inverse=True)
        order = order.reshape(len(top.ids), -1)
        codes = np.empty(len(ids), np.int64)
        codes[order] = top.codes[:, :most]
        return cls(order, codes)

    def add_draws(
        self,
        part: PromptBlocks,
        groups: Groups,
        ks: tuple[int, ...],
        words: int,
        resampling: Resampling,
        rng: np.random.Generator,
    ) -> None:
        """Add top-k counts of bootstrap resamples, and of permuted labels for words."""
        ks, sizes = tuple(sorted(ks)), groups.counts
        if resampling.bootstraps:
            counts_by_k: dict[int, list[Ints]] = {k: [] for k in ks}
            for draws in slices_of_draws((resampling.bootstraps, len(self.codes)), 0):
                weights = resampled(self.codes, sizes, draws.stop - draws.start, rng)
                for k in ks:
                    counts_by_k[k].append(
                        kernels.weighted_top_counts(self.order, self.codes, weights, k, len(sizes))
                    )
            for k in ks:
                kind = np.min_scalar_type(k)
                part.draw(f"top {k} boot", 0, np.concatenate(counts_by_k[k]), kind, words=False)
        if resampling.permutations:
            images, top = np.unique(self.order[:words, : max(ks)], return_inverse=True)
            top = top.reshape(words, -1)
            null_counts = [
                kernels.relabelled_top_counts(
                    top,
                    relabelled(len(images), sizes, block.stop - block.start, rng),
                    ks,
                    len(sizes),
                )
                for block in slices_of_draws((resampling.permutations, len(images)), 0)
            ]
            for k, counts in zip(ks, np.concatenate(null_counts, axis=1), strict=True):
                part.draw(f"top {k} null", 0, counts, np.min_scalar_type(k), words=True)

    def resampled_ndkl(
        self,
        k: int,
        sizes: Ints,
        log_shares: Floats,
        words: int,
        rng: np.random.Generator,
        draws: int,
    ) -> Floats:
        """NDKL of the top k of bootstrap resamples: words x draws."""
        weights = resampled(self.codes, sizes, draws, rng)
        values = np.empty((words, draws))
        for word, order in enumerate(self.order[:words]):
            codes = self.codes[order]
            ranked = [np.repeat(codes, times)[:k] for times in weights[:, order]]
            values[word] = ndkl_of_labels(np.stack(ranked), log_shares)
        return values


def resampled(codes: Ints, sizes: Ints, draws: int, rng: np.random.Generator) -> Ints:
    """Bootstrap counts of the given images, with every whole group resampled: draws x images.

    >>> weights = resampled(np.array([0, 0, 1]), np.array([2, 1]), 4, np.random.default_rng(0))
    >>> weights[:, :2].sum(axis=1).tolist(), weights[:, 2].tolist()  # none is left out
    ([2, 2, 2, 2], [1, 1, 1, 1])
    """
    weights = np.zeros((draws, len(codes)), np.uint8)
    for code, size in enumerate(sizes):
        rows = np.flatnonzero(codes == code)
        if not len(rows):
            continue
        for draw, count in enumerate(rng.binomial(size, len(rows) / size, draws)):
            picked = rng.integers(0, len(rows), count)
            weights[draw, rows] = np.minimum(np.bincount(picked, minlength=len(rows)), 255)
    return weights


def relabelled(count: int, sizes: Ints, draws: int, rng: np.random.Generator) -> Ints:
    """Permuted labels of `count` of all images: draws x images."""
    kind = np.min_scalar_type(len(sizes))
    names = np.arange(len(sizes), dtype=kind)
    return np.stack(
        [
            rng.permutation(np.repeat(names, counts))
            for counts in draw_top_counts(sizes, count, draws, rng)
        ]
    )
