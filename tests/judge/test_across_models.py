"""Several models in one run: what only they together can tell."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import tiltmeter as tm
from tiltmeter.judge.panel import panel
from tiltmeter.probes.propagation.meta_analysis import meta_analysis
from tiltmeter.probes.stereotype.across_models import compare_choices, relevance_and_bias

MODELS = ("testbed:dual", "testbed:fusion", "testbed:dual?twin=fair")


def test_rows_of_a_panel_are_what_the_functions_say() -> None:
    runs = [
        tm.audit(
            model,
            "testbed:?images=140",
            data={"triplets": "testbed:?images=60&cells=1", "lexicon": "testbed:"},
            probes=["stereotype", "propagation"],
            permutations=0,
            bootstraps=0,
        )
        for model in MODELS
    ]
    found = panel(runs)
    every = meta_analysis(runs)[None]
    [row] = found.where(probe="panel", experiment="propagation, all experiments")
    assert (row["value"], row["n"]) == (every.fisher, every.analyses)
    assert every.analyses == sum(
        row["value"] is not None for run in runs for row in run.where(metric="rho")
    )
    [trend] = found.where(metric="size_trend")
    assert trend["n"] == 3
    assert -1 <= trend["value"] <= 1
    changes = found.where(metric="vlbs_change", category=None)
    assert len(changes) == 3 + 0  # cosines of three pairs; one model alone has a matching head
    whole = compare_choices(runs[0], runs[2], "cosine")[0]
    [row] = [r for r in changes if r["experiment"].startswith("cosine, testbed:dual-fair")
             and r["experiment"].endswith("testbed:dual")]  # fmt: skip
    assert row["value"] == pytest.approx(100 * whole.test.difference)
    assert row["p"] == whole.test.p
    assert row["ci_low"] <= row["value"] <= row["ci_high"]
    [row] = found.where(metric="pearson")
    assert row["value"] == relevance_and_bias(runs, "cosine").pearson
