"""The plan to a billion: arithmetic that a hand can do, on speeds that are really measured."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.refusing import refused
from tiltmeter.cli.app import app
from tiltmeter.errors import InputError
from tiltmeter.planning import cost
from tiltmeter.planning.cost import CostStep, estimate_cost


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "VECTORS", 1500)
    monkeypatch.setattr(cost, "CAPTIONS", 500)
    monkeypatch.setattr(cost, "IMAGES", 8)


def by_job(steps: list[CostStep]) -> dict[str, CostStep]:
    return {step.job: step for step in steps}


def test_the_numbers_are_those_of_a_pocket_calculator() -> None:
    found = by_job(estimate_cost(36_000_000, workers=5, rate=1000, dimensions=256, texts=8))
    embed = found["embed"]
    assert (embed.worker_hours, embed.hours, embed.source) == (10.0, 2.0, "given")
    assert embed.read_bytes == 36e6 * 30_000
    assert embed.stored_bytes == 36e6 * (256 * 4 + 66)
    assert found["audit"].read_bytes == 36e6 * 256 * 4
    assert found["captions"].read_bytes == 36e6 * 60
    for step in found.values():
        assert step.rate > 0
        assert step.worker_hours == pytest.approx(36e6 / step.rate / 3600)
        assert step.hours == pytest.approx(step.worker_hours / 5)
    assert "measured" in found["audit"].source


def test_a_digest_does_not_grow_with_the_images() -> None:
    small, large = (by_job(estimate_cost(n, texts=8))["audit"] for n in (10**6, 10**9))
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


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"rate": 0.0}, {"rate": -3.0}])
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with refused("bad-option"):
        estimate_cost(1000, **wrong)  # type: ignore[arg-type]
    with refused("bad-option"):
        estimate_cost(0)


def test_the_command() -> None:
    asked = ["plan", "--scale", "1e6", "--rate", "500", "--workers", "2", "--words", "8"]
    told = CliRunner().invoke(app, [*asked, "--json"])
    steps = json.loads(told.stdout)
    assert [step["job"] for step in steps] == ["embed", "audit", "captions"]
    assert steps[0]["hours"] == pytest.approx(1e6 / 500 / 3600 / 2)
    shown = CliRunner().invoke(app, asked).stdout
    assert "1,000,000 on 2 workers" in shown
    assert "500 images" in shown


def test_a_plan_needs_one_of_two() -> None:
    told = CliRunner().invoke(app, ["plan"])
    assert isinstance(told.exception, InputError)
    assert "--scale" in str(told.exception)
