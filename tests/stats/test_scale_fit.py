"""The fitted scale: pairs drawn by a scale give it back, a slow reference, pairs without one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.refusing import refused
from tiltmeter.stats.scale_fit import fit_scale, reliability


def drawn_pairs(scale: float, pairs: int, rng: np.random.Generator) -> np.ndarray:
    """Cosines of captions drawn for each image with probability exp(scale x cosine)."""
    pool, images = rng.normal(size=(2000, 12)), rng.normal(size=(pairs, 12))
    pool, images = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (pool, images))
    chosen = (scale * images @ pool.T + rng.gumbel(size=(pairs, 2000))).argmax(axis=1)
    return pool[chosen] @ images.T


@pytest.mark.parametrize("scale", [5.0, 12.0])
def test_pairs_drawn_by_a_scale_give_it_back(scale: float) -> None:
    rng = np.random.default_rng(0)
    fits = [fit_scale(drawn_pairs(scale, 150, rng)) for _ in range(12)]
    values = np.array([fit.value for fit in fits])
    assert values.mean() == pytest.approx(scale, rel=0.05)
    assert sum(fit.low < scale < fit.high for fit in fits) >= 9


def test_the_loss_is_least_there() -> None:
    cosines = drawn_pairs(8.0, 60, np.random.default_rng(1))

    def loss(scale: float) -> float:
        logits = scale * cosines
        rows = [np.log(np.exp(row).sum()) - row[i] for i, row in enumerate(logits)]
        columns = [np.log(np.exp(row).sum()) - row[i] for i, row in enumerate(logits.T)]
        return float(np.mean(rows) + np.mean(columns))

    grid = np.linspace(4, 14, 1001)
    assert fit_scale(cosines).value == pytest.approx(grid[np.argmin([*map(loss, grid)])], abs=0.01)


def test_half_the_cosines_have_twice_the_scale() -> None:
    cosines = drawn_pairs(8.0, 60, np.random.default_rng(1))
    assert fit_scale(cosines / 2).value == pytest.approx(2 * fit_scale(cosines).value, rel=1e-6)


def test_pairs_without_a_scale() -> None:
    with refused("bad-input", "(3, 3)"):
        fit_scale(np.eye(3))
    with refused("bad-input", "no higher"):
        fit_scale(-np.eye(20))
    with refused("bad-input", "no higher"):
        fit_scale(np.ones((20, 20)))
    with refused("bad-input", "use more pairs"):
        fit_scale(np.eye(20))


def test_a_scale_that_is_too_large_is_too_sure() -> None:
    cosines = drawn_pairs(8.0, 300, np.random.default_rng(2))
    own, double = (reliability(cosines, scale, bins=1) for scale in (8.0, 16.0))
    hits = own.hits[0] / own.count[0]
    assert own.confidence[0] == pytest.approx(hits, abs=0.06)
    assert double.confidence[0] > hits + 0.15
    assert reliability(cosines, 8.0).count.sum() == 300
