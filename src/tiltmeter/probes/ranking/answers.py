"""A generative model as one that ranks: log-likelihoods of texts as answers about every image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tiltmeter.engine.embedding.embed_images import EmbeddedFaces
from tiltmeter.engine.vectors import InMemoryVectors
from tiltmeter.probes.generative.sample import AskedImages
from tiltmeter.probes.lift.pairs import answer_logprobs, in_blocks
from tiltmeter.probes.probe import AuditContext, CannotRunError
from tiltmeter.types import Continuer, Faces, Floats, Prompt

QUESTION = "Describe this image."


@dataclass(frozen=True, eq=False)
class AnswerEmbeddings:
    """Texts as unit vectors whose cosines with images are their log-likelihoods, on one scale.

    With L the log-likelihoods of an image, centred by text, the image's vector is
    (L, sqrt(R^2 - |L|^2)) / R for a common R. Its cosine with the axis of a text is L / R, so
    orders and standardised gaps are those of L.
    """

    name: str
    texts: tuple[str, ...]

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        """The axis of each text."""
        rows = [self.texts.index(text) for text in texts]
        return np.eye(len(self.texts) + 1)[rows]


def answer_embeddings(
    model: Continuer, faces: Faces, prompts: Sequence[Prompt], context: AuditContext
) -> tuple[AnswerEmbeddings, EmbeddedFaces, list[Prompt]]:
    """Score every word, in its first template, as an answer about a sample of images.

    Raises
    ------
    CannotRunError
        The probe was not asked for: a generative model has to read every text with every image.
    """
    if not context.requested:
        raise CannotRunError(
            "ranks images by a generative model's answers on request: --probe ranking"
        )
    if context.engine.name != "local":
        raise CannotRunError("ranks answers of a generative model with --engine local")
    first: dict[tuple[str, str], Prompt] = {}
    for prompt in prompts:
        first.setdefault((prompt.concept, prompt.role), prompt)
    shown = list({prompt.text: prompt for prompt in first.values()}.values())
    sample = AskedImages.of(faces, context)
    logprobs = in_blocks(
        answer_logprobs(model, context.options["question"]),
        sample.images,
        [prompt.text for prompt in shown],
        lambda share: context.progress("answers", share),
    )
    known = AnswerEmbeddings(getattr(model, "name", type(model).__name__),
                             tuple(prompt.text for prompt in shown))  # fmt: skip
    vectors = image_vectors(logprobs)
    embedded = EmbeddedFaces(replace(sample.faces, vectors=vectors), InMemoryVectors(vectors))
    return known, embedded, shown


def image_vectors(logprobs: Floats) -> Floats:
    """Unit vectors whose first coordinates are log-likelihoods, centred by text and scaled.

    >>> image_vectors(np.array([[-1.0, -2.0], [-3.0, -2.0]])).round(2)
    array([[ 1.,  0.,  0.],
           [-1.,  0.,  0.]])
    """
    centred = logprobs - logprobs.mean(axis=0)
    squares = np.square(centred).sum(axis=1)
    radius = np.sqrt(squares.max()) or 1.0
    rest = np.sqrt(np.maximum(0.0, radius**2 - squares))
    return np.asarray(np.concatenate([centred, rest[:, None]], axis=1) / radius)
