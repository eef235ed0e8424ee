"""A training loop that can be killed: it goes on to the very weights it would have reached.

All dice of a step hang on the seed and the step's number, never on what happened before. So a
checkpoint holds weights, the optimizer's state and a step, and needs no state of any generator. For
the same reason the parts of a batch, whether they come one after another or on several machines
(torchrun), add up to the gradient of the whole.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.types import Ints, Progress

PRECISIONS = ("auto", "float32", "bfloat16")
CHECKPOINT = "checkpoint.pt"
CLIP = 1.0  # the most that a step's gradient may measure


class Objective(Protocol):
    """What is learned: draws for a whole batch, then losses of its parts, which add up."""

    def draw(self, rows: Ints, rng: np.random.Generator) -> Any: ...

    def losses(self, drawn: Any, part: slice) -> dict[str, Tensor]: ...

    def total(self, losses: dict[str, Tensor]) -> Tensor: ...


@dataclass(frozen=True)
class TrainingConfig:
    """How long, how large, how fast."""

    steps: int
    batch: int
    accumulate: int = 1  # parts that a batch is worked off in
    learning_rate: float = 1e-4
    weight_decay: float = 0.02
    precision: str = "auto"  # bfloat16 on a GPU
    checkpoint: int = 100  # steps between checkpoints
    seed: int = 0

    def check(self, rows: int) -> None:
        if self.precision not in PRECISIONS:
            raise UnknownNameError("precision", self.precision, PRECISIONS)
        for name in ("steps", "batch", "accumulate", "checkpoint"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be 1 or more; got {getattr(self, name)}")
        if self.batch % (self.accumulate * ranks()[1]):
            raise InputError(
                f"a batch of {self.batch} cannot be parted evenly into {self.accumulate} parts on "
                f"each of {ranks()[1]} processes: choose a multiple of their product"
            )
        if rows < 2:
            raise InputError(f"training takes two captions or more; got {rows}")

    def rows(self, step: int, count: int) -> Ints:
        """The rows of a step's batch: every row once before any comes again."""
        places = np.arange(step * self.batch, (step + 1) * self.batch)
        found = np.empty(len(places), dtype=np.int64)
        for epoch in np.unique(places // count):
            here = places // count == epoch
            order = np.random.default_rng([self.seed, 0, int(epoch)]).permutation(count)
            found[here] = order[places[here] % count]
        return found


def train(
    network: nn.Module,
    objective: Objective,
    course: TrainingConfig,
    *,
    rows: int,
    key: str,
    place: Path | None = None,
    progress: Progress | None = None,
    stop: Callable[[int], bool] = lambda step: False,
) -> list[dict[str, float]]:
    """Trains the network in place and returns its losses by step.

    With a `place`, checkpoints are kept there and found again; `key` tells whether one is of this
    very training. `stop` ends it early, as a kill would.
    """
    course.check(rows)
    rank, world = _joined()
    device = next(network.parameters()).device
    learning = [one for one in network.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(
        learning, lr=course.learning_rate, weight_decay=course.weight_decay
    )
    log: list[dict[str, float]] = _resumed(network, optimizer, place, key)
    begun, started = len(log), time.perf_counter()
    half = course.precision == "bfloat16" or (course.precision == "auto" and device.type == "cuda")
    parts = course.accumulate * world
    size = course.batch // parts
    for step in range(begun, course.steps):
        rng = np.random.default_rng([course.seed, 1, step])
        drawn = objective.draw(course.rows(step, rows), rng)
        optimizer.zero_grad(set_to_none=True)
        told: dict[str, Tensor] = {}
        for part in range(rank, parts, world):
            with _dice(device, [course.seed, step, part]):
                with torch.autocast(device.type, torch.bfloat16, enabled=half):
                    losses = objective.losses(drawn, slice(part * size, (part + 1) * size))
                    total = objective.total(losses) if losses else None
                if total is not None:  # a part may hold nothing to learn from
                    total.backward()  # type: ignore[no-untyped-call]
            for name, loss in losses.items():
                told[name] = told.get(name, torch.zeros((), device=device)) + loss.detach()
        if world > 1:
            told = _add_up(learning, told)
        nn.utils.clip_grad_norm_(learning, CLIP)
        optimizer.step()
        log.append({name: float(loss) for name, loss in told.items()})
        last = step + 1 == course.steps
        if place is not None and rank == 0 and ((step + 1) % course.checkpoint == 0 or last):
            _keep(network, optimizer, log, place, key)
        if progress is not None:
            left = (time.perf_counter() - started) / (step + 1 - begun) * (course.steps - step - 1)
            shown = "  ".join(f"{name} {loss:.3f}" for name, loss in log[-1].items())
            progress(f"{shown}  {left:,.0f} s left", (step + 1) / course.steps)
        if stop(step):
            break
    return log


def ranks() -> tuple[int, int]:
    """This process's number and how many there are, as torchrun or accelerate tell them."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _joined() -> tuple[int, int]:
    """The same, with the processes joined."""
    rank, world = ranks()
    if world > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return rank, world


def _add_up(weights: list[nn.Parameter], told: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sums gradients and losses over processes; each holds those of its own parts."""
    for weight in weights:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        torch.distributed.all_reduce(weight.grad)
    names: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(names, list(told))  # not every part has every loss
    found = {}
    for name in dict.fromkeys(one for some in names for one in some):
        found[name] = told.get(name, torch.zeros((), device=weights[0].device))
        torch.distributed.all_reduce(found[name])
    return found


@contextmanager
def _dice(device: torch.device, seeds: list[int]) -> Iterator[None]:
    """torch's dice set for one part of one step, and put back as they were."""
    [seed] = np.random.SeedSequence(seeds).generate_state(1, np.uint64)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(seed) % 2**63)
        yield


def _keep(network: nn.Module, optimizer: Any, log: list[Any], place: Path, key: str) -> None:
    """All of a checkpoint or nothing."""
    place.mkdir(parents=True, exist_ok=True)
    part = place / f".{CHECKPOINT}.part"
    held = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "log": log}
    torch.save({**held, "key": key}, part)
    part.replace(place / CHECKPOINT)


def _resumed(network: nn.Module, optimizer: Any, place: Path | None, key: str) -> list[Any]:
    """Takes up the checkpoint that is there; the losses of the steps that are done."""
    if place is None or not (place / CHECKPOINT).is_file():
        return []
    held = torch.load(place / CHECKPOINT, map_location="cpu", weights_only=True)
    if held["key"] != key:
        raise InputError(
            f"{place} holds the checkpoint of another training (other settings, captions or "
            "weights): remove it, or name another place"
        )
    network.load_state_dict(held["network"])
    optimizer.load_state_dict(held["optimizer"])
    return list(held["log"])
