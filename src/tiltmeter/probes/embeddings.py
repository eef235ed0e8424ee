"""What probes score: embeddings of texts and images of one model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tiltmeter.engine.ranking.job import matched, scaled
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.metrics.convention import Convention
from tiltmeter.types import Faces, Floats, Prompt, TextEncoder


def text_embeddings(model: TextEncoder, prompts: Sequence[Prompt]) -> Floats:
    """The model's embeddings of prompts, as it gives them."""
    texts = np.asarray(to_numpy(model.encode_texts([prompt.text for prompt in prompts])))
    if len(texts) != len(prompts):
        raise InputError(f"the model gave {len(texts)} vectors for {len(prompts)} texts")
    return texts


def image_embeddings(model: TextEncoder, faces: Faces) -> Floats:
    """The embeddings that come with the faces, or else the model's, as they are."""
    if faces.vectors is not None:
        images = faces.vectors
    elif faces.images is not None and hasattr(model, "encode_images"):
        images = to_numpy(model.encode_images(faces.images))
    else:
        raise InputError(
            f"{faces.name} has no image vectors, and no images that the model could see: "
            "pass --images embeddings:DIR"
        )
    if len(images) != len(faces):
        raise InputError(f"{len(images)} image vectors for {len(faces)} labelled images")
    return np.asarray(images)


def unit_vectors(
    model: TextEncoder, faces: Faces, prompts: Sequence[Prompt], convention: Convention
) -> tuple[Floats, Floats]:
    """Text embeddings of unit length, and image embeddings as the convention takes them."""
    texts = unit(text_embeddings(model, prompts), "texts")
    images = scaled(image_embeddings(model, faces), convention.images)
    return matched(texts, images), images
