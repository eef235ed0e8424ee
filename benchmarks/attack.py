"""How near the attack comes to bare forward and backward passes: `python -m benchmarks.attack`.

A ViLT of full size with random weights, pictures of 384 x 384, every step taken. `--tiny` makes it
small enough for any machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tiltmeter.models import load_model
from tiltmeter.probes.counterfactual.sources.adversarial import Attack, attack, only_pixels

WORDS, PROMPT = ("man", "woman"), "a [MASK] is in the picture"
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 64, "patch_size": 16}  # fmt: skip
PIECES = 30522  # of BERT's vocabulary


def vilt(place: Path, *, tiny: bool) -> Any:
    """A ViLT with the head for hidden words, loaded as any checkpoint is."""
    import transformers

    torch.manual_seed(0)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    known = dict.fromkeys([*special, *WORDS, *PROMPT.replace("[MASK]", "").split()])
    known |= dict.fromkeys(f"word{at}" for at in range(PIECES - len(known)))
    vocabulary = {word: at for at, word in enumerate(known)}
    transformers.BertTokenizer(vocab=vocabulary, model_max_length=40).save_pretrained(place)
    config = transformers.ViltConfig(vocab_size=len(vocabulary), **(TINY if tiny else {}))
    side = {"shortest_edge": config.image_size}
    transformers.ViltImageProcessorPil(size=side, size_divisor=config.patch_size).save_pretrained(
        place
    )
    transformers.ViltForMaskedLM(config).save_pretrained(place)
    return load_model(f"hf:{place}")


def rate(work: Callable[[], object], images: int, device: str) -> float:
    """Images a second, the best of three after one to warm up."""
    best = 0.0
    for turn in range(4):
        started = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        if turn:
            best = max(best, images / (time.perf_counter() - started))
    return best


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=128, help="in a batch")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tiny", action="store_true", help="a small network, for a CPU")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        model = vilt(Path(place), tiny=given.tiny).to(given.device)
    side = model.network.config.image_size
    pixels = torch.rand(given.images, 3, side, side, device=given.device)
    goal = np.arange(given.images) % 2
    tokens = model.tokens([PROMPT] * given.images).to(given.device)
    word = model.pieces(WORDS[0])[0]
    at = int((tokens["input_ids"][0] == model.mask_id).nonzero())

    def bare() -> None:
        """As many passes as there are steps, and nothing else."""
        for _ in range(given.steps):
            x = pixels.detach().requires_grad_()
            with torch.autocast(given.device, torch.bfloat16, enabled=given.device == "cuda"):
                logits = model.network(**tokens, pixel_values=model.normal(x)).logits
            torch.autograd.grad(logits[:, at].float().log_softmax(-1)[:, word].sum(), x)

    settings = Attack(steps=given.steps, confidence=2.0, starts=1)  # above 1: nobody stops early

    def ours() -> None:
        attack(model, pixels, goal, words=WORDS, prompt=PROMPT, settings=settings)

    with only_pixels(model):
        bound = rate(bare, given.images, given.device)
    reached = rate(ours, given.images, given.device)
    with only_pixels(model):  # before and after: machines have moods
        bound = max(bound, rate(bare, given.images, given.device))
    print(
        f"ViLT{' (tiny)' if given.tiny else ''} on {given.device}, {side} x {side}, "
        f"{given.steps} steps, batch {given.images}: bare passes {bound:,.1f} images/s "
        f"({bound * given.steps:,.0f} single passes/s), attacked {reached:,.1f} images/s "
        f"({reached / bound:.0%})",
        flush=True,
    )


if __name__ == "__main__":
    main()
