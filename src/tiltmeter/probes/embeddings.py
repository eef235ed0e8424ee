"""Embeddings of texts and images for the probes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from tiltmeter.engine.ranking.job import matched, scaled
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.metrics.convention import Convention
from tiltmeter.types import Faces, Floats, Prompt, TextEncoder

#: By a model's id the model, so that no other gets its id, and the vectors of its texts.
_Known = dict[int, tuple[TextEncoder, dict[str, Floats]]]
_KNOWN: ContextVar[_Known | None] = ContextVar("known texts", default=None)


@contextmanager
def texts_embedded_once() -> Iterator[None]:
    """Within it a text of several probes is embedded once: no weights may change meanwhile."""
    token = _KNOWN.set({})
    try:
        yield
    finally:
        _KNOWN.reset(token)


def text_embeddings(model: TextEncoder, prompts: Sequence[Prompt]) -> Floats:
    """Embeddings of the prompts' texts, not normalised.

    Raises
    ------
    InputError
        If the model does not return one vector per text.
    """
    texts = [prompt.text for prompt in prompts]
    models = _KNOWN.get()
    if models is None:
        return _encoded(model, texts)
    _, known = models.setdefault(id(model), (model, {}))
    if new := [text for text in dict.fromkeys(texts) if text not in known]:
        known.update(zip(new, _encoded(model, new), strict=True))
    return np.stack([known[text] for text in texts])


def _encoded(model: TextEncoder, texts: list[str]) -> Floats:
    vectors = np.asarray(to_numpy(model.encode_texts(texts)))
    if len(vectors) != len(texts):
        raise InputError(f"the model gave {len(vectors)} embeddings for {len(texts)} texts")
    return vectors


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
