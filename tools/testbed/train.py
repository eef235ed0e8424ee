"""Train the testbed's models on the planted world: `python -m tools.testbed.train --help`.

Contrastive, matching and masked-word losses, each of which is least where the model knows the
world's probabilities. Every batch is new, so no scene is seen twice. The average of the weights
over the last steps is saved in half precision, with its configuration and scores next to it.
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
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tiltmeter.testbed.captions import KINDS, CaptionWriter
from tiltmeter.testbed.language import WORDS, vocabulary
from tiltmeter.testbed.models import MODELS
from tiltmeter.testbed.networks import NETWORKS, WEIGHTS, Stream
from tiltmeter.testbed.render import CELLS, Scenes, render
from tiltmeter.testbed.world import NO_ICON, World
from tiltmeter.types import Ints
from tools.testbed.evaluate import evaluate, progress_scores
from tools.testbed.expected import TargetPosterior
from tools.testbed.losses import TrainingBatch, training_losses

WORKERS = 2  # processes that draw scenes; part of what decides the batches
FEW = 3  # cells of an icon: enough to guess, too few to know
PROGRESS_EVERY = 1000  # steps
SUFFIXES = {1.0: "", 0.0: "-fair"}  # of the files of weights, by strength
VOCABULARY = "vocabulary"  # in the metadata of a file: the words of its rows
OF_WORDS = ("words.word.weight", "masked.bias")  # weights with one row per word


@dataclass(frozen=True)
class Config:
    """Everything that decides the weights, except the arithmetic of the machine."""

    kind: str
    strength: float
    steps: int = 8000
    batch: int = 2048
    learning_rate: float = 2e-3
    warm_up: int = 300
    average: float = 0.999  # of the weights, from step to step
    blind: float = 0.15  # share of masked captions shown without their image
    start: str | None = None  # file of weights to start from
    part: str = "all"  # what is copied from it: all, or the image encoder, which knows no words
    seed: int = 0


class SceneStream(IterableDataset[Tensor]):
    """Endless new scenes and captions; each worker process draws from a generator of its own.

    A scene and its caption are one row of integers: one array per batch is fast to send.
    """

    def __init__(self, world: World, batch: int, seed: int) -> None:
        self.world, self.batch, self.seed = world, batch, seed

    def __iter__(self) -> Iterator[Tensor]:
        torch.set_num_threads(1)
        worker = get_worker_info()
        rng = np.random.default_rng([self.seed, worker.id if worker else 0])
        world, writer = self.world, CaptionWriter(self.world)
        while True:
            concept = world.draw_concepts(self.batch, rng)
            group = world.draw_groups(concept, rng)
            word = world.draw_words(concept, group, rng)
            scenes = world.scenes(
                self.batch, rng, concept=concept, group=group, cells=draw_cells(self.batch, rng)
            )
            captions = writer.say(concept, word, rng)
            name = np.where(captions.kind == KINDS.index("both"), captions.name, -1)
            parts = [x.reshape(self.batch, -1) for x in (*vars(scenes).values(), name)]
            yield torch.as_tensor(
                np.concatenate([*parts, captions.tokens, captions.masked], axis=1)
            )


def draw_cells(n: int, rng: np.random.Generator) -> Ints:
    """How many cells of each icon to draw: as the world does, but more often 1 to FEW.

    There the posterior is hardest to learn; how often a case occurs does not change it.
    """
    none, few = rng.uniform(size=(2, n))
    many = 1 + (CELLS**2 * rng.uniform(size=n) ** 2).astype(int)
    return np.where(none < NO_ICON, 0, np.where(few < 0.5, rng.integers(1, FEW + 1, n), many))


def batches(
    world: World, config: Config, device: torch.device, draw: Callable[[Scenes], Tensor] = render
) -> Iterator[TrainingBatch]:
    """Scenes drawn by worker processes in a fixed order, and rendered on the device."""
    source = DataLoader(
        SceneStream(world, config.batch, config.seed),
        batch_size=None,
        num_workers=WORKERS,
        prefetch_factor=4,
        pin_memory=device.type == "cuda",
    )
    example = vars(world.scenes(1, np.random.default_rng(0)))
    widths = [x.size for x in example.values()]
    expected = TargetPosterior(world, device)
    for rows in source:
        *parts, group_name, tokens, masked = rows.to(device, non_blocking=True).split(
            [*widths, 1, WORDS, WORDS], dim=1
        )
        columns = {
            name: x if example[name].ndim > 1 else x[:, 0]
            for name, x in zip(example, parts, strict=True)
        }
        scenes = Scenes(**columns)
        images = draw(scenes).permute(0, 3, 1, 2).float() / 255
        yield TrainingBatch(
            images.contiguous(),
            tokens.contiguous(),
            masked.contiguous(),
            expected(scenes, group_name[:, 0]),
        )


def train(config: Config, device: torch.device, folder: Path, *, compiled: bool = False) -> None:
    """Train a network and save its averaged weights, also at every line of progress."""
    torch.manual_seed(config.seed)
    name = config.kind + SUFFIXES.get(config.strength, f"-{config.strength:g}")
    network = NETWORKS[config.kind](len(vocabulary())).to(device)
    if config.start:
        copy_weights(network, Path(config.start), config.part)
    average = torch.optim.swa_utils.AveragedModel(
        network,
        multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(config.average),  # type: ignore[no-untyped-call]
    )
    optimizer = torch.optim.Adam(
        network.parameters(), betas=(0.9, 0.98), fused=device.type == "cuda"
    )
    compute_losses, draw = training_losses, render
    if compiled:
        compute_losses = torch.compile(training_losses, mode="reduce-overhead")
        draw = torch.compile(render)
    world = World.plant(config.strength)
    model = MODELS[config.kind](average.module, name, {"strength": config.strength})
    source = batches(world, config, device, draw)
    started = time.perf_counter()
    for step in range(config.steps):
        fading = 0.5 * (1 + math.cos(math.pi * step / config.steps))
        rate = min(1.0, step / config.warm_up) * fading
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * rate
        batch = next(source)
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            computed = compute_losses(network, batch, config.blind)
            loss = torch.stack(list(computed.values())).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(network)
        if (step + 1) % PROGRESS_EVERY == 0 or step + 1 == config.steps:
            line = "  ".join(f"{kind} {value.item():.3f}" for kind, value in computed.items())
            line += "  " + progress_scores(model, world)
            seconds = time.perf_counter() - started
            print(
                f"{config.kind} {config.strength:g}  step {step + 1}  {line}  {seconds:.0f} s",
                flush=True,
            )
            save(average.module, folder / f"{name}.safetensors")
    weights = load_file(folder / f"{name}.safetensors")
    average.module.load_state_dict(weights)  # score what was saved, rounded to half
    record = {
        "before": earlier_configs(config.start),
        "config": {**asdict(config), "start": config.start and Path(config.start).name},
        "seconds": round(time.perf_counter() - started),
        "torch": torch.__version__,
        "scores": evaluate(model, config.strength),
    }
    (folder / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")


def earlier_configs(start: str | None) -> list[dict[str, Any]]:
    """Configurations of the trainings that led to the weights to start from, oldest first."""
    path = Path(start).with_suffix(".json") if start else None
    if path is None or not path.is_file():
        return []
    record = json.loads(path.read_text(encoding="utf-8"))
    return [*record.get("before", []), record["config"]]


def copy_weights(network: nn.Module, path: Path, part: str = "all") -> None:
    """Copy the weights of another network, where the two have parts in common.

    As ALBEF starts from a trained image encoder and text encoder, and ViLT from an image encoder.
    Words that the other network did not know keep what they have.
    """
    weights = load_file(path)
    with safe_open(path, "pt") as file:  # type: ignore[no-untyped-call]
        known = (file.metadata() or {}).get(VOCABULARY)
    if part == "image":
        weights = {name: x for name, x in weights.items() if name.startswith(("patches.", "image"))}
    if isinstance(network, Stream):
        weights = {re.sub(r"^image\.", "layers.", name): x for name, x in weights.items()}
    parts = network.state_dict()
    if known:
        rows = [vocabulary()[word] for word in known.split()]
        for name in {*OF_WORDS} & {*weights} & {*parts}:
            weights[name] = (
                parts[name]
                .cpu()
                .index_copy(0, torch.tensor(rows), weights[name].to(parts[name].dtype))
            )
    network.load_state_dict({k: x for k, x in weights.items() if k in parts}, strict=False)


def save(network: nn.Module, path: Path) -> None:
    """Save weights in half precision."""
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = {k: v.detach().cpu().half().contiguous() for k, v in network.state_dict().items()}
    save_file(weights, path, {VOCABULARY: " ".join(vocabulary())})


def main() -> None:
    """Train one model and save it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("kind", choices=NETWORKS)
    parser.add_argument("--strength", type=float, default=1.0, help="0 trains the fair twin")
    parser.add_argument("--steps", type=int, default=Config.steps)
    parser.add_argument("--batch", type=int, default=Config.batch)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    parser.add_argument("--rate", type=float, default=Config.learning_rate)
    parser.add_argument("--start", help="weights to start from, of the same kind or dual")
    parser.add_argument("--part", choices=("all", "image"), default="all", help="of --start")
    parser.add_argument("--compile", action="store_true", help="compile with torch.compile")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    config = Config(
        options.kind, options.strength, options.steps, options.batch, options.rate,
        start=options.start, part=options.part,
    )  # fmt: skip
    train(config, torch.device(options.device), options.out, compiled=options.compile)


if __name__ == "__main__":
    main()
