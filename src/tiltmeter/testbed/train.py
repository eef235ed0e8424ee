"""Trains the testbed's models on the planted world: `python -m tiltmeter.testbed.train --help`.

Contrastive, matching and masked-word losses, each of which is least where the model knows the
world's probabilities. Batches are made on the spot, so nothing is seen twice. The average of the
weights over the last steps is kept, in half precision, with its configuration and scores beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tiltmeter.testbed.captions import Speaker
from tiltmeter.testbed.evaluate import evaluate
from tiltmeter.testbed.language import vocabulary
from tiltmeter.testbed.networks import NETWORKS, WEIGHTS, Dual, Fusion
from tiltmeter.testbed.render import Scenes, render
from tiltmeter.testbed.world import World

WORKERS = 2  # processes that draw scenes; part of what decides the batches
MOST_HIDDEN = 3  # words of the longest concept


@dataclass(frozen=True)
class Config:
    """All that decides what comes out, but for the arithmetic of the machine."""

    kind: str
    strength: float
    steps: int = 8000
    batch: int = 2048
    learning_rate: float = 1.5e-3
    warm_up: int = 300
    average: float = 0.999  # of the weights, from step to step
    weight_decay: float = 0.01
    blind: float = 0.15  # share of masked captions shown without their picture
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Batch:
    """Pictures (0 to 1) and their captions."""

    pictures: Tensor
    tokens: Tensor
    masked: Tensor


class Drawn(IterableDataset[tuple[dict[str, Tensor], Tensor, Tensor]]):
    """Endless new scenes and captions; each worker process draws from a generator of its own."""

    def __init__(self, world: World, batch: int, seed: int) -> None:
        self.world, self.batch, self.seed = world, batch, seed

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor, Tensor]]:
        torch.set_num_threads(1)
        worker = get_worker_info()
        rng = np.random.default_rng([self.seed, worker.id if worker else 0])
        world, speaker = self.world, Speaker(self.world)
        while True:
            concept = world.draw_concepts(self.batch, rng)
            group = world.draw_groups(concept, rng)
            word = world.draw_words(concept, group, rng)
            scenes = world.scenes(self.batch, rng, concept=concept, group=group)
            said = speaker.say(concept, word, rng)
            parts = {name: torch.as_tensor(x) for name, x in vars(scenes).items()}
            yield parts, torch.as_tensor(said.tokens), torch.as_tensor(said.masked)


def batches(world: World, config: Config, device: torch.device) -> Iterator[Batch]:
    """Scenes drawn up by worker processes, whose turns are fixed, and painted on the device."""
    source = DataLoader(
        Drawn(world, config.batch, config.seed),
        batch_size=None,
        num_workers=WORKERS,
        prefetch_factor=4,
        pin_memory=device.type == "cuda",
    )
    for parts, tokens, masked in source:
        scenes = Scenes(**{k: x.to(device, non_blocking=True) for k, x in parts.items()})
        pictures = render(scenes).permute(0, 3, 1, 2).float() / 255
        yield Batch(
            pictures, tokens.to(device, non_blocking=True), masked.to(device, non_blocking=True)
        )


def losses(network: Any, batch: Batch, config: Config) -> dict[str, Tensor]:
    """The network's own losses on a batch; no shape depends on values, so that it can compile."""
    found = {}
    pictures, tokens, masked = batch.pictures, batch.tokens, batch.masked
    n = len(tokens)
    row = torch.arange(n, device=tokens.device)
    # every second caption is the next scene's, for matching
    other = torch.where(row % 2 == 0, row, (row + 1) % n)
    truth = (row == other).to(pictures)
    hidden = (masked != tokens) & (tokens != 0)
    at = hidden.int().topk(MOST_HIDDEN, dim=1).indices
    answer = torch.where(hidden, tokens, -100).gather(1, at)
    if isinstance(network, Dual):
        seen, read = network.see(pictures), network.read(tokens)
        scale = network.log_scale.clamp(max=math.log(100.0)).exp()
        with torch.autocast(pictures.device.type, enabled=False):  # tilts are finer than bfloat16
            logits = (
                scale * network.image_vector(seen.float()) @ network.text_vector(read.float()).T
            )
        found["contrast"] = (F.cross_entropy(logits, row) + F.cross_entropy(logits.T, row)) / 2
        if not isinstance(network, Fusion):
            return found
        fused = network.fuse(tokens[other], read[other], seen)
        blind = torch.rand(n, 1, 1, device=tokens.device) < config.blind
        shown = torch.where(blind, network.blind(seen), seen)
        words = network.fuse(masked, network.read(masked), shown)
    else:
        fused = network(pictures, tokens[other])
        cut = int(config.blind * n)  # the first rows go without their pictures
        words = torch.cat([network(None, masked[:cut]), network(pictures[cut:], masked[cut:])])
    places = words.gather(1, at[..., None].expand(-1, -1, words.shape[-1]))
    with torch.autocast(pictures.device.type, enabled=False):
        match = network.matching(fused[:, 0].float()).squeeze(-1)
        found["match"] = F.binary_cross_entropy_with_logits(match, truth)
        guess = network.masked(places.float())
        found["mask"] = F.cross_entropy(guess.flatten(0, 1), answer.flatten())
    return found


