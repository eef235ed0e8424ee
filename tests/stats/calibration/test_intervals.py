"""Intervals: 19 in 20 must hold the truth, with no tilt and with one that is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tiltmeter.metrics import numpy_kernels
from tiltmeter.metrics.association import c_asc
from tiltmeter.metrics.ranking import skew_of_shares, top_counts
from tiltmeter.stats.bootstrap import (
    bootstrap_c_asc,
    bootstrap_mean_of_words,
    bootstrap_top_counts,
    bootstrap_weights_within_groups,
    interval,
    widen_for_few_words,
    widen_for_small_groups,
)
from tiltmeter.stats.intervals import wilson_of_top_k_shares

from .conftest import Expect
from .designs import (
    COVERS,
    ROWS,
    SETS,
    Band,
    Sizes,
    blocks,
    covered,
    named,
    true_c_asc,
    true_shares,
)

pytestmark = pytest.mark.slow

BOOTSTRAPS = 400
Means = Sequence[float]


@pytest.mark.parametrize(
    ("sizes", "kind", "means"),
    [
        ((20, 20), "normal", None),
        ((40, 30, 30), "normal", None),
        ((100, 100), "skewed", None),
        ((170, 30), "normal", None),
        ((80, 60, 40, 20), "heavy-tailed", None),
        ((500, 300, 200), "normal", None),
        ((500, 300, 200), "heavy-tailed", None),
        ((500, 300, 200), "discrete", None),
        ((100, 100), "normal", (0.8, 0.0)),
        ((500, 300, 200), "normal", (0.4, 0.0, -0.3)),
    ],
)
def test_c_asc(
    sizes: Sizes, kind: str, means: Means | None, rng: np.random.Generator, expect: Expect
) -> None:
    truth = true_c_asc(sizes, means or [0.0] * len(sizes))
    hits = []
    for scores, groups in blocks(sizes, rng, kind=kind, means=means):
        draws = bootstrap_c_asc(
            scores, groups, bootstrap_weights_within_groups(groups, BOOTSTRAPS, rng)
        )
        longer = widen_for_small_groups(groups.counts)
        hits.append(covered(truth, *interval(draws, c_asc(scores, groups), longer)))
    design = named(sizes, kind, means=means)
    expect(COVERS, "C-ASC interval", design, np.concatenate(hits).mean(axis=0))


@pytest.mark.parametrize(
    ("sizes", "k", "means"),
    [
        ((500, 500), 100, None),
        ((600, 340, 60), 100, None),
        ((600, 370, 30), 100, None),
        ((2400, 1580, 1000, 20), 1000, None),
        ((500, 500), 100, (0.4, 0.0)),
        ((600, 340, 60), 100, (0.3, 0.0, -0.2)),
        ((2400, 1580, 1000, 20), 1000, (0.2, 0.0, -0.3, 0.2)),
    ],
)
def test_skew(
    sizes: Sizes, k: int, means: Means | None, rng: np.random.Generator, expect: Expect
) -> None:
    """Also where a group is expected only 3 to 6 times in the top k.

    There a single count moves the interval, and coverage jumps with it: it may lie above the band.
    """
    hits = []
    for scores, groups in blocks(sizes, rng, means=means):

        def skew(p: np.ndarray, q: np.ndarray = groups.shares) -> np.ndarray:
            return np.asarray(skew_of_shares(p, q, k=k, empty="bounded"))

        truth = skew(true_shares(sizes, means or [0.0] * len(sizes), k))
        counts = top_counts(scores, groups, k=k, ties="expected")
        weights = bootstrap_weights_within_groups(groups, BOOTSTRAPS, rng)
        draws = bootstrap_top_counts(numpy_kernels.rank(scores), groups, weights, k) / k
        low, high = wilson_of_top_k_shares(counts, draws, k)
        hits.append(covered(truth, skew(low) - 1e-12, skew(high) + 1e-12))
    design = named(sizes, f"k {k}", means=means)
    few = np.array(sizes) * k / sum(sizes) < 10
    band = Band(COVERS.low, np.where(few, 0.975, COVERS.high), f"{COVERS.text} (.975 if few)")
    expect(band, "Skew interval", design, np.concatenate(hits).mean(axis=0))


@pytest.mark.parametrize(
    ("words", "templates", "spread"),
    [(12, 1, 0.0), (12, 6, 0.3), (30, 8, 0.3), (12, 3, 1.0), (40, 3, 0.5), (5, 6, 0.3)],
)
def test_mean_over_words(
    words: int, templates: int, spread: float, rng: np.random.Generator, expect: Expect
) -> None:
    """Words and wordings are a sample too, and a small one: nine in ten is asked for."""
    word, template = (at.ravel() for at in np.indices((words, templates)))
    hits = []
    for _ in range(SETS // ROWS):
        effects = (
            rng.normal(0, 1.0, (words, ROWS))[word]
            + rng.normal(0, spread, (templates, ROWS))[template]
            + rng.normal(0, 0.3, (len(word), ROWS))
        )
        values = 0.5 + effects + rng.normal(0, 0.3, effects.shape)  # another sample of images
        images = rng.normal(0, 0.3, (BOOTSTRAPS, *effects.shape))
        drawn = bootstrap_mean_of_words(values + images, word, template, rng)
        longer = widen_for_few_words(values, word, template, drawn)
        hits.append(covered(0.5, *interval(drawn, values.mean(axis=0), longer)))
    design = f"{words} words x {templates} templates, template spread {spread}"
    expect(Band(0.9, 1.0, "at least .900"), "mean over words, crossed", design, np.mean(hits))
