"""What the prompt array learns from: vectors of images and of texts, by their rows.

Vectors of images are made once and looked up, unless their tower learns too. Texts are numbers on
the device, with room for the tokens; prompts and captions go through the tower in one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tiltmeter.debiasers.adversary import AdversaryData
from tiltmeter.debiasers.text_tower import TextTower, TokenBatch, joined
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.types import Array, Floats, Ints

RECALL = 5  # as the paper's Flickr figure: recall@5, text to image


def made_once(vectors: Array, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Vectors that were made once."""
    held = F.normalize(torch.as_tensor(np.asarray(to_numpy(vectors)), dtype=torch.float32), dim=-1)
    there = held.to(device)
    return lambda rows: there[rows]


def made_anew(
    learner: Any, images: Any, device: torch.device, of: Ints | None = None
) -> Callable[[Tensor], Tensor]:
    """Vectors made anew at each step, by the tower as it is then."""

    def look(rows: Tensor) -> Tensor:
        at = rows.cpu().numpy()
        chosen = images[at if of is None else of[at]]
        vectors: Tensor = learner.encode_images(learner.pixels(chosen).to(device))
        return vectors

    return look


def of_rows(shown: Callable[[Tensor], Tensor]) -> Callable[[Ints], Tensor]:
    """The same for rows that are NumPy's."""
    return lambda rows: shown(torch.as_tensor(rows))


def seen(model: Any, images: Any, rows: Ints) -> Floats:
    """Vectors of some pictures, each made once."""
    from tiltmeter.io.image_files import GeneratedImages, ImageFiles

    some, back = np.unique(rows, return_inverse=True)
    chosen = images[some]
    if isinstance(chosen, ImageFiles | GeneratedImages):
        from tiltmeter.engine.embedding.embed import embed

        ids = [str(one) for one in some]
        vectors = embed(model, chosen, ids, strict=True).vectors
    else:
        vectors = np.asarray(to_numpy(model.encode_images(chosen)))
    return np.asarray(vectors[back])


def prompts_alone(
    tower: TextTower, prompts: TokenBatch, tokens: Tensor
) -> Callable[[Ints], tuple[Tensor, Tensor]]:
    """Vectors of the prompts, and none of captions."""

    def read(rows: Ints) -> tuple[Tensor, Tensor]:
        found = tower.vectors(prompts, tokens)
        return found, found[:0]

    return read


def prompts_and_captions(
    tower: TextTower, prompts: TokenBatch, captions: TokenBatch, tokens: Tensor
) -> Callable[[Ints], tuple[Tensor, Tensor]]:
    """Prompts and some of the captions in one pass."""
    lengths, there, count = captions.lengths(), captions.to(tokens.device), len(prompts)

    def read(rows: Ints) -> tuple[Tensor, Tensor]:
        if not len(rows):
            return prompts_alone(tower, prompts, tokens)(rows)
        at = torch.as_tensor(rows, device=tokens.device)
        both = joined([prompts, there.rows(at, int(lengths[rows].max()))])
        found = tower.vectors(both, tokens)
        return found[:count], found[count:]

    return read


def judged_by_recall(
    model: Any, learner: Any, tower: TextTower, tokens: Tensor, captions: Any, watched: Ints,
    of: Ints, device: torch.device, *, anew: bool,
) -> tuple[Callable[[], float], float] | None:  # fmt: skip
    """Recall of held-out captions as the model is now, and as it was."""
    if len(watched) <= RECALL:
        return None
    said = [captions.texts[row] for row in watched]
    laid = tower.lay(said).to(device)
    before = torch.as_tensor(seen(model, captions.images, of[watched]), dtype=torch.float32)

    def found(texts: Tensor, pictures: Tensor) -> float:
        scores = texts @ pictures.T
        own = scores.diagonal()[:, None]
        return float(((scores > own).sum(dim=1) < RECALL).float().mean())

    def judge() -> float:
        with torch.no_grad():
            now = seen(learner, captions.images, of[watched]) if anew else before
            pictures = torch.as_tensor(now, dtype=torch.float32, device=device)
            return found(tower.vectors(laid, tokens), pictures)

    original = torch.as_tensor(to_numpy(model.encode_texts(said)), dtype=torch.float32)
    return judge, found(original, before)


def least_ndkl(sides: AdversaryData) -> Callable[[], float]:
    """Mean NDKL of the training prompts on the fitted images, by which the authors' code chose."""
    from tiltmeter.metrics import METRICS

    rows, codes = torch.arange(len(sides.codes)), sides.codes.cpu().numpy()

    def measure() -> float:
        with torch.no_grad():
            prompts = sides.texts(np.empty(0, np.int64))[0].float()
            images = torch.cat(
                [sides.images(part.to(sides.codes.device)) for part in torch.split(rows, 4096)]
            )
            return float(METRICS["ndkl"](prompts @ images.float().T, codes, target="prior").mean())

    return measure


def one_each(of: Ints, rng: np.random.Generator) -> Ints:
    """One caption of each picture, at random and in random order: no pair is its own rival."""
    order = rng.permutation(len(of))
    _, first = np.unique(of[order], return_index=True)
    return np.asarray(rng.permutation(order[first]))
