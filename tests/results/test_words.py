"""Which rows speak of a word as a whole: one rule for every reader."""

from __future__ import annotations

import pytest

from tiltmeter.pages.terminal import audit
from tiltmeter.results import Run, over_templates, rows

A, B = "a {}", "a photo of a {}"
PLACES = [  # concept, category, template; what stands in one template has that row alone
    ("crook", "Crime", None), ("crook", "Crime", A), ("crook", "Crime", B),
    ("crook", "Insult", A), ("nurse", "Work", A), ("lamp", "placebo", None), (None, None, None),
]  # fmt: skip


@pytest.fixture
def run() -> Run:
    concept, category, template = zip(*PLACES, strict=True)
    columns = {"concept": list(concept), "category": list(category), "template": list(template)}
    fixed = {"probe": "ranking", "metric": "c_asc", "attribute": "gender", "model": "m"}
    group = {"group": "woman", "value": 0.1, "verdict": "beyond neutral words"}
    return Run(rows(len(PLACES), **fixed, **group, **columns))


def test_single_templates_stand_aside_only_where_there_is_a_mean(run: Run) -> None:
    whole, single = (
        [(row["concept"], row["category"], row["template"]) for row in some]
        for some in over_templates(run.table.to_pylist())
    )
    assert whole == [PLACES[0], PLACES[3], PLACES[4], PLACES[6]]
    assert single == [PLACES[1], PLACES[2]]


def test_a_word_of_two_categories_is_summed_up_in_both(run: Run) -> None:
    """It has several templates in one of them, and one in the other."""
    found = audit.summary(run)["c_asc_beyond_neutral_words"]
    assert sorted(row["category"] for row in found) == ["Crime", "Insult", "Work"]
