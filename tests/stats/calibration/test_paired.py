"""Before and after: a change found where there is none, an equivalence claimed where it ends."""

from __future__ import annotations

import numpy as np
import pytest

from tiltmeter.stats.paired import paired_test, tost

from .conftest import Expect
from .designs import AT_MOST, DRAWS, FIRES, SCORES, SETS, fired

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("items", "kind"), [(15, "normal"), (50, "heavy-tailed"), (50, "skewed"), (200, "normal")]
)
def test_sign_flips(items: int, kind: str, rng: np.random.Generator, expect: Expect) -> None:
    """Before and after alike, items unlike each other."""
    p = np.empty(SETS)
    for at in range(SETS):
        item = rng.normal(size=items)
        before, after = item + SCORES[kind](rng, (2, items))
        p[at] = paired_test(before, after, rng=rng, draws=DRAWS).p
    expect(FIRES, "paired sign-flip test", f"{items} items, {kind}", fired(p))


@pytest.mark.parametrize(
    ("items", "kind", "margin"),
    [(20, "normal", 0.3), (20, "normal", 1.0), (100, "heavy-tailed", 0.5)],
)
def test_tost_at_the_margin(
    items: int, kind: str, margin: float, rng: np.random.Generator, expect: Expect
) -> None:
    """The true change is just the margin, so every claim of equivalence is false."""
    p = np.empty(SETS)
    for at in range(SETS):
        before, after = SCORES[kind](rng, (2, items))
        p[at] = tost(before, after + margin, margin=margin).p
    expect(AT_MOST, "TOST at the margin", f"{items} items, margin {margin}, {kind}", fired(p))
