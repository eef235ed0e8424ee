"""The training loop of all methods that train: interrupted, it resumes to the very same weights.

All random numbers of a step depend on the seed and the step's number, never on what happened
before. So a checkpoint contains weights, optimizer states and a step, and no generator's state. For
the same reason the parts of a batch, processed one after another or on several machines (torchrun),
add up to the gradient of the whole.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tiltmeter.debiasers.debiaser import check_at_least, check_choice
from tiltmeter.errors import InputError
from tiltmeter.types import Ints, Progress

PRECISIONS = ("auto", "float32", "bfloat16")
CHECKPOINT = "checkpoint.pt"
CLIP = 1.0  # the largest norm of a step's gradient
SECONDS = 30.0  # a checkpoint is written at least this often


class Objective:
    """What is trained: batches, losses, and which weights learn at a step.

    Attributes
    ----------
    network : nn.Module
        All weights that change; its state is what checkpoints contain.
    """

    network: nn.Module

    def players(self) -> Mapping[str, tuple[list[nn.Parameter], float | None]]:
        """Return the weights that learn together, by name, each with a learning rate.

        None is that of the configuration. By default one player with all trainable weights.
        """
        return {"model": ([w for w in self.network.parameters() if w.requires_grad], None)}

    def player(self, step: int) -> str:
        """Return whose turn a step is."""
        del step
        return "model"

    def draw(self, step: int, rng: np.random.Generator) -> Any:
        """Draw the whole batch of a step."""
        raise NotImplementedError

    def losses(self, batch: Any, part: slice) -> dict[str, Tensor]:
        """Return the losses of a part of a batch; those of all parts add up to the batch's."""
        raise NotImplementedError

    def total(self, losses: dict[str, Tensor]) -> Tensor:
        """Return the loss to minimise."""
        raise NotImplementedError

    def end_step(self, step: int, log: list[dict[str, Any]]) -> bool:
        """Do what follows a step, such as a validation; return whether to stop early."""
        del step, log
        return False

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs besides weights and log."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        del state


@dataclass(frozen=True)
class TrainingConfig:
    """Length, batch size, rates and precision of a training.

    Parameters
    ----------
    steps, batch
        Number of steps, and rows per step.
    accumulate
        Parts that a batch is processed in, on each process.
    learning_rate, weight_decay
        Of AdamW.
    precision
        `float32`, `bfloat16`, or `auto`: bfloat16 on a GPU.
    checkpoint
        Most steps between checkpoints; one is also written every half minute.
    seed
        Seed of all random numbers.
    clip
        Largest norm of a step's gradient; None: no limit.
    distributed
        Whether processes share a batch. If not, each does the same work.
    """

    steps: int
    batch: int
    accumulate: int = 1
    learning_rate: float = 1e-4
    weight_decay: float = 0.02
    precision: str = "auto"
    checkpoint: int = 100
    seed: int = 0
    clip: float | None = CLIP
    distributed: bool = True

    def check(self) -> None:
        """Raise InputError for a value out of range."""
        check_choice("precision", self.precision, PRECISIONS)
        check_at_least(
            1, steps=self.steps, batch=self.batch, accumulate=self.accumulate,
            checkpoint=self.checkpoint,
        )  # fmt: skip
        world = process()[1] if self.distributed else 1
        if self.batch % (self.accumulate * world):
            raise InputError(
                f"a batch of {self.batch} cannot be divided into {self.accumulate} equal parts on "
                f"each of {world} processes: use a multiple of their product"
            )