def train(
    config: Config, device: torch.device, *, compiled: bool = False
) -> tuple[nn.Module, float]:
    """A trained network (its averaged weights), and the seconds it took."""
    torch.manual_seed(config.seed)
    if config.kind not in NETWORKS:
        raise SystemExit(f"kind must be one of {', '.join(NETWORKS)}")
    network = NETWORKS[config.kind](len(vocabulary())).to(device)
    average = torch.optim.swa_utils.AveragedModel(
        network,
        multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(config.average),  # type: ignore[no-untyped-call]
    )
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay,
        betas=(0.9, 0.98), fused=device.type == "cuda",
    )  # fmt: skip
    measure = torch.compile(losses) if compiled else losses
    source = batches(World.plant(config.strength), config, device)
    started = time.perf_counter()
    for step in range(config.steps):
        fading = 0.5 * (1 + math.cos(math.pi * step / config.steps))
        rate = min(1.0, step / config.warm_up) * fading
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * rate
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            found = measure(network, next(source), config)
            loss = torch.stack(list(found.values())).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(network)
        if step % 500 == 0:
            told = "  ".join(f"{name} {value.item():.4f}" for name, value in found.items())
            clock = time.perf_counter() - started
            print(
                f"{config.kind} {config.strength:g}  step {step:5d}  {told}  {clock:.0f} s",
                flush=True,
            )
    trained: nn.Module = average.module
    return trained.eval(), time.perf_counter() - started


def save(network: nn.Module, config: Config, seconds: float, place: Path) -> None:
    """Weights in half precision, what made them, and how they score."""
    from safetensors.torch import save_file

    name = config.kind if config.strength else f"{config.kind}-fair"
    place.mkdir(parents=True, exist_ok=True)
    weights = {k: v.detach().cpu().half().contiguous() for k, v in network.state_dict().items()}
    save_file(weights, place / f"{name}.safetensors")
    told: dict[str, Any] = {
        "config": asdict(config),
        "seconds": round(seconds),
        "torch": torch.__version__,
    }
    network.load_state_dict(weights)  # what is scored is what is kept, rounded to half
    told["scores"] = evaluate(network.cpu(), config.strength)
    (place / f"{name}.json").write_text(json.dumps(told, indent=2) + "\n")


def main() -> None:
    """Trains one model and saves it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("kind", choices=NETWORKS)
    parser.add_argument("--strength", type=float, default=1.0, help="0 makes the fair twin")
    parser.add_argument("--steps", type=int, default=Config.steps)
    parser.add_argument("--batch", type=int, default=Config.batch)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    parser.add_argument("--rate", type=float, default=Config.learning_rate)
    parser.add_argument("--compile", action="store_true", help="faster, where torch can")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    config = Config(given.kind, given.strength, given.steps, given.batch, given.rate)
    network, seconds = train(config, torch.device(given.device), compiled=given.compile)
    save(network, config, seconds, given.out)


if __name__ == "__main__":
    main()
