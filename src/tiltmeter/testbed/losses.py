"""What the networks are trained to do: contrast, matching, masked words.

Each loss is least where the network knows the world's probabilities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltmeter.testbed.networks import Dual, Fusion

MOST_HIDDEN = 3  # words of the longest concept


@dataclass(frozen=True, eq=False)
class MaskTargets:
    """Probabilities of target words at a mask, n x targets; rows are 0 where none is hidden."""

    seen: Tensor  # given caption and picture
    unseen: Tensor  # given the caption alone
    targets: Tensor  # their numbers in the vocabulary


@dataclass(frozen=True, eq=False)
class Batch:
    """Pictures (0 to 1) and their captions.

    Where a caption hides a target, `expected` may tell how probable each word was.
    """

    pictures: Tensor
    tokens: Tensor
    masked: Tensor
    expected: MaskTargets | None = None


def losses(
    network: Any, batch: Batch, blind: float = 0.0, generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """The network's own losses on a batch; no shape depends on values, so that it can compile.

    The first half of the rows asks whether caption and picture belong together (every second
    caption there is the next scene's), the others ask which words are hidden; a share
    of these, `blind`, without their picture. Where the batch says how probable each target
    was, that is the label, not the one that was drawn: the same loss on average, with less noise.
    """
    found = {}
    pictures, tokens = batch.pictures, batch.tokens
    n, device = len(tokens), tokens.device
    row, cut = torch.arange(n, device=device), max(min(2, n - 1), n // 2)
    other = torch.where(row % 2 == 0, row, (row + 1) % n)[:cut]
    truth = (row[:cut] == other).to(pictures)
    masked = batch.masked[cut:]
    hidden = masked != tokens[cut:]
    at = hidden.int().topk(MOST_HIDDEN, dim=1).indices
    answer = torch.where(hidden, tokens[cut:], -100).gather(1, at)
    shown = torch.rand(n - cut, device=device, generator=generator) >= blind
    if isinstance(network, Dual):
        seen, read = network.see(pictures), network.read(tokens)
        scale = network.log_scale.clamp(max=math.log(100.0)).exp()
        with torch.autocast(device.type, enabled=False):  # tilts are finer than bfloat16
            logits = (
                scale * network.image_vector(seen.float()) @ network.text_vector(read.float()).T
            )
        found["contrast"] = (F.cross_entropy(logits, row) + F.cross_entropy(logits.T, row)) / 2
        if not isinstance(network, Fusion):
            return found
        fused = network.fuse(tokens[other], read[other], seen[:cut])
        looks = torch.where(shown[:, None, None], seen[cut:], network.blind(masked))
        words = network.fuse(masked, network.read(masked), looks)
    else:
        asked = torch.cat([tokens[other], masked])
        both = network(
            pictures, asked, torch.cat([torch.ones_like(other, dtype=torch.bool), shown])
        )
        fused, words = both[:cut], both[cut:]
    places = words.gather(1, at[..., None].expand(-1, -1, words.shape[-1]))
    with torch.autocast(device.type, enabled=False):
        match = network.matching(fused[:, 0].float()).squeeze(-1)
        found["match"] = F.binary_cross_entropy_with_logits(match, truth)
        guess = network.masked(places.float())
        if batch.expected is None:
            found["mask"] = F.cross_entropy(guess.flatten(0, 1), answer.flatten())
            return found
        of_targets = torch.where(
            shown[:, None], batch.expected.seen[cut:], batch.expected.unseen[cut:]
        )
        weighed = of_targets.sum(dim=1) > 0
        answer = torch.where(weighed[:, None], -100, answer)
        one = F.cross_entropy(guess.flatten(0, 1), answer.flatten(), reduction="sum")
        told = guess[:, 0].log_softmax(dim=-1)[:, batch.expected.targets]
        found["mask"] = (one - (of_targets * told).sum()) / ((answer >= 0).sum() + weighed.sum())
    return found
