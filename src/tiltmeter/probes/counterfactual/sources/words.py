"""How probable a model holds whole words at a mask: words of any number of pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiltmeter.errors import InputError, TiltmeterError
from tiltmeter.types import Array, Floats, MaskedPredictor

#: Where a template hides a word, whatever a model's own mask is called.
MASK = "[MASK]"


def with_masked_head(model: Any) -> MaskedPredictor:
    """The model, if it guesses hidden words."""
    if not isinstance(model, MaskedPredictor):
        raise InputError(
            f"{getattr(model, 'name', type(model).__name__)} has no masked head, so there is no "
            "hidden word to ask for: use a model that guesses words, such as testbed:fusion, a "
            "ViltForMaskedLM or an ALBEF checkpoint of the pretraining; for a dual encoder take "
            "the probes ranking and harms"
        )
    return model


def one_mask(template: str, *, named: bool = False) -> str:
    """The template, if it hides one word; if `named`, it must name the bias word ({g}) too."""
    masks = template.count(MASK)
    if masks == 0:
        raise InputError(
            f"the template {template!r} hides no word: put {MASK} where the word would stand, as "
            f"in 'The {{g}} is {MASK}'"
        )
    if masks > 1:
        raise InputError(
            f"the template {template!r} hides {masks} words: put one {MASK}; a word of several "
            "pieces is given as many masks as it needs"
        )
    if named and "{g}" not in template:
        raise InputError(
            f"the template {template!r} does not name the bias word, so no text could swap it: "
            f"put {{g}} where it stands, as in 'The {{g}} is {MASK}'"
        )
    return template


def spelled(model: MaskedPredictor, words: Sequence[str], what: str = "target word") -> None:
    """Refuses words that the model cannot spell."""
    for word in words:
        try:
            known = bool(model.pieces(word))
            why = ""
        except TiltmeterError as error:
            known, why = False, f" ({error})"
        if not known:
            raise InputError(
                f"the {what} {word!r} is not in the vocabulary of "
                f"{getattr(model, 'name', type(model).__name__)}{why}: leave it out, or give a "
                "word of the same meaning that the model knows"
            )


def word_logprobs(
    model: MaskedPredictor, images: Any | None, texts: Sequence[str], words: Sequence[str]
) -> Array:
    """log P([MASK] = word) for each text and word, texts x words; every text hides one word.

    A word of several pieces is given as many masks, and is scored by the sum of their log
    probabilities. Gradients reach images that are a tensor.
    """
    pieces = [model.pieces(word) for word in words]
    columns: dict[int, Array] = {}
    for length in sorted({len(some) for some in pieces}):
        masks = " ".join([model.mask_token] * length)
        found = model.mask_logprobs(images, [text.replace(MASK, masks) for text in texts])
        for at, some in enumerate(pieces):
            if len(some) == length:
                columns[at] = sum(found[:, place, piece] for place, piece in enumerate(some))
    ordered = [columns[at] for at in range(len(words))]
    if hasattr(ordered[0], "detach"):
        import torch

        return torch.stack(ordered, dim=1)
    return np.stack(ordered, axis=1)


def read(
    model: MaskedPredictor, images: Any | None, texts: Sequence[str], words: Sequence[str]
) -> Floats:
    """The same as NumPy, in double precision, without gradients."""
    if not hasattr(images, "detach"):
        found = word_logprobs(model, images, texts, words)
        found = found.detach().cpu().numpy() if hasattr(found, "detach") else found
        return np.asarray(found, dtype=np.float64)
    import torch

    with torch.no_grad():
        return word_logprobs(model, images, texts, words).double().cpu().numpy()  # type: ignore[no-any-return]
