"""C-ASC with null and interval from counts, means and second moments of any number of images.

The variance of one prompt's scores is known exactly. The correlation between prompts is estimated
from a sample of the images, as a factor F with rows of unit length: F F' is the correlation, and F
times normal numbers are draws with that correlation. So permutations and bootstrap resamples are
drawn without any images: with so many, means are normal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from tiltmeter.metrics.association import c_asc_of_moments
from tiltmeter.metrics.summary import Moments
from tiltmeter.stats.bootstrap import widen_for_small_groups
from tiltmeter.stats.draws import BootstrapDraws
from tiltmeter.stats.estimate import MetricEstimate
from tiltmeter.stats.null import NullBand, slices_of_draws
from tiltmeter.types import Floats, Groups, Ints

LEAST_P = 1e-300  # no p-value is 0


def correlation_factor(texts: Floats, images: Floats, codes: Ints | None = None) -> Floats:
    """F, prompts x dimensions, of images centred by their mean, or by their group's mean."""
    centred = np.asarray(images, np.float64)
    codes = np.zeros(len(images), int) if codes is None else codes
    for code in np.unique(codes):
        rows = codes == code
        centred = np.where(rows[:, None], centred - centred[rows].mean(axis=0), centred)
    spread = np.asarray(np.linalg.qr(centred, mode="r"))
    factor = np.asarray(texts, np.float64) @ spread.T
    length = np.sqrt((factor**2).sum(axis=1, keepdims=True))
    return np.asarray(factor / np.where(length > 0, length, 1.0), np.float32)


def null_draws(factor: Floats, sizes: Ints, draws: int, rng: np.random.Generator) -> Floats:
    """C-ASC under permuted labels: prompts x draws x groups.

    The mean of a group is normal with variance 1/n_G - 1/n, and any two have covariance -1/n.
    """
    size, draws_by_part = np.asarray(sizes, np.float64), []
    n = size.sum()
    for part in slices_of_draws((len(factor), draws, len(size)), 1):
        free = _normal(factor, part.stop - part.start, len(size), rng)
        mean = free / np.sqrt(size) - (free @ np.sqrt(size))[..., None] / n
        draws_by_part.append((mean * (n / (n - size))).astype(np.float32))
    return np.concatenate(draws_by_part, axis=1)


class ResampledMoments(NamedTuple):
    """Bootstrap draws with images resampled within groups: both prompts x draws x groups."""

    c_asc: Floats
    gap: Floats  # mean of the group minus the mean of the others


def boot_draws(
    factor: Floats, moments: Moments, draws: int, rng: np.random.Generator
) -> ResampledMoments:
    """Bootstrap draws: normal means, and variances as for normal scores.

    The covariance of the product of two draws is the squared correlation, as for variances.
    """
    size = np.asarray(moments.count, np.float64)
    spread = np.sqrt(moments.m2 / size**2)[:, None]  # of a mean
    c_asc, gaps = [], []
    for part in slices_of_draws((len(factor), draws, len(size)), 1):
        count = part.stop - part.start
        a, b, c = (_normal(factor, count, len(size), rng) for _ in range(3))
        mean = moments.mean[:, None] + spread * a
        m2 = moments.m2[:, None] * np.maximum(1 + np.sqrt(2 / size) * b * c, 0.0)
        flat = Moments(size, mean.reshape(-1, len(size)), m2.reshape(-1, len(size)))
        c_asc.append(np.asarray(c_asc_of_moments(flat), np.float32).reshape(mean.shape))
        gaps.append(gap(mean, size).astype(np.float32))
    return ResampledMoments(np.concatenate(c_asc, axis=1), np.concatenate(gaps, axis=1))


def gap(mean: Floats, size: Floats) -> Floats:
    """The mean of each group (last axis) minus the mean of the others."""
    total = (mean * size).sum(axis=-1, keepdims=True)
    return np.asarray(mean - (total - mean * size) / (size.sum() - size))


def _normal(factor: Floats, draws: int, groups: int, rng: np.random.Generator) -> Floats:
    free = rng.standard_normal((factor.shape[1], draws * groups), np.float32)
    return np.asarray(factor @ free, np.float64).reshape(len(factor), draws, groups)


def c_asc_estimate(
    moments: Moments,
    groups: Groups,
    *,
    null: Floats | None = None,
    boot: Floats | None = None,
) -> MetricEstimate:
    """C-ASC with null, p and interval from moments; draws are for families and means."""
    values = np.asarray(c_asc_of_moments(moments))
    n, size = float(moments.count.sum()), np.asarray(moments.count, float)
    spread = np.sqrt(n / (size * (n - size)))
    band = NullBand(0 * spread, norm.ppf(0.025) * spread, norm.ppf(0.975) * spread)
    p = np.maximum(2 * norm.sf(np.abs(values) / spread), LEAST_P)
    errors = [c_asc_error(moments.regroup(np.arange(len(size)) != g, 2)) for g in range(len(size))]
    reach = norm.ppf(0.975) * np.stack(errors, axis=1)
    return MetricEstimate(
        "c_asc",
        groups,
        values,
        side="two",
        ideal=0.0,
        null=None if null is None else BootstrapDraws(null),
        boot=None if boot is None else BootstrapDraws(boot),
        exact_null=band,
        exact_p=p,
        exact_ci=(values - reach, values + reach),
        exact_ci_method="delta method on moments",
        stretch=widen_for_small_groups(groups.counts),
        undefined="all images have the same score",
    )


def c_asc_error(two: Moments) -> Floats:
    """The standard error of C-ASC of the first of two groups, by the delta method.

    C = gap / S and S^2 = p v_1 + (1 - p) v_2 + p (1 - p) gap^2: the means affect the gap and S, the
    variances v (with the variance of normal scores) affect S only.
    """
    count = np.asarray(two.count, float)
    share = count / count.sum()
    v = two.m2 / (count - 1)
    gap = two.mean[:, 0] - two.mean[:, 1]
    within = (share * v).sum(axis=1)
    total = within + share.prod() * gap**2
    cubed = np.where(total > 0, total, np.nan) ** 1.5
    of_means = (within / cubed) ** 2 * (v / count).sum(axis=1)
    of_spread = (gap / (2 * cubed)) ** 2 * (share**2 * 2 * v**2 / count).sum(axis=1)
    return np.asarray(np.sqrt(of_means + of_spread))
