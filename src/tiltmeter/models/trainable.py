"""Losses for training any model: masked words, and its other losses.

A model that is `Trainable` has its own losses. Others learn matching as they were trained, right
captions against wrong ones, and contrast over the batch, where they have the heads for it. A
checkpoint with a masked head alone (ViltForMaskedLM, BridgeTowerForMaskedLM) has neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiltmeter.errors import InputError
from tiltmeter.types import Trainable

#: Names that models give to their own loss of masked words.
MASKED = ("mask", "masked", "mlm")


def network_of(model: Any) -> nn.Module:
    """The torch module with a model's weights; InputError if there is none."""
    inner = getattr(model, "model", None)
    candidates = [model, getattr(model, "network", None), inner, *vars(model).values()]
    for candidate in [*candidates, *getattr(inner, "__dict__", {}).values()]:
        if isinstance(candidate, nn.Module):
            return candidate
    raise InputError(
        f"{getattr(model, 'name', type(model).__name__)} has no torch module (an attribute such "
        "as `network`), so there is nothing to train"
    )


def masked_logprobs(model: Any, pixels: Tensor, texts: Sequence[str]) -> Tensor:
    """Log-probabilities of every piece at every mask, in the order of the texts: masks x pieces.

    Texts may have any number of masks, unlike those of `mask_logprobs`.
    """
    if hasattr(model, "word_logits"):
        tokens = model.tokens(texts).to(model.device)
        logits, ids = model.word_logits(pixels, tokens)
        logprobs: Tensor = logits[ids == model.mask_id].float().log_softmax(dim=-1)
        masks = sum(text.count(model.mask_token) for text in texts)
        if len(logprobs) != masks:
            raise InputError(
                f"{len(logprobs)} of {masks} masks are left in the texts that {model.name} reads: "
                "captions are too long for it, shorten them (max_length)"
            )
        return logprobs
    counts = torch.tensor([text.count(model.mask_token) for text in texts])
    ends = counts.cumsum(0)
    parts, at = [], []
    for count in sorted({int(number) for number in counts}):
        rows = (counts == count).nonzero()[:, 0]
        logprobs = model.mask_logprobs(
            pixels[rows.to(pixels.device)], [texts[int(row)] for row in rows]
        )
        parts.append(logprobs.flatten(0, 1).float())
        at.append((ends[rows, None] - count + torch.arange(count)).flatten())
    return torch.cat(parts)[torch.cat(at).argsort().to(parts[0].device)]


def auxiliary_losses(
    model: Any,
    pixels: Tensor,
    texts: Sequence[str],
    *,
    hard_negatives: bool = False,
    slow: Any = None,
    distillation: float = 0.0,
) -> dict[str, Tensor]:
    """The model's losses other than that of masked words; random numbers are torch's own.

    Parameters
    ----------
    model : object
        The model that is trained.
    pixels : Tensor
        Images.
    texts : sequence of str
        The caption of each image.
    hard_negatives : bool
        Whether matching is asked about wrong captions and images that the embeddings find similar,
        see `hard_match_loss`.
    slow : object, optional
        A slow copy of the model: its similarities are soft targets of contrast.
    distillation : float
        Weight of the soft targets.
    """
    if len(texts) < 2:
        return {}  # there is no wrong caption
    if isinstance(model, Trainable):
        own = model.losses(pixels, texts, None)
        losses = {name: loss for name, loss in own.items() if name not in MASKED}
    else:
        losses = {}
        if hasattr(model, "match") and not hard_negatives:
            losses["match"] = _match_loss(model, pixels, texts)
        if (logits := _contrast_logits(model, pixels, texts)) is not None:
            targets = torch.eye(len(texts), device=logits.device)
            by_image, by_text = targets, targets
            if slow is not None:
                with torch.no_grad():
                    of_slow = _contrast_logits(slow, pixels, texts)
                assert of_slow is not None
                by_image = targets.lerp(of_slow.softmax(dim=1), distillation)
                by_text = targets.lerp(of_slow.T.softmax(dim=1), distillation)
            losses["contrast"] = (
                F.cross_entropy(logits, by_image) + F.cross_entropy(logits.T, by_text)
            ) / 2
    if hard_negatives:
        losses.pop("match", None)
        if (loss := hard_match_loss(model, pixels, texts)) is not None:
            losses["match"] = loss
    return losses


