"""Slope of one measure against another that is measured with noise of known size.

Noise in x makes an ordinary slope too flat. Here each x is first replaced by its best linear guess
(shrunk to the mean by its reliability), and y is regressed on that: regression calibration
(Carroll, Ruppert, Stefanski and Crainiceanu 2006, chapter 4). Noise in y does not bias a slope.
"""

from __future__ import annotations

import numpy as np

from tiltmeter.types import Floats, Ints

_STEPS = 30  # of bisection, each halves the error


def noisy_slope(
    x: Floats, variance: Floats, y: Floats, classes: Ints, weights: Floats | None = None
) -> Floats:
    """Slope of y on what x would be without its noise.

    Parameters
    ----------
    x, variance, y
        One entry per unit: x, the variance of its noise, and y.
    classes
        A class of each unit, 0, 1, ...; every class has its own intercept.
    weights
        Resamples x units: how often a bootstrap resample has each unit. One resample with each
        unit once by default.

    Returns
    -------
    array
        One slope per resample. NaN where x differs by no more than its noise.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> true = rng.normal(size=2000)
    >>> x, y = true + rng.normal(size=2000), 0.5 * true
    >>> float(np.polyfit(x, y, 1)[0]) < 0.3
    True
    >>> noisy_slope(x, np.ones(2000), y, np.zeros(2000, int)).round(1)
    array([0.5])
    """
    m = np.ones((1, len(x))) if weights is None else np.asarray(weights, float)
    member = np.eye(int(np.max(classes)) + 1)[np.asarray(classes)]  # units x classes

    def off_class_mean(values: Floats, by: Floats) -> Floats:
        total = by @ member
        mean = np.divide((by * values) @ member, total, out=np.zeros_like(total), where=total > 0)
        return np.asarray(values - mean @ member.T)

    def excess(spread: Floats) -> Floats:
        """Weighted squares of x beyond their expectation, if x has this variance without noise."""
        total = spread[:, None] + variance
        return np.asarray((m * off_class_mean(x, m / total) ** 2 / total).sum(axis=1) - degrees)

    degrees = m.sum(axis=1) - (m @ member > 0).sum(axis=1)
    low, high = np.zeros(len(m)), np.full(len(m), 4 * float(np.ptp(x)) ** 2)
    real = excess(low) > 0
    for _ in range(_STEPS):  # Paule and Mandel's estimate of the variance without noise
        middle = (low + high) / 2
        above = excess(middle) > 0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    spread = low[:, None]
    # no class mean is known better than by its own units, so it is not corrected further
    guess = off_class_mean(x, m / (spread + variance)) * spread / (spread + variance)
    guess = off_class_mean(guess, m)
    square = (m * guess**2).sum(axis=1)
    product = (m * guess * off_class_mean(np.asarray(y, float), m)).sum(axis=1)
    undefined = np.full(len(m), np.nan)
    slope: Floats = np.divide(product, square, out=undefined, where=real & (square > 0))
    return slope
