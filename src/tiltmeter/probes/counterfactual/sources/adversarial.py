"""Counterfactual images by attack: a small change after which the model reads the other word.

Projected gradient descent in pixel space (Zhang et al. 2022, equation 3): V + delta with
max |delta| <= epsilon, all pixels from 0 to 1, so that the opposite bias word becomes probable at
`a [MASK] is in the picture`. Each image stops by itself once the model is sure. A model that is
sure of what it sees gives little slope to follow: images that would not turn are tried again from
one that is lighter all over, then from a darker one.

What such an image shows is what the model takes for the other group, no person of that group: the
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
    one_mask,
    spelled,
    with_masked_head,
    word_logprobs,
)
from tiltmeter.results import content_hash
from tiltmeter.store import Store
from tiltmeter.types import Faces, Ints, MaskedPredictor

LOSSES = ("word", "pair")
GREY = 255  # levels above black, in 8 bits
STARTS = (0, 1, -1)  # what is added to an image before the first step, in epsilons
#: By how much a grey level may miss the ball: single precision, no pixel of an image.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Attack:
    """How an image is attacked. The paper gives no settings; these are the house's.

    `loss` is the cross-entropy of the opposite word over the vocabulary (`word`), or its log-odds
    against the true one (`pair`). An image is left alone once the opposite word has probability
    `sure` within the pair; above 1, every step is taken. `starts` is how many of the image
    itself, a lighter and a darker one are tried where the opposite word is still not read.
    """

    epsilon: float = 8 / 255
    step: float = 2 / 255
    steps: int = 20
    sure: float = 0.9
    loss: str = "word"
    random_start: bool = False
    starts: int = len(STARTS)
    quantise: bool = False  # to 8 bits, at the end
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 1 or not self.step > 0 or self.steps < 1:
            raise InputError(
                "an attack takes an epsilon above 0 and at most 1, a step above 0 and at least one "
                f"step; got {self.epsilon:g}, {self.step:g} and {self.steps}. Pixels are from 0 "
                "to 1: 8 grey levels are 8/255"
            )
        if not 1 <= self.starts <= len(STARTS):
            raise InputError(f"starts of an attack are 1 to {len(STARTS)}; got {self.starts}")
        if self.loss not in LOSSES:
            raise UnknownNameError("loss of an attack", self.loss, LOSSES)
        if self.quantise and self.epsilon < 1 / GREY - ROUNDING:
            raise InputError(
                f"an epsilon of {self.epsilon:g} is less than one grey level (1/255): no picture "
                "of 8 bits lies that near. Take a larger one, or do not quantise"
            )

    def __str__(self) -> str:
        start = "from a random start" if self.random_start else "from the picture itself"
        start += f", {self.starts - 1} more where that fails" if self.starts > 1 else ""
        stop = f", stop at {self.sure:g} within the pair" if self.sure <= 1 else ""
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
    """Attacked images, and how many steps each took.

    `pixels` are n x 3 x height x width from 0 to 1 (a fourth channel marks what is image, and is
    left as it is); `goal` is 0 or 1 for each, the word to be read there. `rows` number the images
    for the random start, so that the same image starts alike in any batch. On CUDA the passes are
    in mixed precision; the images never are.
    """
    with_masked_head(model)
    spelled(model, words, "bias word")
    prompt = one_mask(prompt)
    x = pixels.detach().to(getattr(model, "device", pixels.device))
    check_pixels(model, x)
    to = torch.as_tensor(np.asarray(goal), device=x.device).long()
    if to.shape != (len(x),) or not ((to == 0) | (to == 1)).all():
        raise InputError(f"a goal of 0 or 1 is needed for each of {len(x)} pictures")
    low, high = ball(x, settings.epsilon)
    first = x
    if settings.random_start:
        first = x + settings.epsilon * (2 * _uniform(x, rows, settings.seed) - 1)
    best, taken = x.clone(), torch.zeros(len(x), dtype=torch.long, device=x.device)
    reached = torch.full((len(x),), -torch.inf, device=x.device)
    left = torch.arange(len(x), device=x.device)  # images that are not read otherwise yet
    with only_pixels(model):
        for shift in STARTS[: settings.starts]:
            start = (first[left] + shift * settings.epsilon).clamp(low[left], high[left])
            climb = _Climb(model, to[left], words, prompt, settings)
            now, steps, odds = climb.up(start, low[left], high[left])
            taken[left] += steps
            better = odds > reached[left]
            best[left[better]], reached[left[better]] = now[better], odds[better]
            left = left[odds <= 0]
            if not len(left):
                break
    return (eight_bits(best, low, high) if settings.quantise else best), taken


@dataclass(frozen=True)
class _Climb:
    """From one start, step by step, up the odds of the opposite word."""

    model: MaskedPredictor
    to: Tensor
    words: tuple[str, str]
    prompt: str
    settings: Attack

    def read(self, pixels: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of the opposite word, and its log-odds against the true one."""
        with _mixed(pixels):
            found = word_logprobs(self.model, pixels, [self.prompt] * len(rows), self.words).float()
        to = self.to[rows, None]
        wanted = found.gather(1, to)[:, 0]
        return wanted, wanted - found.gather(1, 1 - to)[:, 0]

    def up(self, now: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images, the steps that each took, and the odds that it came to."""
        now, how = now.clone(), self.settings
        taken = torch.zeros(len(now), dtype=torch.long, device=now.device)
        odds = torch.zeros(len(now), device=now.device)
        left = torch.arange(len(now), device=now.device)  # images that are not there yet
        for _ in range(how.steps):
            there = now[left].requires_grad_()
            wanted, pair = self.read(there, left)
            odds[left] = pair.detach()
            away = pair.detach().sigmoid() < how.sure
            if not away.any():
                return now, taken, odds
            [slope] = torch.autograd.grad((wanted if how.loss == "word" else pair).sum(), there)
            moved = there.detach() + how.step * slope.sign()
            if not away.all():
                left, moved = left[away], moved[away]
            now[left] = moved.clamp(low[left], high[left])
            taken[left] += 1
        if how.starts > 1:  # else nobody asks
            with torch.no_grad():
                odds[left] = self.read(now[left], left)[1]
        return now, taken, odds


def noise(
    pixels: Tensor, epsilon: float, *, rows: Ints | Sequence[int] | None = None, seed: int = 0
) -> Tensor:
    """The control: every pixel up or down by epsilon at random, as far as it stays a pixel.

    The size of an attack without its aim: what it does too is owed to no bias.
    """
    low, high = ball(pixels, epsilon)
    up = _uniform(pixels, rows, seed + 1) < 0.5  # not the dice of a random start
    return torch.where(up, high, low)


def ball(pixels: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The least and the greatest value of each pixel: within epsilon, to the last bit, and valid.

    What is no image (where a fourth channel is 0, and that channel itself) may not move.
    """
    edges = []
    for sign, wall in ((-1, 0.0), (1, 1.0)):
        exact = (pixels.double() + sign * epsilon).clamp(0, 1)
        edge = exact.to(pixels.dtype)
        for _ in range(2):  # rounding may lead out, by one step of the number or two
            out = (edge.double() - pixels.double()).abs() > epsilon
            edge = torch.where(out, torch.nextafter(edge, pixels), edge)
        edges.append(edge.clamp(max=wall) if sign > 0 else edge.clamp(min=wall))
    if pixels.shape[1] == 4:
        picture = pixels[:, 3:] > 0.5
        still = picture.expand(-1, 4, -1, -1).clone()
        still[:, 3] = False
        edges = [torch.where(still, edge, pixels) for edge in edges]
    return edges[0], edges[1]


def eight_bits(pixels: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The nearest grey levels that lie in the ball."""
    level = (pixels * GREY).round()
    above, below = level / GREY > high + ROUNDING, level / GREY < low - ROUNDING
    found = (level - above.to(level) + below.to(level)) / GREY
    return torch.where(low == high, pixels, found)  # padding stays as it is


def check_pixels(model: Any, pixels: Tensor) -> None:
    """Refuses what is no batch of images that the model could see."""
    shape = " x ".join(str(side) for side in pixels.shape)
    if pixels.ndim != 4 or pixels.shape[1] not in (3, 4) or not pixels.is_floating_point():
        raise InputError(
            f"pixels are floats, n x 3 x height x width; got {shape}, {pixels.dtype}. "
            "model.pixels(images) makes them"
        )
    if len(pixels) and not (pixels.min() >= 0 and pixels.max() <= 1):  # NaN fails too
        raise InputError(
            f"pixels are from 0 to 1; got {pixels.min():.3g} to {pixels.max():.3g}. Divide bytes "
            "by 255, and leave normalising to the model"
        )
    patch = patch_of(model)
    if patch and min(pixels.shape[2:]) < patch:
        raise InputError(
            f"pictures of {pixels.shape[2]} x {pixels.shape[3]} pixels are smaller than one patch "
            f"of {getattr(model, 'name', type(model).__name__)}, {patch} x {patch}: make pixels "
            "with model.pixels(images), which scales them"
        )


def patch_of(model: Any) -> int:
    """The side of a patch: the widest stride at which the network first looks; 0 if unknown."""
    network = getattr(model, "network", None)
    if not isinstance(network, torch.nn.Module):
        return 0
    config = getattr(network, "config", None)
    for part in (config, *(getattr(config, f"{x}_config", None) for x in ("image", "vision"))):
        size = part.get("patch_size") if isinstance(part, dict) else getattr(part, "patch_size", 0)
        if isinstance(size, int) and size:
            return size
    size = getattr(network, "patch", 0)
    if not size:  # a network of convolutions that end in patches: their strides multiply
        strides = [
            module.stride[0]
            for name, module in network.named_modules()
            if isinstance(module, torch.nn.Conv2d) and "patches" in name
        ]
        size = int(np.prod(strides)) if strides else 0
    return int(size)


@contextmanager
def only_pixels(model: Any) -> Iterator[None]:
    """Gradients for the images alone: none are worked out, or kept in memory, for weights."""
    weights = list(model.parameters()) if hasattr(model, "parameters") else []
    wanted = [weight.requires_grad for weight in weights]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        for weight, want in zip(weights, wanted, strict=True):
            weight.requires_grad_(want)


def _mixed(x: Tensor) -> torch.autocast:
    return torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda)


def _uniform(x: Tensor, rows: Ints | Sequence[int] | None, seed: int) -> Tensor:
    """Numbers from 0 to 1 in the shape of x; those of an image depend on its row and the seed."""
    rows = range(len(x)) if rows is None else rows
    drawn = [
        np.random.default_rng([seed, int(row)]).random(x.shape[1:], np.float32) for row in rows
    ]
    return torch.as_tensor(np.stack(drawn), device=x.device, dtype=x.dtype)


@dataclass(frozen=True)
class AdversarialAttack:
    """Images attacked until the model reads the other word there; kept in a `store`, if given."""

    settings: Attack = Attack()
    batch: int = 32
    store: Path | None = None
    name: str = "adversarial"

    def blocks(self, model: Any, data: Faces, swap: Swap) -> Iterator[ImagePairBlock]:
        """Every image of the two groups, and what it becomes."""
        with_masked_head(model)
        images, chosen = images_of(data), swap.rows(data)
        for start in range(0, len(chosen), self.batch):
            rows = chosen[start : start + self.batch]
            pixels = pixels_of(model, images[rows])
            if not isinstance(pixels, Tensor):
                raise InputError(
                    f"{getattr(model, 'name', type(model).__name__)} makes no pixels of images, so "
                    "there is nothing to attack: it needs pixels(images) -> n x 3 x height x "
                    "width, or another source (parallel, folder)"
                )
            goal = swap.has_first(data, rows).astype(int)  # who shows word 0 is moved to word 1
            changed, steps = self._kept(model, pixels, goal, rows, swap)
            yield ImagePairBlock(rows, pixels, changed, {"steps": steps})

    def _kept(
        self, model: Any, pixels: Tensor, goal: Ints, rows: Ints, swap: Swap
    ) -> tuple[Tensor, Ints]:
        """Attacked images from the store; those that are not there are made, and put there."""

        def make(at: Ints) -> tuple[Tensor, Ints]:
            changed, steps = attack(
                model, pixels[at], goal[at], words=swap.words, prompt=swap.prompt,
                settings=self.settings, rows=rows[at],
            )  # fmt: skip
            return changed.cpu(), steps.cpu().numpy()

        if self.store is None:
            return make(np.arange(len(rows)))
        # a space of its own for these settings: other ones would give other images
        told = content_hash([asdict(self.settings), swap.words, swap.prompt])
        space = Store(self.store).space(model, f"attacked {told}")
        dice = rows if self.settings.random_start else np.zeros_like(rows)
        items = [
            content_hash([content_hash(one.numpy()), int(to), int(row)])
            for one, to, row in zip(pixels, goal, dice, strict=True)
        ]
        space.discard_damaged(items)
        new = np.array([at for at, item in enumerate(items) if item not in space], dtype=int)
        if len(new):
            changed, steps = make(new)
            flat = changed.flatten(1).numpy()
            space.add([items[at] for at in new], np.column_stack([steps, flat]))
        # one at a time: images of two batches may differ in size
        found = torch.as_tensor(np.concatenate([space.vectors([item]) for item in items]))
        return found[:, 1:].reshape(pixels.shape), found[:, 0].long().numpy()