def _match_loss(model: Any, pixels: Tensor, texts: Sequence[str]) -> Tensor:
    """Matching of right and wrong captions: every second caption is the next image's."""
    wrong = torch.arange(len(texts)) % 2 == 1
    captions = [
        texts[(at + 1) % len(texts)] if wrong[at] else text for at, text in enumerate(texts)
    ]
    same = torch.tensor([a == b for a, b in zip(captions, texts, strict=True)])
    logits = model.match(pixels, captions).float()
    return F.binary_cross_entropy_with_logits(logits, same.to(logits))


def hard_match_loss(model: Any, pixels: Tensor, texts: Sequence[str]) -> Tensor | None:
    """Matching with hard negatives, as ALBEF and TCL were pretrained.

    Every pair is asked three times: right, with a wrong caption, and with a wrong image. Wrong ones
    are drawn from the batch by the model's own similarities, so that similar ones are more likely.
    An equal caption is not a wrong one. None where all captions are equal.
    """
    with torch.no_grad():
        seen, read = (
            torch.as_tensor(x, device=pixels.device).float()
            for x in (model.encode_images(pixels), model.encode_texts(list(texts)))
        )
        number = {text: at for at, text in enumerate(texts)}
        codes = torch.tensor([number[text] for text in texts], device=pixels.device)
        same = codes[:, None] == codes
        similar = (model.logit_scale * seen @ read.T).masked_fill(same, -torch.inf)
        rows = (~same.all(dim=1)).nonzero()[:, 0]
        if not len(rows):
            return None
        wrong_text = torch.multinomial(similar[rows].softmax(dim=1), 1)[:, 0]
        wrong_image = torch.multinomial(similar.T[rows].softmax(dim=1), 1)[:, 0]
    own = [texts[row] for row in rows.tolist()]
    captions = [*texts, *(texts[at] for at in wrong_text.tolist()), *own]
    logits = model.match(torch.cat([pixels, pixels[rows], pixels[wrong_image]]), captions).float()
    is_right = torch.arange(len(captions), device=logits.device) < len(texts)
    return F.binary_cross_entropy_with_logits(logits, is_right.to(logits))


def _contrast_logits(model: Any, pixels: Tensor, texts: Sequence[str]) -> Tensor | None:
    """Similarities of all images and captions of a batch, with gradients; None where unknown."""
    if not hasattr(model, "encode_images") or not hasattr(model, "logit_scale"):
        return None
    # encode_texts gives NumPy, without gradients: the pass is made here
    read = _text_vectors(model, texts)
    if read is None:
        return None
    seen: Tensor = model.encode_images(pixels).float()
    return model.logit_scale * seen @ read.float().T  # type: ignore[no-any-return]


def _text_vectors(model: Any, texts: Sequence[str]) -> Tensor | None:
    """Text embeddings with gradients, which `encode_texts` does not give; None where unknown."""
    network = network_of(model)
    if hasattr(network, "text_vector") and hasattr(model, "tokens"):  # ALBEF
        tokens = model.tokens(texts).to(model.device)
        mask = tokens["attention_mask"].bool()[:, None, None]
        return network.text_vector(tokens["input_ids"], mask)  # type: ignore[no-any-return,operator]
    return None


def set_training_mode(network: nn.Module, dropout: float | None = None) -> list[Any]:
    """Set a network to training mode, with its running statistics frozen.

    Parameters
    ----------
    network : torch.nn.Module
        The network.
    dropout : float, optional
        Dropout rate. Where a network has no dropout at all, it is applied after each layer norm, at
        the entry of its blocks.

    Returns
    -------
    list
        Hooks, to be removed afterwards.
    """
    network.train()
    hooks: list[Any] = []
    has_dropout = any(isinstance(module, nn.Dropout) for module in network.modules())
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
        if dropout is not None and isinstance(module, nn.Dropout):
            module.p = dropout
        if dropout is not None and not has_dropout and isinstance(module, nn.LayerNorm):
            hooks.append(module.register_forward_hook(_dropout_hook(dropout)))
    return hooks


def _dropout_hook(rate: float) -> Any:
    def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return F.dropout(output, rate, training=module.training)

    return hook
