"""WEAT, SC-EAT and C-ASC: when nothing is there, do they fire as often as they say?"""

from __future__ import annotations

import numpy as np
import pytest

from tiltmeter.stats.permutation import c_asc_test, sc_eat_test, weat_test
from tiltmeter.types import Floats

from .conftest import Expect
from .designs import (
    AT_MOST,
    DRAWS,
    FIRES,
    SETS,
    Band,
    Sizes,
    blocks,
    fired,
    named,
    vectors,
)

pytestmark = pytest.mark.slow

LEVELS = np.array([0.01, 0.02, 0.05, 0.1, 0.2])
#: An exact p-value is valid at every level: P(p <= a) <= a, but for the chance of 4,000 sets.
VALID = Band(
    0.0,
    np.minimum(LEVELS + 3 * np.sqrt(LEVELS * (1 - LEVELS) / SETS), [1, 1, AT_MOST.high, 1, 1]),
    "at most .01 .02 .05 .10 .20 + 3 s.e.",
)


def valid_at(p: Floats) -> Floats:
    """How often p is at most each of the levels, in the column where this happens most."""
    columns = p.reshape(len(p), -1)
    return np.array([(columns <= level).mean(axis=0).max() for level in LEVELS])


def weat_ps(size: int, kind: str, method: str, rng: np.random.Generator) -> Floats:
    def one() -> Floats:
        x, y, a, b = (vectors(kind, size, rng) for _ in range(4))
        return weat_test(x, y, a, b, method=method, draws=DRAWS, rng=rng).p

    return np.array([one() for _ in range(SETS)])


def sc_eat_ps(n_a: int, n_b: int, kind: str, method: str, rng: np.random.Generator) -> Floats:
    def one() -> Floats:  # words that share A and B would fire together
        w, a, b = (vectors(kind, rows, rng) for rows in (1, n_a, n_b))
        return sc_eat_test(w, a, b, method=method, draws=DRAWS, rng=rng).p

    return np.concatenate([one() for _ in range(SETS)])


def c_asc_ps(sizes: Sizes, kind: str, method: str, rng: np.random.Generator) -> Floats:
    found = [
        c_asc_test(scores, groups, method=method, draws=DRAWS, rng=rng).p
        for scores, groups in blocks(sizes, rng, kind=kind)
    ]
    return np.concatenate(found)


@pytest.mark.parametrize("method", ["monte_carlo", "normal"])
@pytest.mark.parametrize(("size", "kind"), [(8, "normal"), (25, "normal"), (25, "skewed")])
def test_weat(size: int, kind: str, method: str, rng: np.random.Generator, expect: Expect) -> None:
    p = weat_ps(size, kind, method, rng)
    expect(FIRES, f"WEAT, {method}, one-sided", f"{size} + {size} words, {kind}", fired(p))


@pytest.mark.parametrize("method", ["monte_carlo", "normal"])
@pytest.mark.parametrize(
    ("n_a", "n_b", "kind"), [(8, 8, "normal"), (25, 10, "normal"), (25, 25, "heavy-tailed")]
)
def test_sc_eat(
    n_a: int, n_b: int, kind: str, method: str, rng: np.random.Generator, expect: Expect
) -> None:
    p = sc_eat_ps(n_a, n_b, kind, method, rng)
    expect(FIRES, f"SC-EAT, {method}", f"{n_a} + {n_b} attributes, {kind}", fired(p))


@pytest.mark.parametrize("method", ["monte_carlo", "normal"])
@pytest.mark.parametrize(
    ("sizes", "kind"),
    [
        ((12, 12), "normal"),
        ((100, 100), "skewed"),
        ((170, 30), "normal"),
        ((170, 30), "skewed"),
        ((20, 15, 10), "normal"),
        ((80, 60, 40, 20), "heavy-tailed"),
    ],
)
def test_c_asc(
    sizes: Sizes, kind: str, method: str, rng: np.random.Generator, expect: Expect
) -> None:
    p = c_asc_ps(sizes, kind, method, rng)
    expect(FIRES, f"C-ASC, {method}", named(sizes, kind), fired(p))


@pytest.mark.parametrize("sizes", [(30, 30), (50, 30, 20)])
def test_c_asc_of_tied_scores(sizes: Sizes, rng: np.random.Generator, expect: Expect) -> None:
    """Ties count as extreme, so scores on five levels may only make the test fire less."""
    p = c_asc_ps(sizes, "discrete", "monte_carlo", rng)
    expect(AT_MOST, "C-ASC, monte_carlo", named(sizes, "discrete"), fired(p))


def test_exact_weat(rng: np.random.Generator, expect: Expect) -> None:
    p = weat_ps(6, "skewed", "exact", rng)
    expect(VALID, "WEAT, exact, one-sided", "6 + 6 words, skewed", valid_at(p))


@pytest.mark.parametrize(("n_a", "n_b"), [(6, 6), (9, 4)])
def test_exact_sc_eat(n_a: int, n_b: int, rng: np.random.Generator, expect: Expect) -> None:
    p = sc_eat_ps(n_a, n_b, "normal", "exact", rng)
    expect(VALID, "SC-EAT, exact", f"{n_a} + {n_b} attributes, normal", valid_at(p))


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [((6, 6), "normal"), ((9, 3), "heavy-tailed"), ((4, 4, 4), "skewed"), ((6, 6), "discrete")],
)
def test_exact_c_asc(sizes: Sizes, kind: str, rng: np.random.Generator, expect: Expect) -> None:
    p = c_asc_ps(sizes, kind, "exact", rng)
    expect(VALID, "C-ASC, exact", named(sizes, kind), valid_at(p))
