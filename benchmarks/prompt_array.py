"""Seconds to train a prompt array on a text tower as large as CLIP ViT-B/16's, of random weights.

    python -m benchmarks.prompt_array --device cuda
    python -m benchmarks.prompt_array --device cpu --images 512 --epochs 1 --pairs 64 --batch 32

As many vectors of images as FairFace has for training, with a label of two groups planted in them;
captions as many and as long as Flickr30k's. The loop is that of `tiltmeter debias prompt-array`,
with NDKL on all images after each epoch where numba is installed. Needs torch, transformers and
numpy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tiltmeter.debiasers.adversary import AdversarialObjective, AdversaryData, alternate
from tiltmeter.debiasers.prompt_array_data import Learner, lookup, mean_ndkl
from tiltmeter.debiasers.text_tower import tower_of
from tiltmeter.debiasers.training_loop import TrainingConfig, train

IMAGES, DIMENSIONS, PAIRS, PROMPTS = 86_744, 512, 29_000, 10
BEGIN, END = 49_406, 49_407
LEAN = 1.0  # standard deviations that the groups lie apart, along one random direction


class Clip:
    """CLIP with the text tower of ViT-B/16, and words that are numbers already."""

    padding, name = True, "random"
    longest, logit_scale = 77, 100.0

    def __init__(self, device: str, seed: int = 0) -> None:
        from transformers import CLIPConfig, CLIPModel

        torch.manual_seed(seed)
        text = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
                "num_attention_heads": 8, "vocab_size": 49_408, "max_position_embeddings": 77,
                "bos_token_id": BEGIN, "eos_token_id": END}  # fmt: skip
        # images come as vectors: the image tower only has to be there
        small = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
                 "num_attention_heads": 1, "image_size": 32, "patch_size": 16}  # fmt: skip
        config = CLIPConfig(text_config=text, vision_config=small, projection_dim=DIMENSIONS)
        self.network = CLIPModel(config).eval().requires_grad_(False).to(device)
        self.tokenizer = SimpleNamespace(bos_token_id=BEGIN, eos_token_id=END)

    def tokens(self, texts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        width = max(len(text) for text in texts) + 2
        ids = torch.full((len(texts), width), END)
        mask = torch.zeros(len(texts), width, dtype=torch.int64)
        for at, text in enumerate(texts):
            ids[at, : len(text) + 2] = torch.tensor([BEGIN, *text, END])
            mask[at, : len(text) + 2] = 1
        return {"input_ids": ids, "attention_mask": mask}


def sentences(rng: np.random.Generator, count: int, low: int, high: int) -> list[list[int]]:
    """Random words; captions of Flickr30k have 8 to 20 pieces, most of them."""
    lengths = rng.integers(low, high + 1, count)
    return [rng.integers(300, 40_000, length).tolist() for length in lengths]


def gap(images: Tensor, codes: Tensor, prompts: Tensor) -> float:
    """Mean over prompts of |difference of the two groups' mean scores|, in standard deviations."""
    scores = prompts.float() @ images.T
    means = [scores[:, codes == one].mean(dim=1) for one in (0, 1)]
    return float(((means[0] - means[1]).abs() / scores.std(dim=1)).mean())


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Everything that `debias prompt-array` does behind its vectors, timed."""
    device = torch.device(given.device)
    rng = np.random.default_rng(given.seed)
    model = Clip(given.device, given.seed)
    codes = rng.integers(0, 2, given.images)
    direction = rng.normal(size=DIMENSIONS) / DIMENSIONS**0.5
    vectors = rng.normal(size=(given.images, DIMENSIONS)) / DIMENSIONS**0.5
    vectors += LEAN * (codes[:, None] - 0.5) * direction
    pictures = rng.normal(size=(given.pairs, DIMENSIONS))
    said = sentences(rng, given.pairs, 8, 20)
    prompts = sentences(rng, PROMPTS, 6, 6)
    _wait(device)
    started = time.perf_counter()
    tower = tower_of(model, "after_sos", 2)
    tokens = nn.Parameter(tower.start("token0", torch.Generator()).to(device))
    both = given.variant == "both"
    texts = Learner(model, tower, tokens, device).text_encoder(prompts, said if both else ())
    images = lookup(vectors, device)
    data = AdversaryData(
        torch.as_tensor(codes, device=device), 2, images, texts,
        lookup(pictures, device) if both else None, given.pairs if both else 0,
        model.logit_scale, [tokens],
    )  # fmt: skip
    turns = alternate(
        given.images, epochs=given.epochs, warmup=given.warmup, block=10, batch=given.batch,
        seed=given.seed, adversarial=True,
    )  # fmt: skip
    objective = AdversarialObjective(
        data, turns, itc=0.05 if both else 0.0, batch=given.batch, seed=given.seed,
        bias=mean_ndkl(data) if find_spec("numba") else None,
    )  # fmt: skip
    config = TrainingConfig(
        len(turns), given.batch, learning_rate=given.learning_rate, weight_decay=0.0,
        seed=given.seed, clip=None, distributed=False,
    )  # fmt: skip
    everything = images(torch.arange(given.images, device=device))
    none = np.empty(0, np.int64)
    with torch.no_grad():
        before = gap(everything, data.codes, texts(none)[0])
    train(objective, config, key="benchmark")
    objective.restore_best()
    _wait(device)
    seconds = time.perf_counter() - started
    with torch.no_grad():
        after = gap(everything, data.codes, texts(none)[0])
    steps = [0, 0]
    for turn in turns:
        steps[turn.model] += 1
    return {
        "seconds": seconds, "adversary": steps[0], "model": steps[1], "before": before,
        "after": after, "kept": objective.kept, "first": objective.log[0],
        "last": objective.log[-1],
    }  # fmt: skip


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2, help="epochs of the adversary alone")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--variant", default="both", choices=("both", "adversarial"))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = run(given)
    where = torch.cuda.get_device_name(0) if given.device == "cuda" else "CPU"
    precision = "bfloat16" if given.device == "cuda" else "float32"
    print(
        f"{where}, {precision}, variant {given.variant}: {given.images:,} images, "
        f"{given.warmup} + {given.epochs} epochs of {given.batch}: {found['adversary']:,} steps of "
        f"the adversary, {found['model']:,} of the tokens: {found['seconds']:.1f} s"
    )
    print(
        f"  groups' mean scores apart: {found['before']:.3f} -> {found['after']:.3f} sd (weights "
        f"after epoch {found['kept']})"
    )
    for name in ("first", "last"):
        told = ", ".join(f"{k} {v:.3f}" for k, v in found[name].items() if k != "epoch")
        print(f"  epoch {found[name]['epoch']}: {told}")
    if given.device == "cuda":
        print(f"  peak memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
