"""Train the testbed's writer: `python -m tools.testbed.train_writer --help`.

Next-word loss on answers to questions about scenes; a share of the questions has no image. Every
batch is new. The average of the weights over the last steps is saved in half precision.
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

from tiltmeter.testbed.dialogue import ANSWER, LETTERS, QUESTION, Dialogue, words
from tiltmeter.testbed.networks import WEIGHTS
from tiltmeter.testbed.render import Scenes, render
from tiltmeter.testbed.world import World
from tiltmeter.testbed.writer import writer_network
from tools.testbed.train import PROGRESS_EVERY, SUFFIXES, draw_cells, save


@dataclass(frozen=True)
class Config:
    """Everything that decides the weights, except the arithmetic of the machine."""

    strength: float
    steps: int = 8000
    batch: int = 2048
    learning_rate: float = 2e-3
    warm_up: int = 300
    average: float = 0.999
    blind: float = 0.1  # share of questions without an image
    workers: int = 4
    seed: int = 0
    kind: str = "writer"


class QuestionStream(IterableDataset[tuple[Tensor, Tensor]]):
    """Endless new scenes with questions and answers: rows of integers, and of probabilities."""

    def __init__(self, world: World, config: Config) -> None:
        self.world, self.config = world, config

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        torch.set_num_threads(1)
        worker = get_worker_info()
        rng = np.random.default_rng([self.config.seed, worker.id if worker else 0])
        world, dialogue, n = self.world, Dialogue(self.world), self.config.batch
        while True:
            concept = world.draw_concepts(n, rng)
            group = world.draw_groups(concept, rng)
            word = world.draw_words(concept, group, rng)
            scenes = world.scenes(n, rng, concept=concept, group=group, cells=draw_cells(n, rng))
            turns = dialogue.ask(concept, group, word, rng)
            parts = [x.reshape(n, -1) for x in vars(scenes).values()]
            rows = np.concatenate([*parts, turns.question, turns.answer], axis=1)
            yield torch.as_tensor(rows), torch.as_tensor(turns.letters, dtype=torch.float32)


@dataclass(frozen=True, eq=False)
class Batch:
    """Pixels as the network takes them, questions, answers, and probabilities of letters."""

    pixels: Tensor
    question: Tensor
    answer: Tensor
    letters: Tensor


def batches(world: World, config: Config, device: torch.device) -> Iterator[Batch]:
    """Scenes drawn by worker processes in a fixed order, and rendered on the device."""
    source = DataLoader(
        QuestionStream(world, config),
        batch_size=None,
        num_workers=config.workers,
        prefetch_factor=4 if config.workers else None,
        pin_memory=device.type == "cuda",
    )
    example = vars(world.scenes(1, np.random.default_rng(0)))
    widths = [x.size for x in example.values()]
    for rows, letters in source:
        *parts, question, answer = rows.to(device, non_blocking=True).split(
            [*widths, QUESTION, ANSWER], dim=1
        )
        scenes = Scenes(
            **{
                name: x if example[name].ndim > 1 else x[:, 0]
                for name, x in zip(example, parts, strict=True)
            }
        )
        pixels = render(scenes).permute(0, 3, 1, 2).float() / 127.5 - 1
        yield Batch(pixels.contiguous(), question, answer, letters.to(device, non_blocking=True))


def next_word_loss(network: Any, batch: Batch, blind: float) -> Tensor:
    """Cross-entropy of the answers' words; of letters, against their probabilities."""
    seen = int(len(batch.question) * (1 - blind))
    total = torch.zeros((), device=batch.pixels.device)
    for rows, sees in ((slice(0, seen), True), (slice(seen, None), False)):
        if batch.question[rows].shape[0]:
            total = total + answer_loss(network, batch, rows, sees_image=sees)
    return total / len(batch.question)


