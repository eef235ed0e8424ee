"""The default audit: every probe on the built-in world, and the truth beside what it measured."""

from __future__ import annotations

import pytest

import tiltmeter as tm
from tiltmeter.auditing.builtin import QUICK, THOROUGH, built_in_data
from tiltmeter.auditing.options import AuditOptions
from tiltmeter.pages.planted import planted_table
from tiltmeter.testbed.world import World

PROBES = ["lift", "ranking", "harms", "eat", "stereotype", "propagation", "counterfactual",
          "zero_shot", "retrieval"]  # fmt: skip


def test_every_role_can_be_loaded_and_the_full_sizes_are_larger() -> None:
    for role, spec in built_in_data(World.plant(0.0), QUICK).items():
        assert len(tm.load_data(spec, role=role)) > 0
    assert all(THOROUGH.images[role] >= size for role, size in QUICK.images.items())
    assert AuditOptions.of(permutations=None).given == frozenset()


@pytest.mark.parametrize(("twin", "strength"), [("biased", 1), ("fair", 0)])
def test_utility_is_that_of_a_perfect_model(twin: str, strength: int) -> None:
    """The trained model knows its world nearly as well as can be known."""
    images = f"testbed:?images=300&strength={strength}"
    run = tm.audit(f"testbed:dual?twin={twin}", probes=["zero_shot", "retrieval"],
                   data={"utility": images, "captions": images})  # fmt: skip
    for row in run.where(metric="accuracy", target=None) + run.where(metric="recall"):
        assert row["value"] == pytest.approx(row["truth"], abs=0.06)
        assert row["truth"] > 3 * row["null_mean"]


@pytest.mark.parametrize(("model", "images", "planted"), [
    ("testbed:dual", "testbed:?images=140", True),
    ("testbed:dual?twin=fair", "testbed:?images=140", False),
    ("testbed:dual?twin=fair", "testbed:?images=140&strength=1", True),
])  # fmt: skip
def test_what_is_planted_for_named_images_is_what_the_model_learned(
    model: str, images: str, planted: bool
) -> None:
    run = tm.audit(model, images, probes=["lift"], words="sobit", attributes=["shape"],
                   bootstraps=0, options={"lift": {"splits": 2}})  # fmt: skip
    truths = [row["truth"] for row in run.where(metric="lift") if row["truth"] is not None]
    assert (max(map(abs, truths)) > 0) == planted


@pytest.mark.slow
@pytest.mark.parametrize("twin", ["biased", "fair"])
def test_the_default_audit_runs_the_whole_mission(twin: str) -> None:
    run = tm.audit(f"testbed:fusion?twin={twin}")
    assert {*PROBES} <= {*run.table["probe"].to_pylist()}
    assert {row["verdict"] for row in run.where(metric="lift_size")} == (
        {"clear"} if twin == "biased" else {"none found"}
    )
    table = planted_table(run)
    assert table is not None
    assert [row["probe"] for row in table.rows] == PROBES
