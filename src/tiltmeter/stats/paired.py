"""Before and after on the same items: is there a change, and is there surely none that matters?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.stats.intervals import Z
from tiltmeter.stats.null import p_of_draws
from tiltmeter.types import Floats


class PairedChange(NamedTuple):
    """Mean of after - before, its 95% interval, and a p-value."""

    mean: float
    ci_low: float
    ci_high: float
    p: float


def paired_test(
    before: Floats, after: Floats, *, rng: np.random.Generator, draws: int = 10_000
) -> PairedChange:
    """Mean change, with Student's interval and a sign-flip permutation p-value, two-sided.

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
    return PairedChange(mean, mean - half, mean + half, float(p_of_draws(mean, flips)))


def tost(before: Floats, after: Floats, *, margin: float, level: float = 0.05) -> PairedChange:
    """Two one-sided t-tests (Schuirmann 1987): a small p says |change| < margin.

    The interval is the 1 - 2 level one, which lies within the margin just when p < level.

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


class DiscordantPairs(NamedTuple):
    """Two yes-or-no answers to the same items: who said yes where the other said no."""

    only_first: int
    only_second: int
    difference: float  # share of yes, second - first
    ci_low: float
    ci_high: float
    p: float


def mcnemar(first: Floats, second: Floats) -> DiscordantPairs:
    """McNemar's exact test, two-sided: do two models say yes equally often to the same items?

    The interval is Agresti and Min's (2005): half a case is added to each of the four cells.

    >>> found = mcnemar([1, 1, 1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0, 1])
    >>> found.only_first, found.only_second, found.p
    (6, 1, 0.125)
    """
    from scipy.stats import binom

    one, two = np.asarray(first), np.asarray(second)
    if one.shape != two.shape or one.ndim != 1 or len(one) == 0:
        raise InputError(
            f"McNemar's test takes two answers to each item, flat arrays of one length; got shapes "
            f"{one.shape} and {two.shape}"
        )
    if not (np.isin(one, (0, 1)).all() and np.isin(two, (0, 1)).all()):
        raise InputError("McNemar's test takes answers of yes and no (1 and 0)")
    one, two = one.astype(bool), two.astype(bool)
    b, c, n = int((one & ~two).sum()), int((two & ~one).sum()), len(one)
    p = min(1.0, 2 * float(binom.cdf(min(b, c), b + c, 0.5))) if b + c else 1.0
    more = n + 2
    middle = (c - b) / more
    half = Z * np.sqrt(((b + c + 1) / more - middle**2) / more)
    low, high = max(-1.0, middle - half), min(1.0, middle + half)
    return DiscordantPairs(b, c, (c - b) / n, float(low), float(high), p)
