"""Permutation tests: would the labels, dealt out at random, give as much?

WEAT, SC-EAT and C-ASC all compare the mean of some values in a set A with the mean of the rest,
over a spread that no relabelling changes. So one test serves them: of the sum over A.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics import association
from tiltmeter.metrics.arrays import as_groups, matrix, to_numpy, unit
from tiltmeter.metrics.association import ROUNDING
from tiltmeter.stats.null import TOLERANCE, one_p
from tiltmeter.types import Array, Floats, Groups

METHODS = ("auto", "exact", "monte_carlo", "normal")
#: Relabellings up to which `auto` counts every one.
EXACT_UP_TO = 10**6
_CHUNK = 2000  # relabellings worked on at one time


@dataclass(frozen=True, eq=False)
class TestResult:
    """Effects with their p-values, and how these were come by."""

    effect: Floats
    p: Floats
    side: str
    method: str
    draws: int | None  # relabellings looked at; None for the normal approximation


def two_sample_p(
    values: Floats,
    in_a: Floats,
    *,
    side: str,
    method: str = "auto",
    draws: int = 10_000,
    rng: np.random.Generator | None = None,
) -> tuple[Floats, str, int | None]:
    """p-values for each row of `values` of the sum over the columns in A; method; relabellings.

    exact: every set of that size. monte_carlo: random sets, without replacement,
    (b + 1) / (R + 1). normal: the exact permutation mean and variance. Ties count as extreme.

    >>> two_sample_p(np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([0, 0, 1, 1]), side="greater")
    (array([0.16666667]), 'exact', 6)
    """
    if method not in METHODS:
        raise UnknownNameError("method", method, METHODS)
    values = np.asarray(values, dtype=np.float64)
    in_a = np.asarray(in_a, dtype=bool)
    n, n_a = len(in_a), int(in_a.sum())
    if not 0 < n_a < n:
        raise InputError(f"a permutation test needs both sets; got {n_a} and {n - n_a} members")
    # centred, so that the sum's size is that of the effect and rounding stays small
    size = np.abs(values).max(axis=1, keepdims=True)
    values = values - values.mean(axis=1, keepdims=True)
    values[np.abs(values).max(axis=1) <= ROUNDING * size[:, 0]] = 0.0  # equal but for rounding
    seen = values[:, in_a].sum(axis=1)
    sets = math.comb(n, n_a)
    if method == "auto":
        method = "exact" if sets <= EXACT_UP_TO else "monte_carlo"
    if method == "normal":
        return _normal_p(values, seen, n_a, side), method, None
    if method == "exact":
        if sets > 100 * EXACT_UP_TO:
            raise InputError(
                f"an exact test would count {sets:.3g} relabellings; use method='monte_carlo'"
            )
        above, below = _tails(values, seen, _all_sets(n, n_a))
        return one_p(above / sets, below / sets, side), method, sets
    if rng is None:
        raise InputError(
            "a Monte Carlo test needs its randomness: pass rng=np.random.default_rng()"
        )
    above, below = _tails(values, seen, _random_sets(n, n_a, draws, rng))
    return one_p((above + 1) / (draws + 1), (below + 1) / (draws + 1), side), method, draws


def weat_test(
    x: Array,
    y: Array,
    a: Array,
    b: Array,
    *,
    ddof: str = "caliskan",
    method: str = "auto",
    draws: int = 10_000,
    rng: np.random.Generator | None = None,
) -> TestResult:
    """WEAT with its p-value, one-sided (X nearer to A) as in the literature."""
    s_x, s_y = (to_numpy(association.association(w, a, b)) for w in (x, y))
    if len(s_x) != len(s_y):
        raise InputError(
            f"WEAT permutes over partitions of equal size: X has {len(s_x)} rows, Y {len(s_y)}"
        )
    in_x = np.arange(len(s_x) + len(s_y)) < len(s_x)
    p, method, count = two_sample_p(
        np.concatenate([s_x, s_y])[None],
        in_x,
        side="greater",
        method=method,
        draws=draws,
        rng=rng,
    )
    effect = to_numpy(association.weat(x, y, a, b, ddof=ddof))
    return TestResult(effect, p[0], "greater", method, count)


def sc_eat_test(
    w: Array,
    a: Array,
    b: Array,
    *,
    ddof: str = "caliskan",
    method: str = "auto",
    draws: int = 10_000,
    rng: np.random.Generator | None = None,
) -> TestResult:
    """SC-EAT of each row of `w` with its two-sided p-value."""
    near, far = unit(a, "a"), unit(b, "b")
    cosines = to_numpy(unit(w, "w")) @ np.concatenate([to_numpy(near), to_numpy(far)]).T
    in_a = np.arange(cosines.shape[1]) < len(near)
    p, method, count = two_sample_p(cosines, in_a, side="two", method=method, draws=draws, rng=rng)
    return TestResult(to_numpy(association.sc_eat(w, a, b, ddof=ddof)), p, "two", method, count)


def c_asc_test(
    scores: Array,
    groups: Groups | Array,
    *,
    method: str = "auto",
    draws: int = 10_000,
    rng: np.random.Generator | None = None,
) -> TestResult:
    """C-ASC of each query and group with its two-sided p-value, queries x groups."""
    scores = to_numpy(matrix(scores, "scores", "queries", "items"))
    groups = as_groups(groups, scores.shape[1])
    columns = []
    used, count = method, None
    if method == "auto":  # one method for all groups
        sets = max(math.comb(len(groups), int(size)) for size in groups.counts)
        method = "exact" if sets <= EXACT_UP_TO else "monte_carlo"
    for code in range(len(groups.names)):
        p, used, count = two_sample_p(
            scores, groups.codes == code, side="two", method=method, draws=draws, rng=rng
        )
        columns.append(p)
    effect = np.asarray(association.c_asc(scores, groups))
    return TestResult(effect, np.stack(columns, axis=1), "two", used, count)


def _normal_p(values: Floats, seen: Floats, n_a: int, side: str) -> Floats:
    from scipy.special import ndtr

    n = values.shape[1]
    variance = n_a * (n - n_a) / (n * (n - 1)) * (values**2).sum(axis=1)
    z = np.divide(seen, np.sqrt(variance), out=np.zeros_like(seen), where=variance > 0)
    p: Floats = one_p(ndtr(-z), ndtr(z), side)
    return np.where(variance > 0, p, 1.0)  # equal values: every relabelling gives the same


def _tails(values: Floats, seen: Floats, sets: Iterator[Floats]) -> tuple[Floats, Floats]:
    """How many of the sets have a sum at least, and at most, the one seen."""
    above, below = np.zeros(len(values)), np.zeros(len(values))
    slack = TOLERANCE * np.abs(values).sum(axis=1) / values.shape[1]
    for members in sets:
        sums = members @ values.T  # sets x rows
        above += np.count_nonzero(sums >= seen - slack, axis=0)
        below += np.count_nonzero(sums <= seen + slack, axis=0)
    return above, below


def _all_sets(n: int, n_a: int) -> Iterator[Floats]:
    combinations = itertools.combinations(range(n), n_a)
    while chunk := list(itertools.islice(combinations, _CHUNK)):
        members = np.zeros((len(chunk), n))
        np.put_along_axis(members, np.array(chunk), 1.0, axis=1)
        yield members


def _random_sets(n: int, n_a: int, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    for start in range(0, draws, _CHUNK):
        rows = min(_CHUNK, draws - start)
        members = np.zeros((rows, n))
        members[:, :n_a] = 1.0
        yield rng.permuted(members, axis=1, out=members)
