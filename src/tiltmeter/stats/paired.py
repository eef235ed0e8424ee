"""Before and after on the same items: is there a change, and is it smaller than a margin?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.stats.intervals import Z
from tiltmeter.stats.null import p_from_null_draws
from tiltmeter.types import Floats


class PairedChange(NamedTuple):
    """Mean of after - before.

    Attributes
    ----------
    mean, ci_low, ci_high, p : float
        The mean, its 95% interval and a p-value.
    """

    mean: float
    ci_low: float
    ci_high: float
    p: float


def paired_test(
    before: Floats, after: Floats, *, rng: np.random.Generator, draws: int = 10_000
) -> PairedChange:
    """Test the mean change by flipping signs, two-sided, with Student's interval.

    Parameters
    ----------
    before, after : array of shape (items,)
        Two values of the same items.
    rng : numpy.random.Generator
        Source of randomness.
    draws : int
        Number of random sign flips.

    Returns
    -------
    PairedChange
        The mean change, its interval and its p-value.

    Raises
    ------
    InputError
        The arrays differ in shape, or have fewer than 2 items.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> change = paired_test(np.zeros(50), rng.normal(1, 1, size=50), rng=rng)
    >>> change.p < 0.001
    True
    """
    change, se = _change(before, after)
    mean = float(change.mean())
    flips = np.empty(draws)
    step = max(1, 4_000_000 // len(change))
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        signs = rng.integers(0, 2, size=(rows, len(change)), dtype=np.int8) * 2 - 1
        flips[start : start + rows] = signs @ change / len(change)
    half = _t_quantile(0.975, len(change) - 1) * se
    return PairedChange(mean, mean - half, mean + half, float(p_from_null_draws(mean, flips)))


def tost(before: Floats, after: Floats, *, margin: float, level: float = 0.05) -> PairedChange:
    """Equivalence test by two one-sided t-tests (Schuirmann 1987): small p if |change| < margin.

    Parameters
    ----------
    before, after : array of shape (items,)
        Two values of the same items.
    margin : float
        The largest change that does not matter.
    level : float
        Level of the test: the interval is the 1 - 2 * level one, which is within the margin
        exactly when p < level.

    Returns
    -------
    PairedChange
        The mean change, its interval and its p-value.

    Raises
    ------
    InputError
        The margin is not above 0, the arrays differ in shape, or have fewer than 2 items.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> tost(np.zeros(400), rng.normal(0, 1, size=400), margin=0.2).p < 0.05
    True
    """
    from scipy.stats import t as student

    if not margin > 0:
        raise InputError(f"the margin of an equivalence test must be above 0; got {margin}")
    change, se = _change(before, after)
    mean, df = float(change.mean()), len(change) - 1
    half = _t_quantile(1 - level, df) * se
    if se == 0:
        p = float(abs(mean) >= margin)
    else:
        p = float(max(student.sf((mean + margin) / se, df), student.cdf((mean - margin) / se, df)))
    return PairedChange(mean, mean - half, mean + half, p)


def _change(before: Floats, after: Floats) -> tuple[Floats, float]:
    before, after = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    if before.shape != after.shape or before.ndim != 1 or len(before) < 2:
        raise InputError(
            "before and after must be flat arrays of the same items, at least 2; got shapes "
            f"{before.shape} and {after.shape}"
        )
    change = after - before
    return change, float(change.std(ddof=1) / np.sqrt(len(change)))


def _t_quantile(q: float, df: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(df, q))


class McNemarResult(NamedTuple):
    """Two yes-or-no answers to the same items.

    Attributes
    ----------
    only_first, only_second : int
        Items where only the first, or only the second, answer is yes.
    difference, ci_low, ci_high : float
        Share of yes, second - first, and its 95% interval.
    p : float
        Two-sided p-value.
    """

    only_first: int
    only_second: int
    difference: float
    ci_low: float
    ci_high: float
    p: float


def mcnemar(first: Floats, second: Floats) -> McNemarResult:
    """McNemar's exact test, two-sided: do two models say yes equally often to the same items?

    Parameters
    ----------
    first, second : array of shape (items,)
        Answers, 1 or 0.

    Returns
    -------
    McNemarResult
        Counts, difference and p-value. The interval is Agresti and Min's (2005): half a case is
        added to each of the four cells.

    Raises
    ------
    InputError
        The arrays differ in shape, are empty, or contain other values than 0 and 1.

    Examples
    --------
    >>> result = mcnemar([1, 1, 1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0, 1])
    >>> result.only_first, result.only_second, result.p
    (6, 1, 0.125)
    """
    from scipy.stats import binom

    x, y = np.asarray(first), np.asarray(second)
    if x.shape != y.shape or x.ndim != 1 or len(x) == 0:
        raise InputError(
            f"McNemar's test takes two answers to each item, flat arrays of one length; got shapes "
            f"{x.shape} and {y.shape}"
        )
    if not (np.isin(x, (0, 1)).all() and np.isin(y, (0, 1)).all()):
        raise InputError("McNemar's test takes answers of yes and no (1 and 0)")
    x, y = x.astype(bool), y.astype(bool)
    b, c, n = int((x & ~y).sum()), int((y & ~x).sum()), len(x)
    p = min(1.0, 2 * float(binom.cdf(min(b, c), b + c, 0.5))) if b + c else 1.0
    padded = n + 2
    middle = (c - b) / padded
    half = Z * np.sqrt(((b + c + 1) / padded - middle**2) / padded)
    low, high = max(-1.0, middle - half), min(1.0, middle + half)
    return McNemarResult(b, c, (c - b) / n, float(low), float(high), p)
