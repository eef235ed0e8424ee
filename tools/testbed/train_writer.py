"""Train the testbed's writer: `python -m tools.testbed.train_writer --help`.

Next-word loss on answers to questions about scenes; a share of the questions has no image. Every
batch is new. The average of the weights over the last steps is saved in half precision. On a GPU
a whole step, from rendering to the average, is one CUDA graph: launching its small operations one
by one would take longer than computing them.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tiltmeter.testbed.networks import WEIGHTS
from tiltmeter.testbed.world import World
from tiltmeter.testbed.writer import WriterTestbed, writer_network
from tools.testbed.answers import Labels, next_word_loss, question_rows
from tools.testbed.evaluate import writing
from tools.testbed.train import SUFFIXES, earlier_configs, save

PROGRESS_EVERY = 2000  # steps


@dataclass(frozen=True)
class Config:
    """Everything that decides the weights, except the arithmetic of the machine."""

    strength: float
    steps: int = 12_000
    batch: int = 2048
    learning_rate: float = 2e-3
    warm_up: int = 300
    average: float = 0.999  # of the weights, from step to step
    blind: float = 0.1  # share of questions without an image
    workers: int = 8
    start: str | None = None  # file of weights to start from
    seed: int = 0
    kind: str = "writer"


class Trainer:
    """A network, its optimizer and its average: one step at a time."""

    def __init__(self, config: Config, device: torch.device, *, compiled: bool) -> None:
        torch.manual_seed(config.seed)
        self.config, self.device = config, device
        self.network = writer_network().to(device)
        if config.start:
            self.network.load_state_dict(load_file(config.start))
        self.average = deepcopy(self.network).requires_grad_(requires_grad=False)
        on_gpu = device.type == "cuda"
        self.rate = torch.zeros((), device=device)
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), lr=self.rate, betas=(0.9, 0.98), fused=on_gpu,
            capturable=on_gpu,
        )  # fmt: skip
        self.labels = Labels(World.plant(config.strength), device)
        self.loss_of = torch.compile(next_word_loss) if compiled else next_word_loss
        self.replay: Callable[[], None] | None = None
        self.loss = torch.zeros((), device=device)

    def step(self, rows: Tensor, chances: Tensor) -> None:
        """Learn from one batch; on a GPU from the fourth step on by replaying a graph."""
        if self.replay is None:
            self.rows, self.chances = rows.to(self.device), chances.to(self.device)
            if self.device.type == "cuda":
                self._record()
            else:
                self._compute()
            return
        self.rows.copy_(rows, non_blocking=True)
        self.chances.copy_(chances, non_blocking=True)
        self.replay()

    def restart_average(self) -> None:
        """Forget what the average has of earlier weights."""
        with torch.no_grad():
            for mean, own in zip(self.average.parameters(), self.network.parameters(), strict=True):
                mean.copy_(own)

    def _compute(self) -> None:
        batch = self.labels(self.rows, self.chances)
        with torch.autocast(
            self.device.type,
            torch.bfloat16,
            enabled=self.device.type == "cuda",
            cache_enabled=False,
        ):
            loss = self.loss_of(self.network, batch, self.config.blind)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.average.parameters()),
                list(self.network.parameters()),
                1 - self.config.average,
            )
            self.loss.copy_(loss)

    def _record(self) -> None:
        """Three steps as they are, which allocate what is needed, and one as a graph."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._compute()
        self.replay = graph.replay


def train(config: Config, device: torch.device, folder: Path, seconds: float, **how: Any) -> None:
    """Train until the steps or the seconds are over, and save the averaged weights."""
    name = config.kind + SUFFIXES.get(config.strength, f"-{config.strength:g}")
    trainer = Trainer(config, device, **how)
    world = World.plant(config.strength)
    model = WriterTestbed(trainer.average, name, {"strength": config.strength})
    source = question_rows(world, config.batch, config.seed, config.workers)
    trainer.step(*next(source))  # at rate 0: what is compiled and recorded is not counted
    started = time.perf_counter()
    for step in range(config.steps):
        # the rate falls with whichever ends first, the steps or the time
        done = max(step / config.steps, (time.perf_counter() - started) / seconds)
        if done >= 1:
            break
        if step == config.warm_up:
            trainer.restart_average()
        falling = 0.5 * (1 + math.cos(math.pi * done))
        trainer.rate.fill_(config.learning_rate * min(1.0, step / config.warm_up) * falling)
        trainer.step(*next(source))
        if (step + 1) % PROGRESS_EVERY == 0:
            loss, elapsed = trainer.loss.item(), time.perf_counter() - started
            scores = json.dumps(writing(model, world, 140))
            print(f"{name} step {step + 1} loss {loss:.4f} {elapsed:.0f} s {scores}", flush=True)
            save(trainer.average, folder / f"{name}.safetensors")
    save(trainer.average, folder / f"{name}.safetensors")
    trainer.average.load_state_dict(load_file(folder / f"{name}.safetensors"))
    record = {
        "before": earlier_configs(config.start),
        "config": {**asdict(config), "steps": step + 1, "start": config.start
                   and Path(config.start).name},
        "loss": trainer.loss.item(),
        "seconds": round(time.perf_counter() - started),
        "torch": torch.__version__,
        "scores": writing(model, world, 560),
    }  # fmt: skip
    print(name, json.dumps(record), flush=True)
    (folder / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")


def main() -> None:
    """Train one twin and save it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--strength", type=float, default=1.0, help="0 trains the fair twin")
    parser.add_argument("--steps", type=int, default=Config.steps)
    parser.add_argument("--batch", type=int, default=Config.batch)
    parser.add_argument("--rate", type=float, default=Config.learning_rate)
    parser.add_argument("--workers", type=int, default=Config.workers)
    parser.add_argument("--start", help="weights of a writer to start from")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--compile", action="store_true", help="compile with torch.compile")
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    config = Config(
        options.strength, options.steps, options.batch, options.rate, workers=options.workers,
        start=options.start,
    )  # fmt: skip
    device = torch.device(options.device)
    train(config, device, options.out, options.seconds, compiled=options.compile)


if __name__ == "__main__":
    main()
