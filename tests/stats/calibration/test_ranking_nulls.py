"""The noise floor of rankings: random rankings must stand out from it one time in twenty."""

from __future__ import annotations

import numpy as np
import pytest

from tiltmeter.metrics.ranking import max_of, ndkl, skew_of_shares, target_shares, top_counts
from tiltmeter.stats.null import draw_top_counts, ndkl_null, p_from_shared_null, top_count_p

from .conftest import Expect
from .designs import AT_MOST, DRAWS, FIRES, Sizes, blocks, fired, named

pytestmark = pytest.mark.slow

TOPS = [
    ((500, 500), 100, "normal"),
    ((120, 60, 20), 20, "heavy-tailed"),
    ((600, 360, 40), 100, "skewed"),
    ((2400, 1580, 1000, 20), 1000, "normal"),
]


@pytest.mark.parametrize(("sizes", "k", "kind"), TOPS)
def test_top_counts(
    sizes: Sizes, k: int, kind: str, rng: np.random.Generator, expect: Expect
) -> None:
    p = [
        top_count_p(top_counts(scores, groups, k=k, ties="expected"), groups.counts, k)
        for scores, groups in blocks(sizes, rng, kind=kind)
    ]
    expect(AT_MOST, "top-k counts, exact", named(sizes, f"k {k}", kind), fired(np.concatenate(p)))


@pytest.mark.parametrize(("sizes", "k", "kind"), TOPS)
def test_max_skew(
    sizes: Sizes, k: int, kind: str, rng: np.random.Generator, expect: Expect
) -> None:
    p = []
    for scores, groups in blocks(sizes, rng, kind=kind):
        seen = top_counts(scores, groups, k=k, ties="expected")
        drawn = draw_top_counts(groups.counts, k, DRAWS, rng)
        value, null = (
            max_of(skew_of_shares(counts / k, groups.shares, k=k, empty="bounded"))
            for counts in (seen, drawn)
        )
        p.append(p_from_shared_null(value, null, "greater"))
    expect(AT_MOST, "MaxSkew, draws", named(sizes, f"k {k}", kind), fired(np.concatenate(p)))


@pytest.mark.parametrize(
    ("sizes", "kind", "target"),
    [
        ((100, 100), "normal", "prior"),
        ((350, 150), "skewed", "prior"),
        ((250, 150, 80, 20), "heavy-tailed", "prior"),
        ((250, 150, 80, 20), "normal", "uniform"),
    ],
)
def test_ndkl(
    sizes: Sizes, kind: str, target: str, rng: np.random.Generator, expect: Expect
) -> None:
    p = []
    for scores, groups in blocks(sizes, rng, kind=kind):
        null = ndkl_null(groups.counts, target_shares(target, groups), DRAWS, rng)
        p.append(p_from_shared_null(ndkl(scores, groups, target=target), null, "greater"))
    design = named(sizes, f"against {target}", kind)
    expect(FIRES, "NDKL, random rankings", design, fired(np.concatenate(p)))
