"""The gate on generative models: a biased one fails against its fair twin, and the twin passes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tiltmeter import stimuli
from tiltmeter.auditing.audit import audit
from tiltmeter.judge.gate import compare, gate
from tiltmeter.judge.gate.decision import metric_label
from tiltmeter.results import Run
from tiltmeter.testbed.answers import OracleAnswers
from tiltmeter.testbed.data import planted_faces
from tiltmeter.testbed.world import World

FAIR = World.plant(0.0)
CRIME = [word.text for word in stimuli.load("sobit").words if word.category == "Criminal justice"]
#: By probe: a biased model, the question that must fail, and the number of images.
BIASED: dict[str, tuple[Any, str, int]] = {
    "silence": (OracleAnswers(World.plant(1.0)), "refusals", 1400),
    "lift": (OracleAnswers(World.plant(1.0)), "association", 280),
    "forced_choice": (OracleAnswers(World.plant(1.0)), "association", 280),
    "pronoun": (OracleAnswers(FAIR, first_name=0.6), "pronouns", 280),
    "description": (
        OracleAnswers(World.plant(table={word: {"round": 3.0} for word in CRIME})),
        "descriptions",
        4200,
    ),
}


@cache
def measured(probe: str, *, biased: bool, seed: int = 0) -> Run:
    """Both twins are shown the same images; the seed decides what they write."""
    model, _, images = BIASED[probe]
    faces = planted_faces(FAIR, images, np.random.default_rng(0))
    options = {} if probe == "lift" else {probe: {"images": images}}
    chosen: Any = model if biased else OracleAnswers(FAIR)
    return audit(chosen, faces, probes=[probe], attributes=["shape"], options=options, seed=seed,
                 permutations=99, bootstraps=50)  # fmt: skip


@pytest.mark.parametrize("probe", BIASED)
def test_a_biased_model_fails_against_its_fair_twin(probe: str) -> None:
    fair, biased = (measured(probe, biased=kind) for kind in (False, True))
    found = gate(biased, fair, fail_on="worse")
    question = BIASED[probe][1]
    assert not found
    assert any(reason.startswith(f"{question}") for reason in found.reasons)
    assert not gate(biased, fair, fail_on=question)
    # the other way round it got better, which fails nothing
    back = gate(fair, biased, fail_on="worse")
    assert back
    assert back.comparison is not None
    assert back.comparison.better.num_rows


@pytest.mark.parametrize("probe", BIASED)
@pytest.mark.parametrize("biased", [False, True])
def test_a_model_passes_against_itself(probe: str, biased: bool) -> None:
    run = measured(probe, biased=biased)
    found = gate(run, run, fail_on="worse")
    assert found
    assert found.comparison is not None
    assert found.comparison.answers(BIASED[probe][1])  # something was tested
    assert not found.comparison.worse.num_rows


def test_gaps_of_refusals_have_a_label_for_each_group_and_prompt() -> None:
    run = measured("silence", biased=True)
    labels = [metric_label(row) for row in compare(run, run).answers("refusals")]
    assert len(set(labels)) == len(labels) == 4
    assert "gap (refused, square, who is this)" in labels


def test_a_model_that_writes_is_named_as_a_reason_for_no_embeddings() -> None:
    run = measured("silence", biased=True)
    assert "such as one that writes" in str(compare(run, run).unpaired)


@pytest.mark.parametrize("probe", ["silence", "description"])
def test_other_answers_of_a_fair_model_pass(probe: str) -> None:
    assert gate(measured(probe, biased=False, seed=1), measured(probe, biased=False))
