"""The slope through noise: counts of words in captions against a planted slope."""

from __future__ import annotations

import numpy as np
import pytest

from tiltmeter.stats.noisy_slope import noisy_slope


def counted(rng: np.random.Generator, slope: float, words: int = 150) -> tuple[np.ndarray, ...]:
    """Log-odds of words from captions that name two groups, their variance, and a model's lift."""
    n = rng.poisson(np.exp(rng.normal(3.5, 1.0, words))) + 15
    true = rng.normal(scale=0.6, size=words)
    women = rng.binomial(n, 1 / (1 + np.exp(0.7 - true)))
    x = np.log(women + 0.5) - np.log(n - women + 0.5)
    return x, 1 / (n * 0.33) + 1 / (n * 0.67), slope * true + rng.normal(scale=0.2, size=words)


def test_noise_does_not_flatten_the_slope_and_intervals_cover_it() -> None:
    rng = np.random.default_rng(0)
    slopes, flat, covered = [], [], []
    for _ in range(60):
        x, variance, y = counted(rng, 0.3)
        classes = np.arange(len(x)) % 2
        weights = rng.multinomial(len(x), np.full(len(x), 1 / len(x)), 100)
        low, high = np.quantile(noisy_slope(x, variance, y, classes, weights), [0.025, 0.975])
        covered.append(low <= 0.3 <= high)
        slopes.append(noisy_slope(x, variance, y, classes)[0])
        flat.append(np.polyfit(x, y, 1)[0])
    assert np.mean(slopes) == pytest.approx(0.3, abs=0.02)
    assert np.mean(flat) < 0.26
    assert np.mean(covered) > 0.85


def test_each_class_has_its_own_intercept() -> None:
    x, y = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 0.5, 9.0, 9.5])
    none = np.full(4, 1e-12)
    assert noisy_slope(x, none, y, np.array([0, 0, 1, 1])) == pytest.approx([0.5])


def test_x_that_differs_by_noise_only_has_no_slope() -> None:
    x = np.array([0.0, 0.1, -0.1, 0.05])
    assert np.isnan(noisy_slope(x, np.ones(4), x, np.zeros(4, int))).all()
    assert np.isnan(noisy_slope(np.ones(4), np.ones(4), x, np.zeros(4, int))).all()
