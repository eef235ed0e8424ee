"""Adversarial counterfactuals: a small change after which the model reads the other word.

Projected gradient descent in pixel space (Zhang et al. 2022, equation 3): V + delta with
max |delta| <= epsilon, all pixels from 0 to 1, so that the opposite bias word becomes probable at
`a [MASK] is in the picture`. Each image stops once the model is confident. Gradients are small
where a model is very confident: images that did not flip are tried again from a lighter start, then
from a darker one.

Such an image shows what the model takes for the other group, not a person of that group: the
direction by target can be trusted, the size cannot (docs/probes/counterfactual.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.probes.counterfactual.sources import ImagePairBlock, Swap, images_of, pixels_of
from tiltmeter.probes.counterfactual.sources.words import (
    check_words,
    one_mask,
    with_masked_head,
    word_logprobs,
)
from tiltmeter.results import content_hash
from tiltmeter.store import Store
from tiltmeter.types import Faces, Ints, MaskedPredictor

LOSSES = ("word", "pair")
GREY = 255  # levels above black, in 8 bits
STARTS = (0, 1, -1)  # added to an image before the first step, in epsilons
#: Tolerance of the ball for grey levels: float32 rounding.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Attack:
    """Settings of the attack. The paper gives none; these are our defaults.

    `loss` is the cross-entropy of the opposite word over the vocabulary (`word`), or its log-odds
    against the true one (`pair`). An image stops once the opposite word has probability
    `confidence` within the pair; above 1, all steps are taken. `starts` is the number of starts to
    try (the image, a lighter one, a darker one) until the opposite word is read.
    """

    epsilon: float = 8 / 255
    step: float = 2 / 255
    steps: int = 20
    confidence: float = 0.9
    loss: str = "word"
    random_start: bool = False
    starts: int = len(STARTS)
    quantise: bool = False  # to 8 bits, at the end
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 1 or not self.step > 0 or self.steps < 1:
            raise InputError(
                "an attack needs 0 < epsilon <= 1, step > 0 and at least one step; "
                f"got {self.epsilon:g}, {self.step:g} and {self.steps}. Pixels range "
                "from 0 to 1: 8 grey levels are 8/255"
            )
        if not 1 <= self.starts <= len(STARTS):
            raise InputError(f"an attack needs 1 to {len(STARTS)} starts; got {self.starts}")
        if self.loss not in LOSSES:
            raise UnknownNameError("attack loss", self.loss, LOSSES)
        if self.quantise and self.epsilon < 1 / GREY - ROUNDING:
            raise InputError(
                f"epsilon={self.epsilon:g} is less than one grey level (1/255): no 8-bit image is "
                "that close. Use a larger epsilon, or quantise=False"
            )

    def __str__(self) -> str:
        start = "from a random start" if self.random_start else "from the image itself"
        start += f", {self.starts - 1} more where that fails" if self.starts > 1 else ""
        stop = f", stop at {self.confidence:g} within the pair" if self.confidence <= 1 else ""
        bits = ", 8 bits" if self.quantise else ""
        return (
            f"PGD, epsilon {self.epsilon * GREY:g}/255, {self.steps} steps of "
            f"{self.step * GREY:g}/255 {start}, loss {self.loss}{stop}{bits}"
        )


def attack(
    model: MaskedPredictor,
    pixels: Tensor,
    goal: Ints | Sequence[int],
    *,
    words: tuple[str, str],
    prompt: str,
    settings: Attack = Attack(),  # noqa: B008
    rows: Ints | Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Attack images until the model reads the other word.

    On CUDA the forward and backward passes are in mixed precision; the images never are.

    Parameters
    ----------
    model : MaskedPredictor
        Differentiable in its pixels.
    pixels : Tensor, n x 3 x height x width
        From 0 to 1. A fourth channel marks what is image, and is not changed.
    goal : array of int
        0 or 1 for each image: the word to be read.
    words : tuple of str
        The two bias words.
    prompt : str
        Text with `[MASK]` in place of the bias word.
    settings : Attack
        Settings of the attack.
    rows : array of int, optional
        Numbers of the images for the random start, so that it does not depend on the batch.

    Returns
    -------
    tuple of Tensor
        Attacked images, and the number of steps of each.

    Raises
    ------
    InputError
        If model, pixels, goal, words or prompt are not as described.
    """
    with_masked_head(model)
    check_words(model, words, "bias word")
    prompt = one_mask(prompt)
    x = pixels.detach().to(getattr(model, "device", pixels.device))
    check_pixels(model, x)
    goals = torch.as_tensor(np.asarray(goal), device=x.device).long()
    if goals.shape != (len(x),) or not ((goals == 0) | (goals == 1)).all():
        raise InputError(f"goal must be 0 or 1 for each of {len(x)} images")
    low, high = ball(x, settings.epsilon)
    first = x
    if settings.random_start:
        first = x + settings.epsilon * (2 * _uniform(x, rows, settings.seed) - 1)
    best, n_steps = x.clone(), torch.zeros(len(x), dtype=torch.long, device=x.device)
    reached = torch.full((len(x),), -torch.inf, device=x.device)
    left = torch.arange(len(x), device=x.device)  # images that did not flip yet
    with only_pixels(model):
        for shift in STARTS[: settings.starts]:
            start = (first[left] + shift * settings.epsilon).clamp(low[left], high[left])
            climb = _Climb(model, goals[left], words, prompt, settings)
            moved_to, steps, odds = climb.up(start, low[left], high[left])
            n_steps[left] += steps
            better = odds > reached[left]
            best[left[better]], reached[left[better]] = moved_to[better], odds[better]
            left = left[odds <= 0]
            if not len(left):
                break
    return (eight_bits(best, low, high) if settings.quantise else best), n_steps


