"""A correction is seen by every engine alike, for every debiaser there is."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import tiltmeter as tm
from tests.debiasers.engines import (
    NAMES,
    OTHERS,
    by_key,
    check_same,
    fitted,
    measured,
    supplied,
    uncorrected,
)
from tiltmeter.debiasers.debiased import Debiased
from tiltmeter.debiasers.fitting import debias
from tiltmeter.errors import InputError
from tiltmeter.types import Faces


@pytest.fixture(scope="module", params=NAMES)
def made(request: pytest.FixtureRequest) -> tuple[Any, Faces, Faces]:
    return fitted(request.param)


def test_whole_and_by_parts_are_the_same(made: tuple[Any, Faces, Faces]) -> None:
    model, seen, others = made
    whole, parts = (measured(model, others, engine) for engine in ("local", "parts:size=60"))
    check_same(whole, parts)
    if isinstance(model, Debiased) and "labels" in model.debiaser.needs:
        for engine in ("local", "parts"):
            with pytest.raises(InputError, match="fitted on"):
                measured(model, seen, engine)


def test_there_was_something_to_correct() -> None:
    """Otherwise the test above would pass on engines that correct nothing."""
    plain = uncorrected("testbed:dual")
    faces = supplied(plain, OTHERS)
    before = by_key(measured(plain, faces, "parts:size=60"))
    for name, metric in (("leace", "c_asc"), ("pbm", "max_skew")):
        fitted_on = supplied(plain, "testbed:?images=280&seed=3")
        fair = debias(name, plain, fitted_on, attribute="shape")
        run = measured(fair, faces, "parts:size=60")
        assert measured(fair, faces, "parts:size=60").table.equals(run.table)  # same seed
        after = by_key(run)
        group = "round" if metric == "c_asc" else None
        key = (metric, "shape", group, "nurse", "work", "a photo of a {}",
               None if metric == "c_asc" else 20)  # fmt: skip
        assert abs(before[key]["value"]) > 0.2
        assert abs(after[key]["value"]) < 0.25 * abs(before[key]["value"]), name


def test_what_needs_all_embeddings_is_refused_by_name() -> None:
    model = uncorrected("testbed:dual")
    made = debias("mpr", model, supplied(model, "testbed:?images=280&seed=3"), attribute="shape",
                  settings={"features": "vectors"})  # fmt: skip
    with pytest.raises(InputError, match="mpr .* --engine local"):
        measured(made, supplied(model, OTHERS), "parts")


def test_a_probe_that_does_not_run_by_parts_is_refused_before_any_work() -> None:
    with pytest.raises(InputError, match="eat does not run by parts"):
        tm.audit("hf:nowhere", "fairface:nowhere", probes=["ranking", "eat"], engine="parts")
    model = uncorrected("testbed:dual")  # has few words of its own
    run = tm.audit(model, supplied(model, OTHERS), k=[5], engine="parts",
                   permutations=0, bootstraps=0)  # fmt: skip
    assert "does not run by parts" in run.meta["not_run"]["eat"]
