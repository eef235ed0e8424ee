"""The gate judges caption choice and propagation."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tiltmeter.judge.gate import compare, gate
from tiltmeter.results import Run, rows


def choosing(excess: float, half: float = 3.0, experiment: str = "matching") -> pa.Table:
    return rows(2, probe="stereotype", metric="vlbs_excess", model="m", dataset="d",
                experiment=experiment, category=[None, "gender"], value=[excess, 90.0], ideal=0.0,
                ci_low=[excess - half, 80.0], ci_high=[excess + half, 99.0], n=300)  # fmt: skip


def retrieving(value: float, metric: str, experiment: str, half: float = 0.01) -> pa.Table:
    return rows(1, probe="propagation", metric=metric, model="m", dataset="d", k=500,
                experiment=experiment, attribute="race", group="a",
                target="b" if metric == "extrinsic_difference" else None, value=[value], ideal=0.0,
                ci_low=value - half, ci_high=value + half, n=300)  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [(2.0, 30.0, "worse"), (30.0, 2.0, "better"), (-20.0, 20.0, "cannot tell")],
)
def test_a_change_of_the_excess_has_a_verdict(before: float, after: float, verdict: str) -> None:
    found = compare(Run(choosing(before)), Run(choosing(after)))
    [test] = found.answers("stereotypes")  # all categories together decide
    assert test["verdict"] == verdict
    assert "propagation" not in found.untested_questions  # it was not asked
    decision = gate(Run(choosing(after)), found, fail_on="stereotypes")
    assert decision.passed == (verdict != "worse")
    if not decision:
        assert "vlbs excess, matching 2.00 to 30.00" in decision.reasons[0]


def test_white_images_and_baselines_decide_nothing() -> None:
    white = Run(choosing(40.0, experiment="matching, white image"))
    assert compare(white, white).untested is not None
    assert "stereotypes" in compare(white, white).untested_questions
    assert not gate(white, white).passed
    shares = Run(retrieving(0.2, "extrinsic_difference", "2-b"))
    assert compare(shares, shares).untested is not None


def test_propagation_is_judged_by_what_is_bias() -> None:
    def run(valence: float, share: float) -> Run:
        return Run(pa.concat_tables([
            retrieving(valence, "extrinsic_difference", "1-a"),
            retrieving(share, "extrinsic_lean", "2-b"),
        ]))  # fmt: skip

    found = compare(run(0.01, 0.20), run(0.10, 0.02))
    assert {row["experiment"]: row["verdict"] for row in found.answers("propagation")} == {
        "1-a": "worse", "2-b": "better"
    }  # fmt: skip
    [reason] = gate(run(0.10, 0.02), found).reasons
    assert reason == (
        "propagation by race is worse: difference in valence@500, 1-a (a minus b) 0.010 to 0.100"
    )
