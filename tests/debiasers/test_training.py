"""The training loop: killed and taken up, in parts and whole, it reaches the same weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.conftest import ROOT  # noqa: E402
from tiltmeter.debiasers.training_loop import (  # noqa: E402
    CHECKPOINT,
    Objective,
    TrainingConfig,
    rows_of_step,
    train,
)
from tiltmeter.errors import InputError, UnknownNameError  # noqa: E402

torch.set_num_threads(1)
X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))


class Regression(Objective):
    """Least squares with noise on its input, by torch's generator and by NumPy's."""

    def __init__(self, network: nn.Module, noise: float = 0.1) -> None:
        self.network, self.noise = network, noise

    def draw(self, step, rng):
        rows = rows_of_step(step, 16, 40, seed=0)
        return rows, rng.normal(size=(len(rows), 6)).astype(np.float32)

    def losses(self, drawn, part):
        rows, noise = drawn[0][part], torch.as_tensor(drawn[1][part])
        x = X[rows] + self.noise * noise
        jitter = self.noise * torch.randn(len(x), 1)
        away = (self.network(x)[:, 0] - x.sum(dim=1) + jitter[:, 0]) ** 2
        found = {"away": away.sum() / len(drawn[0])}
        if part.start == 0:  # not every part has every loss
            found["bias"] = (self.network[0].bias ** 2).sum()
        return found

    def total(self, losses):
        return torch.stack(list(losses.values())).sum()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def trained(config: TrainingConfig, noise: float = 0.1, **options):
    net = network()
    log = train(Regression(net, noise), config, key="k", **options)
    return torch.cat([one.detach().ravel() for one in net.parameters()]), log


CONFIG = TrainingConfig(steps=30, batch=16, learning_rate=1e-2, checkpoint=4, precision="float32")


def test_it_learns() -> None:
    _, log = trained(CONFIG)
    assert log[-1]["away"] < log[0]["away"] / 2


@pytest.mark.parametrize("killed_at", [0, 5, 17])
def test_a_killed_run_reaches_the_same_weights(tmp_path: Path, killed_at: int) -> None:
    whole, log = trained(CONFIG)
    _, begun = trained(CONFIG, checkpoints=tmp_path, stop=lambda step: step == killed_at)
    assert len(begun) == killed_at + 1
    torch.rand(7)  # somebody else rolls the dice in between
    again, log_again = trained(CONFIG, checkpoints=tmp_path)
    assert torch.equal(whole, again)
    assert log == log_again
    # it did go on from the checkpoint: a finished one leaves nothing to do
    assert torch.equal(trained(CONFIG, checkpoints=tmp_path, stop=lambda step: 1 / 0)[0], whole)


def test_a_checkpoint_is_written_by_the_clock_too(tmp_path: Path, monkeypatch) -> None:
    """Few slow steps: all would be lost by a kill if only every 500th were kept."""
    slow = TrainingConfig(steps=30, batch=16, learning_rate=1e-2, checkpoint=500,
                          precision="float32")  # fmt: skip
    trained(slow, checkpoints=tmp_path / "quick", stop=lambda step: step == 9)
    assert not (tmp_path / "quick" / CHECKPOINT).is_file()
    monkeypatch.setattr("tiltmeter.debiasers.training_loop.SECONDS", 0.0)
    trained(slow, checkpoints=tmp_path / "slow", stop=lambda step: step == 9)
    assert len(torch.load(tmp_path / "slow" / CHECKPOINT)["log"]) == 10
    assert torch.equal(trained(slow, checkpoints=tmp_path / "slow")[0], trained(slow)[0])


def test_the_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    trained(CONFIG, checkpoints=tmp_path, stop=lambda step: step == 5)
    with pytest.raises(InputError, match="another training"):
        train(Regression(network()), CONFIG, key="other", checkpoints=tmp_path)
    assert (tmp_path / CHECKPOINT).is_file()


@pytest.mark.parametrize("parts", [2, 4])
def test_parts_add_up_to_the_whole_batch(parts: int) -> None:
    whole, _ = trained(CONFIG, noise=0.0)
    config = TrainingConfig(30, 16, parts, 1e-2, checkpoint=4, precision="float32")
    assert (trained(config, noise=0.0)[0] - whole).abs().max() < 1e-4


def test_every_row_comes_once_before_any_comes_again() -> None:
    seen = np.concatenate([rows_of_step(step, 16, 40, seed=3) for step in range(5)])  # two epochs
    assert sorted(seen[:40]) == sorted(seen[40:]) == list(range(40))
    assert list(seen[:40]) != list(seen[40:])
    assert np.array_equal(rows_of_step(3, 16, 40, seed=3), seen[48:64])
    assert len(rows_of_step(0, 16, 5, seed=3)) == 16  # more than there are


def test_seeds_differ() -> None:
    other = TrainingConfig(30, 16, 1, 1e-2, checkpoint=4, precision="float32", seed=1)
    assert not torch.equal(trained(CONFIG)[0], trained(other)[0])
    assert torch.equal(trained(CONFIG)[0], trained(CONFIG)[0])


def test_what_it_refuses() -> None:
    with pytest.raises(InputError, match="cannot be divided into 3"):
        trained(TrainingConfig(steps=1, batch=16, accumulate=3))
    with pytest.raises(InputError, match="steps must be 1 or more"):
        trained(TrainingConfig(steps=0, batch=16))
    with pytest.raises(UnknownNameError, match="bfloat16"):
        trained(TrainingConfig(steps=1, batch=16, precision="float16"))


def test_progress_tells_losses_and_time_left() -> None:
    told = []
    trained(CONFIG, progress=lambda what, share: told.append((what, share)))
    assert len(told) == 30
    assert told[-1][1] == 1.0
    assert told[-1][0].startswith("away ")
    assert "s left" in told[0][0]


WORKER = """
import os, sys, torch
from tests.debiasers.test_training import CONFIG, trained
weights, log = trained(CONFIG, noise=0.0)
torch.save(weights, f"{sys.argv[1]}/{os.environ['RANK']}.pt")
"""


@pytest.mark.slow
def test_two_processes_reach_what_one_does(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         str(tmp_path / "worker.py"), str(tmp_path)],
        check=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
    )  # fmt: skip
    whole, log = trained(CONFIG, noise=0.0)
    assert set(log[0]) == {"away", "bias"}
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert torch.equal(first, second)
    assert (first - whole).abs().max() < 1e-4
