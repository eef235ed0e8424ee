"""Power foretold from the sizes of groups is the power that audits then have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tiltmeter.stats.permutation import c_asc_test
from tiltmeter.stats.power import c_asc_power

from .conftest import Expect
from .designs import Band, Sizes, blocks, figures, fired, named, true_c_asc

pytestmark = pytest.mark.slow

WITHIN = 0.025


@pytest.mark.parametrize(
    ("sizes", "means"),
    [
        ((100, 100), (0.4, 0.0)),
        ((240, 60), (0.0, 0.35)),
        ((200, 120, 80), (0.2, 0.0, -0.1)),
    ],
)
def test_c_asc_power(
    sizes: Sizes, means: Sequence[float], rng: np.random.Generator, expect: Expect
) -> None:
    foretold = c_asc_power(true_c_asc(sizes, means), np.array(sizes))
    p = [
        c_asc_test(scores, groups, method="normal").p
        for scores, groups in blocks(sizes, rng, means=means)
    ]
    wanted = Band(foretold - WITHIN, foretold + WITHIN, f"{figures(foretold)} ± {figures(WITHIN)}")
    expect(wanted, "power of C-ASC, normal", named(sizes, means=means), fired(np.concatenate(p)))