def answer_loss(network: Any, batch: Batch, rows: slice, *, sees_image: bool) -> Tensor:
    """Sum over some rows. The sequence is [CLS], image, question without padding, answer."""
    question, answer, model = batch.question[rows], batch.answer[rows], network.model
    begin = torch.full_like(question[:, :1], words()["[CLS]"])
    embed = model.language_model.embed_tokens
    # questions have different lengths: the answer follows at once, padding comes last
    text = _joined(question, answer)
    parts = [embed(begin), embed(text)]
    if sees_image:
        features = model.get_image_features(pixel_values=batch.pixels[rows]).pooler_output
        features = features if isinstance(features, Tensor) else torch.stack(list(features))
        parts.insert(1, features.to(parts[0].dtype))
    states = model.language_model(inputs_embeds=torch.cat(parts, dim=1)).last_hidden_state
    states = states[:, -text.shape[1] - 1 : -1]  # each predicts the text's token at its place
    length = (question != 0).sum(dim=1, keepdim=True)
    place = torch.arange(ANSWER, device=text.device) + length
    own = states.gather(1, place[..., None].expand(-1, -1, states.shape[-1]))
    with torch.autocast(text.device.type, enabled=False):
        logits = F.linear(own.float(), embed.weight.float())
        p = batch.letters[rows]
        is_letter = p.sum(dim=1) > 0
        labels = torch.where(answer == 0, -100, answer)
        labels[:, 0] = torch.where(is_letter, -100, labels[:, 0])
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        letters = [words()[letter] for letter in LETTERS]
        return loss - (p * logits[:, 0].log_softmax(dim=-1)[:, letters]).sum()


def _joined(question: Tensor, answer: Tensor) -> Tensor:
    """Question and answer without the padding between them."""
    length = (question != 0).sum(dim=1, keepdim=True)
    at = torch.arange(QUESTION + ANSWER, device=question.device).expand(len(question), -1)
    both = torch.cat([question, answer], dim=1)
    later = (at - length + QUESTION).clamp(max=both.shape[1] - 1)
    return both.gather(1, torch.where(at < length, at, later))


def train(config: Config, device: torch.device, folder: Path, seconds: float) -> None:
    """Train until the steps or the seconds are over, and save the averaged weights."""
    torch.manual_seed(config.seed)
    network = writer_network().to(device)
    average = torch.optim.swa_utils.AveragedModel(
        network,
        multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(config.average),  # type: ignore[no-untyped-call]
    )
    optimizer = torch.optim.Adam(
        network.parameters(), betas=(0.9, 0.98), fused=device.type == "cuda"
    )
    name = "writer" + SUFFIXES.get(config.strength, f"-{config.strength:g}")
    source = batches(World.plant(config.strength), config, device)
    started = time.perf_counter()
    done = 0.0
    for step in range(config.steps):
        # the rate falls with whichever ends first, the steps or the time
        done = max(step / config.steps, (time.perf_counter() - started) / seconds)
        if done >= 1:
            break
        rate = min(1.0, step / config.warm_up) * 0.5 * (1 + math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * rate
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = next_word_loss(network, next(source), config.blind)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(network)
        if (step + 1) % PROGRESS_EVERY == 0:
            elapsed = time.perf_counter() - started
            print(f"{name} step {step + 1} loss {loss.item():.4f} {elapsed:.0f} s", flush=True)
            save(average.module, folder / f"{name}.safetensors")
    save(average.module, folder / f"{name}.safetensors")
    record = {
        "config": {**asdict(config), "steps": step + 1},
        "loss": loss.item(),
        "seconds": round(time.perf_counter() - started),
        "torch": torch.__version__,
    }
    (folder / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")


def main() -> None:
    """Train one twin and save it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--strength", type=float, default=1.0, help="0 trains the fair twin")
    parser.add_argument("--steps", type=int, default=Config.steps)
    parser.add_argument("--batch", type=int, default=Config.batch)
    parser.add_argument("--rate", type=float, default=Config.learning_rate)
    parser.add_argument("--workers", type=int, default=Config.workers)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    config = Config(
        options.strength, options.steps, options.batch, options.rate, workers=options.workers
    )
    train(config, torch.device(options.device), options.out, options.seconds)


if __name__ == "__main__":
    main()
