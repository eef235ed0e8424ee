"""Embeddings of texts and images for the probes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tiltmeter.engine.ranking.job import matched, scaled
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.metrics.convention import Convention
from tiltmeter.types import Faces, Floats, Prompt, TextEncoder


def text_embeddings(model: TextEncoder, prompts: Sequence[Prompt]) -> Floats:
    """Embeddings of the prompts' texts, not normalised.

    Raises
    ------
    InputError
        If the model does not return one vector per text.
    """
    texts = np.asarray(to_numpy(model.encode_texts([prompt.text for prompt in prompts])))
    if len(texts) != len(prompts):
        raise InputError(f"the model gave {len(texts)} embeddings for {len(prompts)} texts")
    return texts


def image_embeddings(model: TextEncoder, faces: Faces) -> Floats:
    """Embeddings that come with the faces, otherwise the model's; not normalised.

    Raises
    ------
    InputError
        If there are neither embeddings nor images, or if their number is not that of the labels.
    """
    if faces.vectors is not None:
        images = faces.vectors
    elif faces.images is not None and hasattr(model, "encode_images"):
        images = to_numpy(model.encode_images(faces.images))
    else:
        raise InputError(
            f"{faces.name} has neither image embeddings nor images that this model can embed: "
            "pass --images embeddings:DIR"
        )
    if len(images) != len(faces):
        raise InputError(f"{len(images)} image embeddings for {len(faces)} labelled images")
    return np.asarray(images)


def unit_vectors(
    model: TextEncoder, faces: Faces, prompts: Sequence[Prompt], convention: Convention
) -> tuple[Floats, Floats]:
    """Text embeddings of unit length, and image embeddings scaled as the convention says."""
    texts = unit(text_embeddings(model, prompts), "texts")
    images = scaled(image_embeddings(model, faces), convention.images)
    return matched(texts, images), images
