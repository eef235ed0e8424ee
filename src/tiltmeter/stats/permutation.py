"""Permutation tests: would randomly permuted labels give as large an effect?

WEAT, SC-EAT and C-ASC all compare the mean of values in a set A with the mean of the rest, divided
by a standard deviation that no permutation changes. So one test serves them: of the sum over A.
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
from tiltmeter.stats.null import TOLERANCE, p_from_two_tails
from tiltmeter.types import Array, Floats, Groups

METHODS = ("auto", "exact", "monte_carlo", "normal")
#: Number of permutations up to which `auto` counts every one.
EXACT_UP_TO = 10**6
_CHUNK = 2000  # permutations processed at one time


@dataclass(frozen=True, eq=False)
class TestResult:
    """Effects with their p-values.

    Parameters
    ----------
    effect, p : array
        One of each per test.
    side : str
        What is extreme: two, greater or less.
    method : str
        How p was computed: exact, monte_carlo or normal.
    draws : int or None
        Number of permutations; None for the normal approximation.
    """

    effect: Floats
    p: Floats
    side: str
    method: str
    draws: int | None


def two_sample_permutation_p(
    values: Floats,
    in_a: Floats,
    *,
    side: str,
    method: str = "auto",
    draws: int = 10_000,
    rng: np.random.Generator | None = None,
) -> tuple[Floats, str, int | None]:
    """P-values of the sum over a set of columns, for each row.

    Parameters
    ----------
    values : array of shape (rows, columns)
        One test per row.
    in_a : array of bool of shape (columns,)
        Which columns are in the set A.
    side : {"two", "greater", "less"}
        What is extreme. Ties count as extreme.
    method : {"auto", "exact", "monte_carlo", "normal"}
        `exact` counts every permutation, `monte_carlo` random ones without replacement,
        (b + 1) / (R + 1), `normal` uses the exact permutation mean and variance; `auto` is exact
        for up to a million permutations, otherwise Monte Carlo.
    draws : int
        Number of random permutations.
    rng : numpy.random.Generator, optional
        Source of randomness; needed by `monte_carlo`.

    Returns
    -------
    p : array of shape (rows,)
        P-values.
    method : str
        The method that was used.
    count : int or None
        Number of permutations; None for the normal approximation.

    Raises
    ------
    InputError
        One of the sets is empty, there are too many permutations for `exact`, or `rng` is missing.
    UnknownNameError
        `method` or `side` is another string.

    Examples
    --------
    >>> values, in_a = np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([0, 0, 1, 1])
    >>> two_sample_permutation_p(values, in_a, side="greater")
    (array([0.16666667]), 'exact', 6)
    """
    if method not in METHODS:
        raise UnknownNameError("method", method, METHODS)
    values = np.asarray(values, dtype=np.float64)
    in_a = np.asarray(in_a, dtype=bool)
    n, n_a = len(in_a), int(in_a.sum())
    if not 0 < n_a < n:
        raise InputError(f"a permutation test needs both sets; got {n_a} and {n - n_a} members")
    # centred, so that the sum has the size of the effect and rounding stays small
    size = np.abs(values).max(axis=1, keepdims=True)
    values = values - values.mean(axis=1, keepdims=True)
    values[np.abs(values).max(axis=1) <= ROUNDING * size[:, 0]] = 0.0  # equal up to rounding
    observed = values[:, in_a].sum(axis=1)
    sets = math.comb(n, n_a)
    if method == "auto":
        method = "exact" if sets <= EXACT_UP_TO else "monte_carlo"
    if method == "normal":
        return _normal_p(values, observed, n_a, side), method, None
    if method == "exact":
        if sets > 100 * EXACT_UP_TO:
            raise InputError(
                f"an exact test would count {sets:.3g} permutations; use method='monte_carlo'"
            )
        above, below = _tails(values, observed, _all_sets(n, n_a))
        return p_from_two_tails(above / sets, below / sets, side), method, sets
    if rng is None:
        raise InputError(
            "a Monte Carlo test needs a source of randomness: pass rng=np.random.default_rng()"
        )
    above, below = _tails(values, observed, _random_sets(n, n_a, draws, rng))
    return (
        p_from_two_tails((above + 1) / (draws + 1), (below + 1) / (draws + 1), side),
        method,
        draws,
    )


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
    """WEAT with its p-value, one-sided (X nearer to A) as in the literature.

    Parameters
    ----------
    x, y : array of shape (words, dimensions)
        Embeddings of the two target sets, of equal size.
    a, b : array of shape (words, dimensions)
        Embeddings of the two attribute sets.
    ddof : {"caliskan", "wefe"}
        Whether the standard deviation divides by n - 1 or by n.
    method : {"auto", "exact", "monte_carlo", "normal"}
        `exact` counts every permutation, `monte_carlo` random ones without replacement,
        (b + 1) / (R + 1), `normal` uses the exact permutation mean and variance; `auto` is exact
        for up to a million permutations, otherwise Monte Carlo.
    draws : int
        Number of random permutations.
    rng : numpy.random.Generator, optional
        Source of randomness; needed by `monte_carlo`.

    Returns
    -------
    TestResult
        The effect size and its p-value.

    Raises
    ------
    InputError
        X and Y differ in size, or `rng` is missing.

    Examples
    --------
    >>> x, y = [[1.0, 0.1], [1.0, 0.2]], [[0.1, 1.0], [0.3, 1.0]]
    >>> result = weat_test(x, y, a=[[1.0, 0.0]], b=[[0.0, 1.0]])
    >>> result.effect.round(3), result.p.round(3), result.method
    (np.float64(1.722), np.float64(0.167), 'exact')
    """
    s_x, s_y = (to_numpy(association.association(w, a, b)) for w in (x, y))
    if len(s_x) != len(s_y):
        raise InputError(
            f"WEAT needs target sets of equal size: X has {len(s_x)} rows, Y has {len(s_y)}"
        )
    in_x = np.arange(len(s_x) + len(s_y)) < len(s_x)
    p, method, count = two_sample_permutation_p(
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
    """SC-EAT of each row of `w` with its two-sided p-value.

    Parameters
    ----------
    w : array of shape (words, dimensions)
        Embeddings of the single words (or images) to test.
    a, b : array of shape (items, dimensions)
        Embeddings of the two attribute sets.
    ddof : {"caliskan", "wefe"}
        Whether the standard deviation divides by n - 1 or by n.
    method : {"auto", "exact", "monte_carlo", "normal"}
        `exact` counts every permutation, `monte_carlo` random ones without replacement,
        (b + 1) / (R + 1), `normal` uses the exact permutation mean and variance; `auto` is exact
        for up to a million permutations, otherwise Monte Carlo.
    draws : int
        Number of random permutations.
    rng : numpy.random.Generator, optional
        Source of randomness; needed by `monte_carlo`.

    Returns
    -------
    TestResult
        One effect size and p-value per row of `w`.

    Raises
    ------
    InputError
        `rng` is missing, or the dimensions differ.

    Examples
    --------
    >>> a, b = [[1.0, 0.1], [1.0, 0.3]], [[0.0, 1.0], [0.2, 1.0]]
    >>> result = sc_eat_test([[1.0, 0.0]], a, b)
    >>> result.effect.round(3), result.p.round(3)
    (array([1.71]), array([0.333]))
    """
    near, far = unit(a, "a"), unit(b, "b")
    cosines = to_numpy(unit(w, "w")) @ np.concatenate([to_numpy(near), to_numpy(far)]).T
    in_a = np.arange(cosines.shape[1]) < len(near)
    p, method, count = two_sample_permutation_p(
        cosines, in_a, side="two", method=method, draws=draws, rng=rng
    )
    return TestResult(to_numpy(association.sc_eat(w, a, b, ddof=ddof)), p, "two", method, count)


def c_asc_test(
    scores: Array,
    groups: Groups | Array,
    *,
    method: str = "auto",
    draws: int = 10_000,
    rng: np.random.Generator | None = None,
) -> TestResult:
    """C-ASC of each query and group with its two-sided p-value.

    Parameters
    ----------
    scores : array of shape (queries, items)
        Similarity of each query to each item.
    groups : Groups or array of shape (items,)
        The group of each item.
    method : {"auto", "exact", "monte_carlo", "normal"}
        `exact` counts every permutation, `monte_carlo` random ones without replacement,
        (b + 1) / (R + 1), `normal` uses the exact permutation mean and variance; `auto` is exact
        for up to a million permutations, otherwise Monte Carlo.
    draws : int
        Number of random permutations.
    rng : numpy.random.Generator, optional
        Source of randomness; needed by `monte_carlo`.

    Returns
    -------
    TestResult
        Effects and p-values of shape (queries, groups).

    Raises
    ------
    InputError
        `rng` is missing, or `groups` does not label every item.

    Examples
    --------
    >>> result = c_asc_test([[1.0, 2.0, 3.0, 4.0]], [0, 0, 1, 1])
    >>> result.effect.round(3), result.p.round(3)
    (array([[-1.549,  1.549]]), array([[0.333, 0.333]]))
    """
    scores = to_numpy(matrix(scores, "scores", "queries", "items"))
    groups = as_groups(groups, scores.shape[1])
    columns = []
    used, count = method, None
    if method == "auto":  # one method for all groups
        sets = max(math.comb(len(groups), int(size)) for size in groups.counts)
        method = "exact" if sets <= EXACT_UP_TO else "monte_carlo"
    for code in range(len(groups.names)):
        p, used, count = two_sample_permutation_p(
            scores, groups.codes == code, side="two", method=method, draws=draws, rng=rng
        )
        columns.append(p)
    effect = np.asarray(association.c_asc(scores, groups))
    return TestResult(effect, np.stack(columns, axis=1), "two", used, count)


def _normal_p(values: Floats, observed: Floats, n_a: int, side: str) -> Floats:
    from scipy.special import ndtr

    n = values.shape[1]
    variance = n_a * (n - n_a) / (n * (n - 1)) * (values**2).sum(axis=1)
    z = np.divide(observed, np.sqrt(variance), out=np.zeros_like(observed), where=variance > 0)
    p: Floats = p_from_two_tails(ndtr(-z), ndtr(z), side)
    return np.where(variance > 0, p, 1.0)  # equal values: every permutation gives the same


def _tails(values: Floats, observed: Floats, sets: Iterator[Floats]) -> tuple[Floats, Floats]:
    """Number of sets whose sum is at least, and at most, the observed one."""
    above, below = np.zeros(len(values)), np.zeros(len(values))
    slack = TOLERANCE * np.abs(values).sum(axis=1) / values.shape[1]
    for members in sets:
        sums = members @ values.T  # sets x rows
        above += np.count_nonzero(sums >= observed - slack, axis=0)
        below += np.count_nonzero(sums <= observed + slack, axis=0)
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
