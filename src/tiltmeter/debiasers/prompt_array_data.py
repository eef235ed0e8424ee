"""What the prompt array learns from: embeddings of images and of texts, by their rows.

Image embeddings are computed once and looked up, unless the image tower learns too. Texts are token
ids on the device, with room for the tokens; prompts and captions go through the tower in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tiltmeter.debiasers.adversary import NO_PAIRS, AdversaryData, RowEncoder
from tiltmeter.debiasers.text_tower import TextTower, concatenate
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.types import Array, Floats, Ints

RECALL_K = 5  # as in the paper's plot for Flickr: recall@5, text to image


@dataclass(frozen=True, eq=False)
class Learner:
    """The copy of a model that learns: its text tower, its tokens, and where they are."""

    model: Any
    tower: TextTower
    tokens: Tensor
    device: torch.device
    tunes_images: bool = False  # whether the image tower learns too

    def text_encoder(
        self, prompts: Sequence[str], captions: Sequence[str]
    ) -> Callable[[Ints], tuple[Tensor, Tensor]]:
        """Return an encoder of the prompts and some of the captions, in one pass.

        It takes rows of captions and returns vectors of the prompts, and of those captions.
        """
        prompt_batch = self.tower.tokenize(prompts).to(self.device)
        count = len(prompt_batch)
        if len(captions):
            others = self.tower.tokenize(captions)
            lengths, others = others.lengths(), others.to(self.device)

        def encode(rows: Ints) -> tuple[Tensor, Tensor]:
            both = prompt_batch
            if len(rows):
                at = torch.as_tensor(rows, device=self.device)
                both = concatenate([prompt_batch, others.rows(at, int(lengths[rows].max()))])
            vectors = self.tower.vectors(both, self.tokens)
            return vectors[:count], vectors[count:]

        return encode


def lookup(vectors: Array, device: torch.device) -> RowEncoder:
    """Return an encoder of rows that looks up embeddings computed before."""
    table = F.normalize(torch.as_tensor(np.asarray(to_numpy(vectors)), dtype=torch.float32), dim=-1)
    on_device = table.to(device)
    return lambda rows: on_device[torch.as_tensor(rows)]


def encode_each_time(learner: Learner, images: Any, of: Ints | None = None) -> RowEncoder:
    """Return an encoder of rows that runs the image tower as it is then.

    Parameters
    ----------
    learner
        The model that learns.
    images
        All images.
    of
        The image of each row; None: row and image are the same.
    """

    def encode(rows: Tensor | Ints) -> Tensor:
        at = torch.as_tensor(rows).cpu().numpy()
        pixels = learner.model.pixels(images[at if of is None else of[at]])
        vectors: Tensor = learner.model.encode_images(pixels.to(learner.device))
        return vectors

    return encode


def caption_vectors(model: Any, captions: Any, rows: Ints) -> Floats:
    """Return embeddings of the images of some captions, as given or each computed once."""
    from tiltmeter.io.image_files import GeneratedImages, ImageFiles

    distinct, inverse = np.unique(np.asarray(captions.of)[rows], return_inverse=True)
    if captions.vectors is not None:
        return np.asarray(captions.vectors[distinct][inverse])
    chosen = captions.images[distinct]
    if isinstance(chosen, ImageFiles | GeneratedImages):
        from tiltmeter.engine.embedding.embed_images import embed

        vectors = embed(model, chosen, [str(row) for row in distinct], strict=True).vectors
    else:
        vectors = np.asarray(to_numpy(model.encode_images(chosen)))
    return np.asarray(vectors[inverse])


def recall_judge(
    model: Any, learner: Learner, captions: Any, rows: Ints
) -> tuple[Callable[[], float] | None, float]:
    """Return a measure of recall on held-out captions, and the original model's value.

    None and 0 if there are too few captions.
    """
    if len(rows) <= RECALL_K:
        return None, 0.0
    held_out = [captions.texts[row] for row in rows]
    batch = learner.tower.tokenize(held_out).to(learner.device)
    before = torch.as_tensor(caption_vectors(model, captions, rows), dtype=torch.float32)
    changing = replace(captions, vectors=None)

    def recall(texts: Tensor, images: Tensor) -> float:
        scores = texts @ images.T
        own = scores.diagonal()[:, None]
        return float(((scores > own).sum(dim=1) < RECALL_K).float().mean())

    def measure() -> float:
        with torch.no_grad():
            now = before
            if learner.tunes_images:
                now = torch.as_tensor(caption_vectors(learner.model, changing, rows))
            images = now.to(learner.device, torch.float32)
            return recall(learner.tower.vectors(batch, learner.tokens), images)

    original = torch.as_tensor(to_numpy(model.encode_texts(held_out)), dtype=torch.float32)
    return measure, recall(original, before)


def accuracy_judge(model: Any, learner: Learner, utility: Any) -> tuple[Callable[[], float], float]:
    """Return a measure of zero-shot accuracy on images with classes, and the original model's."""
    from tiltmeter.metrics.utility import zero_shot_correct
    from tiltmeter.probes.zero_shot import TEMPLATES

    texts = [TEMPLATES[0].replace("{}", name.replace("_", " ")) for name in utility.classes.names]
    batch = learner.tower.tokenize(texts).to(learner.device)

    def images(of: Any) -> Floats:
        vectors = torch.as_tensor(to_numpy(of.encode_images(utility.images)), dtype=torch.float32)
        return np.asarray(F.normalize(vectors, dim=-1))

    def accuracy(classes: Array, shown: Floats) -> float:
        return float(zero_shot_correct(np.asarray(classes) @ shown.T, utility.classes.codes).mean())

    before = images(model)

    def measure() -> float:
        with torch.no_grad():
            now = learner.tower.vectors(batch, learner.tokens).cpu().numpy()
        return accuracy(now, images(learner.model) if learner.tunes_images else before)

    return measure, accuracy(to_numpy(model.encode_texts(texts)), before)


def mean_ndkl(
    data: AdversaryData, texts: Callable[[Ints], tuple[Tensor, Tensor]] | None = None
) -> Callable[[], float]:
    """Return a measure of the mean NDKL of some prompts on the fitted images.

    By this the authors' code chose the epoch. By default the prompts are those of training.
    """
    texts = texts or data.texts
    from tiltmeter.metrics import METRICS

    rows, codes = torch.arange(len(data.codes)), data.codes.cpu().numpy()

    def measure() -> float:
        with torch.no_grad():
            prompts = texts(NO_PAIRS)[0].float()
            images = torch.cat(
                [data.images(part.to(data.codes.device)) for part in torch.split(rows, 4096)]
            )
            return float(METRICS["ndkl"](prompts @ images.float().T, codes, target="prior").mean())

    return measure


def one_caption_each(of: Ints, rng: np.random.Generator) -> Ints:
    """Return one caption of each image, in random order: no pair is its own negative."""
    order = rng.permutation(len(of))
    _, first = np.unique(of[order], return_index=True)
    return np.asarray(rng.permutation(order[first]))
