"""Log-probabilities of whole words at a mask, for words of any number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiltmeter.errors import InputError, TiltmeterError
from tiltmeter.types import Array, Floats, MaskedPredictor

#: The mask in templates, whatever the model's own mask token is.
MASK = "[MASK]"


def with_masked_head(model: Any) -> MaskedPredictor:
    """Return the model, or raise `InputError` if it has no masked head."""
    if not isinstance(model, MaskedPredictor):
        raise InputError(
            f"{getattr(model, 'name', type(model).__name__)} has no masked head: use a model "
            "that predicts masked words, such as testbed:fusion, a ViltForMaskedLM or a "
            "pretraining checkpoint of ALBEF; for a dual encoder use the probes ranking and harms"
        )
    return model


def one_mask(template: str, *, named: bool = False) -> str:
    """Return the template, or raise if it has not one mask (and, if `named`, the bias word {g})."""
    masks = template.count(MASK)
    if masks == 0:
        raise InputError(
            f"the template {template!r} has no mask: put {MASK} in place of the word, as in "
            f"'The {{g}} is {MASK}'"
        )
    if masks > 1:
        raise InputError(
            f"the template {template!r} has {masks} masks: put one {MASK}; a word of several "
            "tokens gets as many masks as it needs"
        )
    if named and "{g}" not in template:
        raise InputError(
            f"the template {template!r} has no bias word to swap: put {{g}} in its place, as in "
            f"'The {{g}} is {MASK}'"
        )
    return template


def check_words(model: MaskedPredictor, words: Sequence[str], what: str = "target word") -> None:
    """Raise `InputError` if a word is not in the model's vocabulary."""
    for word in words:
        try:
            known = bool(model.pieces(word))
            reason = ""
        except TiltmeterError as error:
            known, reason = False, f" ({error})"
        if not known:
            raise InputError(
                f"the {what} {word!r} is not in the vocabulary of "
                f"{getattr(model, 'name', type(model).__name__)}{reason}: leave it out, or "
                "use a synonym that the model knows"
            )


def word_logprobs(
    model: MaskedPredictor, images: Any | None, texts: Sequence[str], words: Sequence[str]
) -> Array:
    """log P([MASK] = word) for each text and word, texts x words; every text has one mask.

    A word of several tokens gets as many masks, and is scored by the sum of their
    log-probabilities. Gradients flow to images that are a tensor.
    """
    pieces = [model.pieces(word) for word in words]
    columns: dict[int, Array] = {}
    for length in sorted({len(word_pieces) for word_pieces in pieces}):
        masks = " ".join([model.mask_token] * length)
        logprobs = model.mask_logprobs(images, [text.replace(MASK, masks) for text in texts])
        for column, word_pieces in enumerate(pieces):
            if len(word_pieces) == length:
                columns[column] = sum(
                    logprobs[:, place, piece] for place, piece in enumerate(word_pieces)
                )
    ordered = [columns[column] for column in range(len(words))]
    if hasattr(ordered[0], "detach"):
        import torch

        return torch.stack(ordered, dim=1)
    return np.stack(ordered, axis=1)


def read(
    model: MaskedPredictor, images: Any | None, texts: Sequence[str], words: Sequence[str]
) -> Floats:
    """`word_logprobs` as a NumPy array in double precision, without gradients."""
    if not hasattr(images, "detach"):
        logprobs = word_logprobs(model, images, texts, words)
        logprobs = logprobs.detach().cpu().numpy() if hasattr(logprobs, "detach") else logprobs
        return np.asarray(logprobs, dtype=np.float64)
    import torch

    with torch.no_grad():
        return word_logprobs(model, images, texts, words).double().cpu().numpy()  # type: ignore[no-any-return]
