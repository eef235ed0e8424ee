"""How long the explorer takes to answer: `python -m benchmarks.explore [IMAGES] [DIMENSIONS]`.

Vectors in a real store, read back as the command does; a text tower of CLIP ViT-B/32's size with
random weights; questions over HTTP to the real server, from another process. Every prompt is new
(encoded, scored, ranked); then the same prompts with another k and attribute (remembered).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter.explorer import server as serving
from tiltmeter.explorer.gather import ExplorerData, ExplorerModel, choosable
from tiltmeter.explorer.neutral import neutral
from tiltmeter.metrics.arrays import unit
from tiltmeter.metrics.convention import get_convention
from tiltmeter.store import Store
from tiltmeter.types import Faces, Floats, Groups

BUDGET = 150.0  # milliseconds
PROMPTS = 60
TOWER = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
         "num_attention_heads": 8, "vocab_size": 49408, "max_position_embeddings": 77}  # fmt: skip


class TextTower:
    """CLIP's text tower with random weights: as slow as the real one, and knows nothing."""

    name, fingerprint = "random ViT-B/32", "random"

    def __init__(self, dimensions: int) -> None:
        import torch
        from transformers import CLIPTextConfig, CLIPTextModelWithProjection

        torch.manual_seed(0)
        self.torch = torch
        config = CLIPTextConfig(**TOWER, projection_dim=dimensions)
        self.network = CLIPTextModelWithProjection(config).eval()

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        """Bytes stand for tokens: about as many as a tokenizer would give for a short prompt."""
        rows = [[1, *text.encode()[:20], 49407] for text in texts]
        with self.torch.inference_mode():
            found = self.network(input_ids=self.torch.tensor(rows)).text_embeds
        return np.asarray(found.numpy())


def scene(images: int, dimensions: int, place: Path, text: bool) -> ExplorerData:
    rng = np.random.default_rng(0)
    gender, race = rng.integers(0, 2, images), rng.integers(0, 7, images)
    vectors = rng.normal(size=(images, dimensions)).astype(np.float32)
    tower: Any = TextTower(dimensions) if text else _Random(dimensions)
    space = Store(place).space(tower)
    ids = [f"{row:08d}" for row in range(images)]
    for start in range(0, images, 10_000):
        space.add(ids[start : start + 10_000], vectors[start : start + 10_000])
    groups = {"gender": Groups(gender, ("female", "male"), "gender"),
              "race": Groups(race, tuple("abcdefg"), "race")}  # fmt: skip
    faces = Faces(tuple(ids), groups)
    stored = np.ascontiguousarray(unit(space.vectors(ids)), np.float32)
    choices = choosable(faces)
    plain = neutral(tower.encode_texts, stored, choices, [f"neutral {at:02d}" for at in range(60)])
    shown = ExplorerModel(tower.name, tower.encode_texts, stored, neutral=plain)
    return ExplorerData((shown,), faces.ids, choices, "drawn", get_convention("tiltmeter"))


class _Random:
    """A text tower that takes no time."""

    name, fingerprint = "no tower", "none"

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        seeds = [int.from_bytes(text.encode()[-8:], "big") for text in texts]
        drawn = [np.random.default_rng(seed).normal(size=self.dimensions) for seed in seeds]
        return np.stack(drawn).astype(np.float32)


def asked(address: str, questions: Sequence[dict[str, Any]]) -> list[float]:
    """Milliseconds from question to the last byte of the answer, one after the other."""
    took = []
    for question in questions:
        request = urllib.request.Request(
            f"{address}rank", json.dumps(question).encode(), {"content-type": "application/json"}
        )
        started = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            answer.read()
        took.append(1000 * (time.perf_counter() - started))
    return took


def _serve(images: int, dimensions: int, place: str, text: bool, told: Any) -> None:
    made = scene(images, dimensions, Path(place), text)
    serving.serve(made, ready=told.send)


def worked(process: int | None) -> float:
    """Milliseconds of all cores that a process has used; waiting for others does not count."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(images: int, dimensions: int, text: bool) -> dict[str, tuple[list[float], float]]:
    here, there = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as place:
        server = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(images, dimensions, place, text, there), daemon=True
        )
        server.start()
        address = here.recv()
        new = [{"text": f"a photo of number {at}", "by": "gender", "k": 100}
               for at in range(PROMPTS)]  # fmt: skip
        kinds = {
            "first": new[:1],
            "new prompt": new[1:],
            "another k and attribute": [{**one, "by": "gender*race", "k": 1000} for one in new],
        }
        found = {}
        for what, questions in kinds.items():
            before = worked(server.pid)
            took = asked(address, questions)
            found[what] = (took, (worked(server.pid) - before) / len(questions))
        server.terminate()
        server.join()
    return found


def main() -> None:
    given = [int(one) for one in sys.argv[1:]]
    images, dimensions = (*given, *(100_000, 512)[len(given) :])
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    print(
        f"{images:,} x {dimensions} vectors, {os.cpu_count()} cores ({threads} threads), "
        f"load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}; milliseconds"
    )
    slow = []
    for label, text in (("no text tower", False), ("ViT-B/32's text tower", True)):
        for what, (took, work) in measured(images, dimensions, text).items():
            p50, p95 = np.percentile(took, [50, 95])
            print(f"  {label:22} {what:24} p50 {p50:6.1f}  p95 {p95:6.1f}  n {len(took):2}  "
                  f"CPU {work:6.1f} each")  # fmt: skip
            if what != "first" and p95 > BUDGET:
                slow.append(f"{label}, {what}")
    print(f"within {BUDGET:.0f} ms: {'all' if not slow else 'NOT ' + '; '.join(slow)}")


if __name__ == "__main__":
    main()
