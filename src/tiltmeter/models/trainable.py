"""What training asks of any model: its network, its guesses at masks, its losses beside these.

A model that is `Trainable` brings its own losses. For others matching is learned as they were
taught it, right captions against wrong ones, and contrast over the batch, where they have the heads
for it. A checkpoint that holds a masked head alone (ViltForMaskedLM, BridgeTowerForMaskedLM) has
neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiltmeter.errors import InputError
from tiltmeter.types import Trainable

#: Names that models give to their own loss of hidden words.
MASKED = ("mask", "masked", "mlm")


def network_of(model: Any) -> nn.Module:
    """The module that holds a model's weights."""
    inner = getattr(model, "model", None)
    within = [model, getattr(model, "network", None), inner, *vars(model).values()]
    for one in [*within, *getattr(inner, "__dict__", {}).values()]:
        if isinstance(one, nn.Module):
            return one
    raise InputError(
        f"{getattr(model, 'name', type(model).__name__)} holds no torch module (an attribute such "
        "as `network`), so there is nothing to train"
    )


def hidden_logprobs(model: Any, pixels: Tensor, texts: Sequence[str]) -> Tensor:
    """Log-probabilities of every piece at every mask, in the order of the texts: masks x pieces.

    Texts may hide any number of words, unlike those of `mask_logprobs`.
    """
    if hasattr(model, "word_logits"):
        tokens = model.tokens(texts).to(model.device)
        logits, ids = model.word_logits(pixels, tokens)
        found: Tensor = logits[ids == model.mask_id].float().log_softmax(dim=-1)
        wanted = sum(text.count(model.mask_token) for text in texts)
        if len(found) != wanted:
            raise InputError(
                f"{len(found)} of {wanted} masks are left in the texts that {model.name} reads: "
                "captions are too long for it, cut them shorter (longest)"
            )
        return found
    counts = torch.tensor([text.count(model.mask_token) for text in texts])
    ends = counts.cumsum(0)
    parts, at = [], []
    for count in sorted({int(one) for one in counts}):
        rows = (counts == count).nonzero()[:, 0]
        logprobs = model.mask_logprobs(
            pixels[rows.to(pixels.device)], [texts[int(row)] for row in rows]
        )
        parts.append(logprobs.flatten(0, 1).float())
        at.append((ends[rows, None] - count + torch.arange(count)).flatten())
    return torch.cat(parts)[torch.cat(at).argsort().to(parts[0].device)]


def other_losses(model: Any, pixels: Tensor, texts: Sequence[str]) -> dict[str, Tensor]:
    """The model's losses beside that of hidden words; dice are torch's own."""
    if len(texts) < 2:
        return {}  # nothing to tell the right caption from
    if isinstance(model, Trainable):
        found = model.losses(pixels, texts, None)
        return {name: loss for name, loss in found.items() if name not in MASKED}
    losses = {}
    if hasattr(model, "match"):
        # every second caption is the next picture's
        wrong = torch.arange(len(texts)) % 2 == 1
        said = [texts[(at + 1) % len(texts)] if wrong[at] else one for at, one in enumerate(texts)]
        same = torch.tensor([a == b for a, b in zip(said, texts, strict=True)])
        logits = model.match(pixels, said).float()
        losses["match"] = F.binary_cross_entropy_with_logits(logits, same.to(logits))
    if hasattr(model, "encode_images") and hasattr(model, "logit_scale"):
        # a text tower asked for NumPy gives no gradients, so its own pass is made here
        seen, read = model.encode_images(pixels), _text_vectors(model, texts)
        if read is not None:
            logits = model.logit_scale * seen.float() @ read.float().T
            row = torch.arange(len(texts), device=logits.device)
            losses["contrast"] = (F.cross_entropy(logits, row) + F.cross_entropy(logits.T, row)) / 2
    return losses


def _text_vectors(model: Any, texts: Sequence[str]) -> Tensor | None:
    """Texts as vectors with gradients, which `encode_texts` does not give; None where unknown."""
    network = network_of(model)
    if hasattr(network, "text_vector") and hasattr(model, "tokens"):  # ALBEF
        tokens = model.tokens(texts).to(model.device)
        mask = tokens["attention_mask"].bool()[:, None, None]
        return network.text_vector(tokens["input_ids"], mask)  # type: ignore[no-any-return,operator]
    return None


def in_training(network: nn.Module, dropout: float | None = None) -> list[Any]:
    """Turns a network to training, with its running statistics frozen; `dropout` sets a rate.

    Where a network has no dropout at all, the rate is applied behind each of its layer norms, the
    entries of its blocks. What comes back are hooks, to be removed afterwards.
    """
    network.train()
    hooks: list[Any] = []
    drops = [one for one in network.modules() if isinstance(one, nn.Dropout)]
    for one in network.modules():
        if isinstance(one, nn.modules.batchnorm._BatchNorm):
            one.eval()
        if dropout is not None and isinstance(one, nn.Dropout):
            one.p = dropout
        if dropout is not None and not drops and isinstance(one, nn.LayerNorm):
            hooks.append(one.register_forward_hook(_dropped(dropout)))
    return hooks


def _dropped(rate: float) -> Any:
    def hook(module: nn.Module, given: Any, found: Tensor) -> Tensor:
        return F.dropout(found, rate, training=module.training)

    return hook
