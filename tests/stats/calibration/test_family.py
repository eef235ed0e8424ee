"""maxT: over a whole family of words, any false alarm at all in at most one audit of twenty."""

from __future__ import annotations

import numpy as np
import pytest

from tiltmeter.stats import kernels
from tiltmeter.stats.multiplicity import standardised_max_t
from tiltmeter.stats.null import p_from_null_draws

from .conftest import Expect
from .designs import AT_MOST, LEVEL, SCORES, SETS, Band, Sizes, dealt, named, relabellings

pytestmark = pytest.mark.slow

WORDS = 40
AUDITS = 20  # that share labels and relabellings
#: The second figure is the same audits' without maxT: the first could have been as large.
CORRECTED = Band([0.0, 0.2], [AT_MOST.high, 1.0], "at most .062; without maxT above .200")


def alarms(
    sizes: Sizes, correlation: float, kind: str, draws: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Share of audits with any word called: after maxT as audits do it, and by p alone."""
    corrected = alone = 0
    for _ in range(SETS // AUDITS):
        groups = dealt(sizes, rng)
        common = SCORES[kind](rng, (AUDITS, 1, len(groups)))  # what all words see in an image
        own = SCORES[kind](rng, (AUDITS, WORDS, len(groups)))
        scores = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
        z = kernels.standardized(scores.reshape(AUDITS * WORDS, -1))
        codes = np.concatenate([groups.codes[None], relabellings(groups, draws, rng)])
        sums = kernels.relabelled_sums(z, codes, len(sizes))
        values = kernels.c_asc_of_sums(sums, groups.counts)  # draws x words of all audits x groups
        for audit in np.split(values, AUDITS, axis=1):
            seen, drawn = audit[0], audit[1:]
            corrected += standardised_max_t(seen, drawn, "two").min() <= LEVEL
            alone += p_from_null_draws(seen, drawn).min() <= LEVEL
    return corrected / SETS, alone / SETS


@pytest.mark.parametrize(
    ("sizes", "correlation", "kind", "draws"),
    [
        ((30, 30), 0.0, "normal", 999),
        ((30, 20, 10), 0.0, "normal", 999),
        ((30, 20, 10), 0.5, "heavy-tailed", 999),
        ((30, 20, 10), 0.9, "skewed", 999),
        ((30, 20, 10), 0.0, "normal", 199),
    ],
)
def test_max_t(
    sizes: Sizes,
    correlation: float,
    kind: str,
    draws: int,
    rng: np.random.Generator,
    expect: Expect,
) -> None:
    """Words as alike as an image makes them, in thorough audits and in a quick one."""
    design = named(sizes, f"r {correlation}", kind, f"{draws} draws")
    expect(
        CORRECTED,
        f"maxT, any of {WORDS} words",
        design,
        alarms(sizes, correlation, kind, draws, rng),
    )
