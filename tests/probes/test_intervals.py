"""Contract: an interval holds the value that it belongs to, in every row of every probe."""

from __future__ import annotations

from typing import Any

import pytest

import tiltmeter as tm

torch = pytest.importorskip("torch")

ATTACK = {"source": "adversarial", "curve": "0", "steps": 5, "images": 16,
          "templates": "The {g} is [MASK]"}  # fmt: skip
QUICK: dict[str, dict[str, Any]] = {
    "words": {"model": "testbed:dual", "faces": "testbed:?images=280", "k": [20],
              "probes": ["ranking", "harms"], "words": "activities"},
    "words, fair": {"model": "testbed:dual?twin=fair", "faces": "testbed:?images=56", "k": [10],
                    "probes": ["ranking", "harms"], "words": "occupations"},
    "propagation": {"model": "testbed:dual", "faces": "testbed:?images=56",
                    "data": dict.fromkeys(("valence", "lexicon"), "testbed:"),
                    "probes": ["propagation"]},
    "stereotype": {"model": "testbed:fusion", "data": {"triplets": "testbed:triplets?images=48"},
                   "probes": ["stereotype"]},
    "attacked": {"model": "testbed:stream", "faces": "testbed:?images=28",
                 "probes": ["counterfactual"], "options": {"counterfactual": ATTACK}},
    "attacked, fair": {"model": "testbed:stream?twin=fair", "faces": "testbed:?images=28",
                       "probes": ["counterfactual"], "options": {"counterfactual": ATTACK}},
}  # fmt: skip


@pytest.mark.parametrize("case", QUICK)
def test_an_interval_holds_its_value(case):
    run = tm.audit(**QUICK[case], permutations=49, bootstraps=100)
    told = [row for row in run.table.to_pylist() if row["value"] is not None]
    edged = [row for row in told if row["ci_low"] is not None]
    assert edged
    beside = [
        {name: row[name] for name in ("metric", "experiment", "attribute", "group", "target",
                                      "category", "value", "ci_low", "ci_high", "n")}
        for row in edged
        if not row["ci_low"] - 1e-9 <= row["value"] <= row["ci_high"] + 1e-9
    ]  # fmt: skip
    assert not beside, beside[:5]