def rows_of_step(step: int, batch: int, count: int, seed: int) -> Ints:
    """Return the rows of a step's batch: every row once before any is repeated.

    Parameters
    ----------
    step, batch
        Number of the step, and its number of rows.
    count
        Rows to draw from.
    seed
        Seed of the order.

    Examples
    --------
    >>> sorted(int(row) for step in range(2) for row in rows_of_step(step, 2, 4, seed=0))
    [0, 1, 2, 3]
    """
    places = np.arange(step * batch, (step + 1) * batch)
    rows = np.empty(len(places), dtype=np.int64)
    for epoch in np.unique(places // count):
        here = places // count == epoch
        order = np.random.default_rng([seed, 0, int(epoch)]).permutation(count)
        rows[here] = order[places[here] % count]
    return rows


def train(
    objective: Objective,
    config: TrainingConfig,
    *,
    key: str,
    checkpoints: Path | None = None,
    progress: Progress | None = None,
    stop: Callable[[int], bool] = lambda step: False,
) -> list[dict[str, float]]:
    """Train the objective's network in place and return its losses by step.

    Parameters
    ----------
    objective
        What is trained.
    config
        How long and how fast.
    key
        Identifies this training: a checkpoint of another one is refused.
    checkpoints
        Directory of the checkpoint; None: none is written.
    progress
        Called with losses and time left, and the share that is done.
    stop
        Ends it after a step, as an interruption would.

    Raises
    ------
    InputError
        For a configuration out of range, or a checkpoint of another training.
    """
    config.check()
    rank, world = _join_processes() if config.distributed else (0, 1)
    device = next(objective.network.parameters()).device
    players = objective.players()
    optimizers = {
        name: _optimizer(weights, rate, config, device) for name, (weights, rate) in players.items()
    }
    state = _State(objective, optimizers, key, checkpoints if process()[0] == 0 else None)
    finished = state.resume(checkpoints)
    first, started = len(state.log), time.perf_counter()
    every = max(1, config.steps // 200)  # reading losses makes the GPU wait
    saved = started
    for step in range(config.steps if finished else first, config.steps):
        weights, _ = players[objective.player(step)]
        optimizer = optimizers[objective.player(step)]
        optimizer.zero_grad(set_to_none=True)
        losses = _backward(objective, config, step, rank, world, device)
        if world > 1:
            losses = _reduce(weights, losses)
        if config.clip is not None:
            nn.utils.clip_grad_norm_(weights, config.clip)
        optimizer.step()
        state.log.append(losses)
        finished = objective.end_step(step, state.log) or step + 1 == config.steps
        due = time.perf_counter() - saved > SECONDS
        if finished or due or (step + 1) % config.checkpoint == 0:
            state.save(finished)
            saved = time.perf_counter()
        if progress is not None and (finished or (step + 1) % every == 0):
            left = (time.perf_counter() - started) / (step + 1 - first) * (config.steps - step - 1)
            shown = "  ".join(f"{name} {float(loss):.3f}" for name, loss in losses.items())
            progress(f"{shown}  {left:,.0f} s left", (step + 1) / config.steps)
        if finished or stop(step):
            break
    return state.floats()


def _optimizer(
    weights: list[nn.Parameter], rate: float | None, config: TrainingConfig, device: torch.device
) -> torch.optim.AdamW:
    # on a GPU one kernel instead of many, which matters where few weights learn
    fused: dict[str, Any] = {"fused": True} if device.type == "cuda" else {}
    lr = config.learning_rate if rate is None else rate
    return torch.optim.AdamW(weights, lr=lr, weight_decay=config.weight_decay, **fused)


def _backward(
    objective: Objective,
    config: TrainingConfig,
    step: int,
    rank: int,
    world: int,
    device: torch.device,
) -> dict[str, Tensor]:
    """Add up gradients and losses of this process's parts of a step's batch."""
    half = config.precision == "bfloat16" or (config.precision == "auto" and device.type == "cuda")
    parts = config.accumulate * world
    size = config.batch // parts
    batch = objective.draw(step, np.random.default_rng([config.seed, 1, step]))
    losses: dict[str, Tensor] = {}
    for part in range(rank, parts, world):
        with _seeded(device, [config.seed, step, part]):
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                of_part = objective.losses(batch, slice(part * size, (part + 1) * size))
                total = objective.total(of_part) if of_part else None
            if total is not None:  # a part may have nothing to learn from
                total.backward()  # type: ignore[no-untyped-call]
        for name, loss in of_part.items():
            losses[name] = losses.get(name, torch.zeros((), device=device)) + loss.detach()
    return losses


@dataclass
class _State:
    """The log, and the checkpoint that weights, optimizers and log are written to."""

    objective: Objective
    optimizers: dict[str, torch.optim.AdamW]
    key: str
    directory: Path | None

    def __post_init__(self) -> None:
        self.log: list[dict[str, Any]] = []

    def floats(self) -> list[dict[str, float]]:
        self.log = [{name: float(loss) for name, loss in losses.items()} for losses in self.log]
        return self.log

    def save(self, finished: bool) -> None:
        """Write all of a checkpoint or nothing."""
        if self.directory is None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        part = self.directory / f".{CHECKPOINT}.part"
        saved = {
            "key": self.key,
            "network": self.objective.network.state_dict(),
            "optimizers": {name: one.state_dict() for name, one in self.optimizers.items()},
            "objective": self.objective.state(),
            "log": self.floats(),
            "finished": finished,
        }
        torch.save(saved, part)
        part.replace(self.directory / CHECKPOINT)

    def resume(self, directory: Path | None) -> bool:
        """Take up the checkpoint, if there is one; return whether that training was finished."""
        if directory is None or not (directory / CHECKPOINT).is_file():
            return False
        saved = torch.load(directory / CHECKPOINT, map_location="cpu", weights_only=True)
        if saved["key"] != self.key:
            raise InputError(
                f"{directory} contains the checkpoint of another training (other settings, data or "
                "weights): remove it, or use another directory"
            )
        self.objective.network.load_state_dict(saved["network"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(saved["optimizers"][name])
        self.objective.restore(saved["objective"])
        self.log = list(saved["log"])
        return bool(saved["finished"])


def process() -> tuple[int, int]:
    """Return this process's number and how many there are, as torchrun or accelerate set them."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _join_processes() -> tuple[int, int]:
    rank, world = process()
    if world > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return rank, world


def _reduce(weights: list[nn.Parameter], losses: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sum gradients and losses over processes; each has those of its own parts."""
    for weight in weights:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        torch.distributed.all_reduce(weight.grad)
    names: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(names, list(losses))  # not every part has every loss
    reduced = {}
    for name in dict.fromkeys(name for of_process in names for name in of_process):
        reduced[name] = losses.get(name, torch.zeros((), device=weights[0].device))
        torch.distributed.all_reduce(reduced[name])
    return reduced


@contextmanager
def _seeded(device: torch.device, seeds: list[int]) -> Iterator[None]:
    """Seed torch's generators for one part of one step, and restore them afterwards."""
    [seed] = np.random.SeedSequence(seeds).generate_state(1, np.uint64)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(seed) % 2**63)
        yield
