"""The networks' own losses: contrastive, matching and masked words.

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
class Batch:
    """Images (0 to 1) and their captions, as they are and with words masked."""

    images: Tensor  # n x 3 x side x side
    tokens: Tensor  # n x words
    masked: Tensor  # n x words


@dataclass(frozen=True, eq=False)
class MaskedGuesses:
    """What a network says about the masked words of the later rows of a batch."""

    logits: Tensor  # rows x MOST_HIDDEN x vocabulary
    answers: Tensor  # rows x MOST_HIDDEN, numbers of the words; -100 where none is masked
    sees_image: Tensor  # rows, whether the network was shown the image


def losses(
    network: Any, batch: Batch, generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """The network's own losses on a batch."""
    computed, guesses = pair_losses(network, batch, generator=generator)
    if guesses is not None:
        computed["mask"] = F.cross_entropy(guesses.logits.flatten(0, 1), guesses.answers.flatten())
    return computed


def pair_losses(
    network: Any, batch: Batch, blind: float = 0.0, generator: torch.Generator | None = None
) -> tuple[dict[str, Tensor], MaskedGuesses | None]:
    """Losses of images with captions, and the guesses at masked words (None without that head).

    The first half of the rows asks whether caption and image belong together (every second
    caption there is the next scene's), the others ask which words are masked; a share of these,
    `blind`, without their image. No shape depends on values, so that it can compile.
    """
    computed = {}
    images, tokens = batch.images, batch.tokens
    n, device = len(tokens), tokens.device
    row, half = torch.arange(n, device=device), max(min(2, n - 1), n // 2)
    caption_of = torch.where(row % 2 == 0, row, (row + 1) % n)[:half]
    belongs = (row[:half] == caption_of).to(images)
    masked = batch.masked[half:]
    hidden = masked != tokens[half:]
    places = hidden.int().topk(MOST_HIDDEN, dim=1).indices
    answers = torch.where(hidden, tokens[half:], -100).gather(1, places)
    sees_image = torch.rand(n - half, device=device, generator=generator) >= blind
    if isinstance(network, Dual):
        seen, read = network.see(images), network.read(tokens)
        scale = network.log_scale.clamp(max=math.log(100.0)).exp()
        with torch.autocast(device.type, enabled=False):  # biases are finer than bfloat16
            logits = (
                scale * network.image_vector(seen.float()) @ network.text_vector(read.float()).T
            )
        computed["contrast"] = (F.cross_entropy(logits, row) + F.cross_entropy(logits.T, row)) / 2
        if not isinstance(network, Fusion):
            return computed, None
        pairs = network.fuse(tokens[caption_of], read[caption_of], seen[:half])
        context = torch.where(sees_image[:, None, None], seen[half:], network.blind(masked))
        words = network.fuse(masked, network.read(masked), context)
    else:
        texts = torch.cat([tokens[caption_of], masked])
        shown = torch.cat([torch.ones_like(caption_of, dtype=torch.bool), sees_image])
        states = network(images, texts, shown)
        pairs, words = states[:half], states[half:]
    words = words.gather(1, places[..., None].expand(-1, -1, words.shape[-1]))
    with torch.autocast(device.type, enabled=False):
        match = network.matching(pairs[:, 0].float()).squeeze(-1)
        computed["match"] = F.binary_cross_entropy_with_logits(match, belongs)
        logits = network.masked(words.float())
    return computed, MaskedGuesses(logits, answers, sees_image)