@dataclass(frozen=True)
class _Climb:
    """Gradient ascent on the odds of the opposite word, from one start."""

    model: MaskedPredictor
    goals: Tensor
    words: tuple[str, str]
    prompt: str
    settings: Attack

    def read(self, pixels: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of the opposite word, and its log-odds against the true one."""
        with _mixed(pixels):
            logprobs = word_logprobs(
                self.model, pixels, [self.prompt] * len(rows), self.words
            ).float()
        goals = self.goals[rows, None]
        target_logprob = logprobs.gather(1, goals)[:, 0]
        return target_logprob, target_logprob - logprobs.gather(1, 1 - goals)[:, 0]

    def up(self, now: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images, the number of steps of each, and its final odds."""
        now, settings = now.clone(), self.settings
        n_steps = torch.zeros(len(now), dtype=torch.long, device=now.device)
        odds = torch.zeros(len(now), device=now.device)
        left = torch.arange(len(now), device=now.device)  # images that are not done yet
        for _ in range(settings.steps):
            current = now[left].requires_grad_()
            target_logprob, pair = self.read(current, left)
            odds[left] = pair.detach()
            unsure = pair.detach().sigmoid() < settings.confidence
            if not unsure.any():
                return now, n_steps, odds
            [slope] = torch.autograd.grad(
                (target_logprob if settings.loss == "word" else pair).sum(), current
            )
            moved = current.detach() + settings.step * slope.sign()
            if not unsure.all():
                left, moved = left[unsure], moved[unsure]
            now[left] = moved.clamp(low[left], high[left])
            n_steps[left] += 1
        if settings.starts > 1:  # otherwise not needed
            with torch.no_grad():
                odds[left] = self.read(now[left], left)[1]
        return now, n_steps, odds


def noise(
    pixels: Tensor, epsilon: float, *, rows: Ints | Sequence[int] | None = None, seed: int = 0
) -> Tensor:
    """Random control: every pixel up or down by epsilon, clipped to 0 to 1.

    It has the size of an attack without its direction.
    """
    low, high = ball(pixels, epsilon)
    up = _uniform(pixels, rows, seed + 1) < 0.5  # not the numbers of a random start
    return torch.where(up, high, low)


def ball(pixels: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Lower and upper bound of each pixel: within epsilon to the last bit, and from 0 to 1.

    Padding (where a fourth channel is 0) and that channel itself are fixed.
    """
    edges = []
    for sign, wall in ((-1, 0.0), (1, 1.0)):
        exact = (pixels.double() + sign * epsilon).clamp(0, 1)
        edge = exact.to(pixels.dtype)
        for _ in range(2):  # rounding may exceed epsilon by one or two ulps
            out = (edge.double() - pixels.double()).abs() > epsilon
            edge = torch.where(out, torch.nextafter(edge, pixels), edge)
        edges.append(edge.clamp(max=wall) if sign > 0 else edge.clamp(min=wall))
    if pixels.shape[1] == 4:
        is_image = pixels[:, 3:] > 0.5
        movable = is_image.expand(-1, 4, -1, -1).clone()
        movable[:, 3] = False
        edges = [torch.where(movable, edge, pixels) for edge in edges]
    return edges[0], edges[1]


def eight_bits(pixels: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The nearest grey levels within the bounds."""
    level = (pixels * GREY).round()
    above, below = level / GREY > high + ROUNDING, level / GREY < low - ROUNDING
    nearest = (level - above.to(level) + below.to(level)) / GREY
    return torch.where(low == high, pixels, nearest)  # padding is not changed


def check_pixels(model: Any, pixels: Tensor) -> None:
    """Raise `InputError` if the pixels are not a valid batch for the model."""
    shape = " x ".join(str(side) for side in pixels.shape)
    if pixels.ndim != 4 or pixels.shape[1] not in (3, 4) or not pixels.is_floating_point():
        raise InputError(
            f"expected floats, n x 3 x height x width; got {shape}, {pixels.dtype}. "
            "Use model.pixels(images)"
        )
    if len(pixels) and not (pixels.min() >= 0 and pixels.max() <= 1):  # NaN fails too
        raise InputError(
            f"expected pixels from 0 to 1; got {pixels.min():.3g} to {pixels.max():.3g}. Divide "
            "bytes by 255; the model normalises them"
        )
    patch = patch_of(model)
    if patch and min(pixels.shape[2:]) < patch:
        raise InputError(
            f"images of {pixels.shape[2]} x {pixels.shape[3]} pixels are smaller than one patch "
            f"of {getattr(model, 'name', type(model).__name__)}, {patch} x {patch}: use "
            "model.pixels(images), which resizes them"
        )


def patch_of(model: Any) -> int:
    """Side of a patch of the vision network; 0 if unknown."""
    network = getattr(model, "network", None)
    if not isinstance(network, torch.nn.Module):
        return 0
    config = getattr(network, "config", None)
    for part in (config, *(getattr(config, f"{x}_config", None) for x in ("image", "vision"))):
        size = part.get("patch_size") if isinstance(part, dict) else getattr(part, "patch_size", 0)
        if isinstance(size, int) and size:
            return size
    size = getattr(network, "patch", 0)
    if not size:  # patches from a stack of convolutions: their strides multiply
        strides = [
            module.stride[0]
            for name, module in network.named_modules()
            if isinstance(module, torch.nn.Conv2d) and "patches" in name
        ]
        size = int(np.prod(strides)) if strides else 0
    return int(size)


@contextmanager
def only_pixels(model: Any) -> Iterator[None]:
    """Compute gradients for the images only, not for weights."""
    weights = list(model.parameters()) if hasattr(model, "parameters") else []
    required = [weight.requires_grad for weight in weights]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        for weight, requires in zip(weights, required, strict=True):
            weight.requires_grad_(requires)


def _mixed(x: Tensor) -> torch.autocast:
    return torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda)


def _uniform(x: Tensor, rows: Ints | Sequence[int] | None, seed: int) -> Tensor:
    """Uniform numbers in the shape of x; those of an image depend on its row and the seed."""
    rows = range(len(x)) if rows is None else rows
    numbers = [
        np.random.default_rng([seed, int(row)]).random(x.shape[1:], np.float32) for row in rows
    ]
    return torch.as_tensor(np.stack(numbers), device=x.device, dtype=x.dtype)


@dataclass(frozen=True)
class AdversarialAttack:
    """Images attacked until the model reads the other word; cached in `store`, if given."""

    settings: Attack = Attack()
    batch: int = 32
    store: Path | None = None
    name: str = "adversarial"

    def blocks(self, model: Any, data: Faces, swap: Swap) -> Iterator[ImagePairBlock]:
        """Every image of the two groups with its attacked version."""
        with_masked_head(model)
        images, chosen = images_of(data), swap.rows(data)
        for start in range(0, len(chosen), self.batch):
            rows = chosen[start : start + self.batch]
            pixels = pixels_of(model, images[rows])
            if not isinstance(pixels, Tensor):
                raise InputError(
                    f"{getattr(model, 'name', type(model).__name__)} cannot be attacked: it needs "
                    "pixels(images) -> n x 3 x height x width. Use another source "
                    "(parallel, folder)"
                )
            # images of the first group are moved to word 1
            goal = swap.has_first(data, rows).astype(int)
            changed, steps = self._from_store(model, pixels, goal, rows, swap)
            yield ImagePairBlock(rows, pixels, changed, {"steps": steps})

    def _from_store(
        self, model: Any, pixels: Tensor, goal: Ints, rows: Ints, swap: Swap
    ) -> tuple[Tensor, Ints]:
        """Attacked images from the store; missing ones are made and added."""

        def make(indices: Ints) -> tuple[Tensor, Ints]:
            changed, steps = attack(
                model, pixels[indices], goal[indices], words=swap.words, prompt=swap.prompt,
                settings=self.settings, rows=rows[indices],
            )  # fmt: skip
            return changed.cpu(), steps.cpu().numpy()

        if self.store is None:
            return make(np.arange(len(rows)))
        # settings change the images, so they have a space of their own
        settings_hash = content_hash([asdict(self.settings), swap.words, swap.prompt])
        space = Store(self.store).space(model, f"attacked {settings_hash}")
        start_rows = rows if self.settings.random_start else np.zeros_like(rows)
        items = [
            content_hash([content_hash(image.numpy()), int(goal_word), int(row)])
            for image, goal_word, row in zip(pixels, goal, start_rows, strict=True)
        ]
        space.discard_damaged(items)
        new = np.array([index for index, item in enumerate(items) if item not in space], dtype=int)
        if len(new):
            changed, steps = make(new)
            flat = changed.flatten(1).numpy()
            space.add([items[index] for index in new], np.column_stack([steps, flat]))
        # one at a time: images of different batches may differ in size
        stored = torch.as_tensor(np.concatenate([space.vectors([item]) for item in items]))
        return stored[:, 1:].reshape(pixels.shape), stored[:, 0].long().numpy()
