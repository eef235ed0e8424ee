"""The losses of training: the networks' own, with the posterior of masked words as the label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiltmeter.testbed.losses import Batch, pair_losses


@dataclass(frozen=True, eq=False)
class MaskTargets:
    """Probabilities of target words at a mask, n x targets; rows are 0 where none is masked."""

    seen: Tensor  # given caption and image
    unseen: Tensor  # given the caption alone
    targets: Tensor  # their numbers in the vocabulary


@dataclass(frozen=True, eq=False)
class TrainingBatch(Batch):
    """A batch with the probability of each word where a caption masks a target."""

    expected: MaskTargets


def training_losses(
    network: Any, batch: TrainingBatch, blind: float, generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """The network's losses; of masked words, a share `blind` is guessed without the image.

    The label of a masked target is its probability, not the one word that was drawn: the same
    loss on average, with less noise.
    """
    computed, guesses = pair_losses(network, batch, blind, generator)
    if guesses is None:
        return computed
    rows = slice(len(batch.tokens) - len(guesses.answers), None)  # those with masked words
    probabilities = torch.where(
        guesses.sees_image[:, None], batch.expected.seen[rows], batch.expected.unseen[rows]
    )
    is_target = probabilities.sum(dim=1) > 0
    answers = torch.where(is_target[:, None], -100, guesses.answers)
    with torch.autocast(answers.device.type, enabled=False):
        of_words = F.cross_entropy(guesses.logits.flatten(0, 1), answers.flatten(), reduction="sum")
        log_p = guesses.logits[:, 0].log_softmax(dim=-1)[:, batch.expected.targets]
        of_targets = -(probabilities * log_p).sum()
    computed["mask"] = (of_words + of_targets) / ((answers >= 0).sum() + is_target.sum())
    return computed
