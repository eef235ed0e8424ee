"""The plan to a billion: arithmetic that a hand can do, on speeds that are really measured."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.refusing import refused
from tiltmeter.cli.app import app
from tiltmeter.errors import InputError
from tiltmeter.planning import cost
from tiltmeter.planning.cost import CostStep, estimate_cost, limits, total_hours


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "VECTORS", 1500)
    monkeypatch.setattr(cost, "CAPTIONS", 500)
    monkeypatch.setattr(cost, "IMAGES", 8)
    monkeypatch.setattr(cost, "LISTED", 40)


def by_job(steps: list[CostStep]) -> dict[str, CostStep]:
    return {step.job: step for step in steps}


def test_the_numbers_are_those_of_a_pocket_calculator() -> None:
    found = by_job(estimate_cost(36_000_000, workers=5, rate=1000, dimensions=256, texts=8))
    embed = found["embed"]
    assert (embed.worker_hours, embed.hours, embed.source) == (10.0, 2.0, "given")
    assert embed.read_bytes == 36e6 * 30_000
    assert embed.stored_bytes == 36e6 * (256 * 4 + 66)
    assert found["ranking"].read_bytes == 36e6 * 256 * 4
    assert found["captions"].read_bytes == 36e6 * 60
    for job in ("index", "embed", "ranking", "lift", "captions"):
        step = found[job]
        assert step.rate > 0
        assert step.worker_hours == pytest.approx(36e6 / step.rate / 3600)
        assert step.hours == pytest.approx(step.worker_hours / 5)
    # the driver lists 3,600 shards and merges 35 parts, which workers do not share
    assert found["list"].hours == pytest.approx(3600 / found["list"].rate / 3600)
    assert found["merge"].hours == pytest.approx(35 / found["merge"].rate / 3600)
    assert "measured" in found["ranking"].source


def test_a_digest_does_not_grow_with_the_images() -> None:
    small, large = (by_job(estimate_cost(n, texts=8))["ranking"] for n in (10**6, 10**9))
    assert small.stored_bytes == large.stored_bytes == 8 * 2048 * 14 * 8
    assert large.read_bytes == 1000 * small.read_bytes


def test_a_model_is_measured() -> None:
    torch = pytest.importorskip("torch")
    del torch
    from tiltmeter.models import load_model

    found = by_job(estimate_cost(1000, model=load_model("testbed:dual", device="cpu"), texts=8))
    assert "measured" in found["embed"].source
    assert found["embed"].rate > 1
    assert "embed" not in by_job(estimate_cost(1000, texts=8))


def test_embeddings_that_are_there_are_indexed_by_their_labels() -> None:
    found = by_job(estimate_cost(10**8, workers=4, dimensions=256, texts=8))
    assert found["index"].unit == "labels"
    assert found["ranking"].read_bytes == 1e8 * 256 * 2  # half precision
    assert found["merge"].worker_hours == pytest.approx(96 / found["merge"].rate / 3600)


def step(job: str, hours: float, read: float = 0.0) -> CostStep:
    return CostStep(job, "things", 1.0, "given", hours, hours, read, 0.0, "")


def test_what_fails_first_comes_first() -> None:
    """36 TB in 10 hours are 1 GB/s, 100 MB/s for each of 10 workers."""
    steps = [step("list", 0.5), step("embed", 10.0, 36e12), step("ranking", 3.0, 36e11),
             step("merge", 1.5), step("captions", 7.0, 60.0)]  # fmt: skip
    found = limits(steps, 10**9, workers=10, texts=8, bandwidth=5e7, memory=1e10)
    assert [limit.name for limit in found[:2]] == [
        "reading by a worker during embed", "time of the driver"
    ]  # fmt: skip
    assert found[0].ratio == pytest.approx(2.0)  # not enough
    assert found[1].ratio == pytest.approx(1.5 / 3.0)  # it merges while workers rank
    assert total_hours(steps) == pytest.approx(0.5 + 10.0 + 3.0)
    memory = {limit.name: limit for limit in found}["memory of the driver"]
    assert 1e8 < memory.needed < 2e9  # names and counts of 100,000 shards, and no row
    more = limits(steps, 2 * 10**9, workers=10, texts=8, memory=1e10)
    grown = {limit.name: limit for limit in more}["memory of the driver"].needed - memory.needed
    assert grown / 1000 < 5e6  # bytes per million images


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"rate": 0.0}, {"rate": -3.0}])
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with refused("bad-option"):
        estimate_cost(1000, **wrong)  # type: ignore[arg-type]
    with refused("bad-option"):
        estimate_cost(0)


def test_the_command() -> None:
    asked = ["plan", "--scale", "1e6", "--rate", "500", "--workers", "2", "--words", "8"]
    told = CliRunner().invoke(app, [*asked, "--json"])
    found = json.loads(told.stdout)
    steps = {step["job"]: step for step in found["steps"]}
    assert list(steps) == ["list", "index", "embed", "ranking", "lift", "merge", "captions"]
    assert steps["embed"]["hours"] == pytest.approx(1e6 / 500 / 3600 / 2)
    assert found["limits"][0]["ratio"] >= found["limits"][-1]["ratio"]
    shown = CliRunner().invoke(app, asked).stdout
    assert "1,000,000 images on 2 workers" in shown
    assert "500 images/s" in shown
    assert "What would fail first" in shown


def test_a_plan_needs_one_of_two() -> None:
    told = CliRunner().invoke(app, ["plan"])
    assert isinstance(told.exception, InputError)
    assert "--scale" in str(told.exception)
