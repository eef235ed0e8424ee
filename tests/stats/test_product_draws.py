"""C-ASC from sums of images, against sums of each prompt's standardised scores."""

from __future__ import annotations

import numpy as np
import pytest

from tiltmeter.engine.ranking.in_memory import InMemoryRanking
from tiltmeter.engine.ranking.job import RankingJob
from tiltmeter.engine.vectors import InMemoryVectors
from tiltmeter.metrics.convention import get_convention
from tiltmeter.stats import kernels
from tiltmeter.stats.bootstrap import bootstrap_c_asc
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Groups

DIMENSIONS = 16


def job(prompts: int, images: int) -> RankingJob:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(images, DIMENSIONS)).astype(np.float32) + 0.7
    groups = {
        "a": Groups(rng.integers(0, 2, images), ("x", "y"), "a"),
        "b": Groups(rng.integers(0, 3, images), ("u", "v", "w"), "b"),
    }
    groups["a*b"] = groups["a"].cross(groups["b"])
    texts = rng.normal(size=(30, DIMENSIONS)).astype(np.float32)[:prompts]
    convention = get_convention("tiltmeter").with_(k=(10,))
    vectors = InMemoryVectors(x)
    return RankingJob(texts, 4, vectors, groups, groups, convention, Resampling(30, 20))


@pytest.mark.parametrize("images", [300, 5000], ids=["double precision", "single precision"])
@pytest.mark.parametrize("prompts", [4, 30], ids=["fewer prompts than dimensions", "more"])
def test_draws_of_c_asc(prompts: int, images: int) -> None:
    work = job(prompts, images)
    ranking = InMemoryRanking(work, np.random.default_rng(0), "cpu", lambda *_: None)
    (sample,) = ranking.drawn
    # they are freed when they are no longer needed
    weights, relabelled = dict(sample.weights), sample.relabelled
    found = {
        estimate.groups.attribute: estimate
        for turn in ranking.turns()
        for estimate, _ in turn
        if estimate.metric == "c_asc"
    }
    assert set(found) == set(work.groups)
    scores = (ranking.texts @ ranking.images.T).astype(np.float64)
    z = kernels.standardized(scores)
    for name, estimate in found.items():
        groups, of = sample.groups[name], sample.group_of[name]
        sums = kernels.relabelled_sums(z, relabelled, len(groups.names), of)
        assert estimate.null is not None
        assert estimate.boot is not None
        null, boot = estimate.null[:], estimate.boot[:]
        np.testing.assert_allclose(null, kernels.c_asc_of_sums(sums, groups.counts), atol=2e-5)
        expected = bootstrap_c_asc(scores, groups, weights[name])
        np.testing.assert_allclose(boot, expected, atol=1e-4)
        # some draws of some prompts are the same numbers
        np.testing.assert_allclose(estimate.null[3:7, 1:3], null[3:7, 1:3], atol=1e-6)
        np.testing.assert_allclose(estimate.boot.at(np.array([3, 0])), boot[:, [3, 0]], atol=1e-6)
