"""Placebo words: one more of them must look unusual one time in twenty, whatever their spread."""

from __future__ import annotations

import numpy as np
import pytest

from tiltmeter.stats.placebo import leave_one_out, p_placebo

from .conftest import Expect
from .designs import FIRES, SCORES, SETS, fired

pytestmark = pytest.mark.slow

PLACEBOS = 200
KINDS = ["normal", "heavy-tailed", "skewed"]


@pytest.mark.parametrize("kind", KINDS)
def test_leave_one_out(kind: str, rng: np.random.Generator, expect: Expect) -> None:
    shares = [fired(leave_one_out(SCORES[kind](rng, PLACEBOS))) for _ in range(SETS)]
    expect(
        FIRES, "placebo, each against the others", f"{PLACEBOS} placebos, {kind}", np.mean(shares)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_word(kind: str, rng: np.random.Generator, expect: Expect) -> None:
    p = np.empty(SETS)
    for at in range(SETS):
        *placebos, value = SCORES[kind](rng, PLACEBOS + 1)
        p[at] = p_placebo(np.array(value), np.array(placebos))
    expect(FIRES, "placebo, a fresh word", f"{PLACEBOS} placebos, {kind}", fired(p))
