"""Trains the testbed's models on the planted world: `python -m tiltmeter.testbed.train --help`.

Contrastive, matching and masked-word losses, each of which is least where the model knows the
world's probabilities. Batches are made on the spot, so nothing is seen twice. The average of the
weights over the last steps is kept, in half precision, with its configuration and scores beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tiltmeter.testbed.captions import KINDS, CaptionWriter
from tiltmeter.testbed.evaluate import evaluate, glance
from tiltmeter.testbed.expected import TargetPosterior
from tiltmeter.testbed.language import WORDS, vocabulary
from tiltmeter.testbed.losses import Batch, losses
from tiltmeter.testbed.models import MODELS
from tiltmeter.testbed.networks import NETWORKS, WEIGHTS, Stream
from tiltmeter.testbed.render import CELLS, Scenes, render
from tiltmeter.testbed.world import NO_ICON, World
from tiltmeter.types import Ints

WORKERS = 2  # processes that draw scenes; part of what decides the batches
FEW = 3  # cells of an icon: enough to guess, too few to know
GLANCE = 1000  # steps from one line of progress to the next


@dataclass(frozen=True)
class Config:
    """All that decides what comes out, but for the arithmetic of the machine."""

    kind: str
    strength: float
    steps: int = 8000
    batch: int = 2048
    learning_rate: float = 2e-3
    warm_up: int = 300
    average: float = 0.999  # of the weights, from step to step
    blind: float = 0.15  # share of masked captions shown without their picture
    start: str | None = None  # file of weights to start from
    part: str = "all"  # what is taken of it: all, or the image tower, which knows no words
    seed: int = 0


class SceneStream(IterableDataset[Tensor]):
    """Endless new scenes and captions; each worker process draws from a generator of its own.

    A scene and its caption are one row of whole numbers: one array a batch travels fast.
    """

    def __init__(self, world: World, batch: int, seed: int) -> None:
        self.world, self.batch, self.seed = world, batch, seed

    def __iter__(self) -> Iterator[Tensor]:
        torch.set_num_threads(1)
        worker = get_worker_info()
        rng = np.random.default_rng([self.seed, worker.id if worker else 0])
        world, speaker = self.world, CaptionWriter(self.world)
        while True:
            concept = world.draw_concepts(self.batch, rng)
            group = world.draw_groups(concept, rng)
            word = world.draw_words(concept, group, rng)
            scenes = world.scenes(
                self.batch, rng, concept=concept, group=group, cells=some_cells(self.batch, rng)
            )
            said = speaker.say(concept, word, rng)
            name = np.where(said.kind == KINDS.index("both"), said.name, -1)
            parts = [x.reshape(self.batch, -1) for x in (*vars(scenes).values(), name)]
            yield torch.as_tensor(np.concatenate([*parts, said.tokens, said.masked], axis=1))


def some_cells(n: int, rng: np.random.Generator) -> Ints:
    """How much of each icon to draw: the world's own way, but more often 1 to FEW.

    That is where a posterior is hardest to learn; how often a case occurs does not change it.
    """
    none, few = rng.uniform(size=(2, n))
    many = 1 + (CELLS**2 * rng.uniform(size=n) ** 2).astype(int)
    return np.where(none < NO_ICON, 0, np.where(few < 0.5, rng.integers(1, FEW + 1, n), many))


def batches(
    world: World, config: Config, device: torch.device, paint: Callable[[Scenes], Tensor] = render
) -> Iterator[Batch]:
    """Scenes drawn up by worker processes, whose turns are fixed, and painted on the device."""
    source = DataLoader(
        SceneStream(world, config.batch, config.seed),
        batch_size=None,
        num_workers=WORKERS,
        prefetch_factor=4,
        pin_memory=device.type == "cuda",
    )
    one = vars(world.scenes(1, np.random.default_rng(0)))
    widths = [x.size for x in one.values()]
    expected = TargetPosterior(world, device)
    for rows in source:
        *parts, name, tokens, masked = rows.to(device, non_blocking=True).split(
            [*widths, 1, WORDS, WORDS], dim=1
        )
        shaped = {k: x if one[k].ndim > 1 else x[:, 0] for k, x in zip(one, parts, strict=True)}
        scenes = Scenes(**shaped)
        pictures = paint(scenes).permute(0, 3, 1, 2).float() / 255
        yield Batch(
            pictures.contiguous(),
            tokens.contiguous(),
            masked.contiguous(),
            expected(scenes, name[:, 0]),
        )


def train(config: Config, device: torch.device, place: Path, *, compiled: bool = False) -> None:
    """Trains a network and saves its averaged weights; at every line of progress as well."""
    torch.manual_seed(config.seed)
    name = config.kind if config.strength else f"{config.kind}-fair"
    network = NETWORKS[config.kind](len(vocabulary())).to(device)
    if config.start:
        take(network, Path(config.start), config.part)
    average = torch.optim.swa_utils.AveragedModel(
        network,
        multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(config.average),  # type: ignore[no-untyped-call]
    )
    optimizer = torch.optim.Adam(
        network.parameters(), betas=(0.9, 0.98), fused=device.type == "cuda"
    )
    measure, paint = losses, render
    if compiled:
        measure = torch.compile(losses, mode="reduce-overhead")
        paint = torch.compile(render)
    world, model = World.plant(config.strength), MODELS[config.kind](average.module, name, {})
    source = batches(world, config, device, paint)
    started = time.perf_counter()
    for step in range(config.steps):
        fading = 0.5 * (1 + math.cos(math.pi * step / config.steps))
        rate = min(1.0, step / config.warm_up) * fading
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * rate
        batch = next(source)
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            found = measure(network, batch, config.blind)
            loss = torch.stack(list(found.values())).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(network)
        if (step + 1) % GLANCE == 0 or step + 1 == config.steps:
            told = "  ".join(f"{name} {value.item():.3f}" for name, value in found.items())
            told += "  " + glance(model, world)
            clock = time.perf_counter() - started
            print(
                f"{config.kind} {config.strength:g}  step {step + 1}  {told}  {clock:.0f} s",
                flush=True,
            )
            save(average.module, place / f"{name}.safetensors")
    weights = load_file(place / f"{name}.safetensors")
    average.module.load_state_dict(weights)  # what is scored is what is kept, rounded to half
    record = {
        "before": before(config.start),
        "config": {**asdict(config), "start": config.start and Path(config.start).name},
        "seconds": round(time.perf_counter() - started),
        "torch": torch.__version__,
        "scores": evaluate(model, config.strength),
    }
    (place / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")


def before(start: str | None) -> list[dict[str, Any]]:
    """The trainings that weights to start from have behind them, as the file beside them tells."""
    told = Path(start).with_suffix(".json") if start else None
    if told is None or not told.is_file():
        return []
    record = json.loads(told.read_text(encoding="utf-8"))
    return [*record.get("before", []), record["config"]]


def take(network: nn.Module, path: Path, part: str = "all") -> None:
    """Starts from the weights of another network, where the two have parts in common.

    As ALBEF starts from a trained image tower and text tower, and ViLT from an image tower.
    """
    given = load_file(path)
    if part == "image":
        given = {name: x for name, x in given.items() if name.startswith(("patches.", "image"))}
    if isinstance(network, Stream):
        given = {re.sub(r"^image\.", "layers.", name): x for name, x in given.items()}
    own = network.state_dict()
    network.load_state_dict({k: x for k, x in given.items() if k in own}, strict=False)


def save(network: nn.Module, path: Path) -> None:
    """Weights in half precision."""
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = {k: v.detach().cpu().half().contiguous() for k, v in network.state_dict().items()}
    save_file(weights, path)


def main() -> None:
    """Trains one model and saves it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("kind", choices=NETWORKS)
    parser.add_argument("--strength", type=float, default=1.0, help="0 makes the fair twin")
    parser.add_argument("--steps", type=int, default=Config.steps)
    parser.add_argument("--batch", type=int, default=Config.batch)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    parser.add_argument("--rate", type=float, default=Config.learning_rate)
    parser.add_argument("--start", help="a file of weights to start from, of the same kind or dual")
    parser.add_argument("--part", choices=("all", "image"), default="all", help="of --start")
    parser.add_argument("--compile", action="store_true", help="faster, where torch can")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    config = Config(
        given.kind, given.strength, given.steps, given.batch, given.rate, start=given.start,
        part=given.part,
    )  # fmt: skip
    train(config, torch.device(given.device), given.out, compiled=given.compile)


if __name__ == "__main__":
    main()
